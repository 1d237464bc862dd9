"""The child process that profiles a short training: `python -m training.profile REQUEST ANSWER`.

It trains in a scratch folder as a rank does, and neither opens a store nor writes a checkpoint. This process is rank 0;
it starts the other ranks beside itself. The steps come in order: warm-up, timed steps, then steps that are counted,
traced or not synchronised.

A clock times the parts of a step: each second belongs to the innermost part that is running. The parts are entered
around the documented methods of Lightning's strategies, so a module is timed as it is. On CUDA the clock waits for the
device at each border: kernels run behind the code that launches them.

Arithmetic and memory traffic of a step's operations are counted as in the roofline model (Williams, Waterman,
Patterson, CACM 52(4), 2009), beside what the device can do of each. FLOPs are those of matrix products, convolutions
and attention, as torch counts them. Bytes are what operations read and write if no cache keeps anything between two
operations, so they are an upper bound.

A trace is in Chrome's format, which ui.perfetto.dev opens. It holds names and times, and no values.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.autograd.profiler_util import EventList
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from torchmetrics import Metric

from data_contracts.errors import Interrupted, TrainwrightError, UsageError, from_json
from data_contracts.messages.children import Advanced
from data_contracts.messages.commands import PROFILE, TRACE, Operation, ProfileRequest, StepProfile
from data_contracts.pipeline_spec import TrainSpec
from infra.processes.child_main import PARENT, Report, child_main
from infra.processes.processes import module_command
from training.checkpoint.saver import Staging, capture
from training.fit.assembly import our_loaders, owned_settings
from training.fit.failures import classify
from training.fit.launch_context import Context
from training.fit.loop import StepLoop, install
from training.fit.measuring import History
from training.fit.rank import prepare
from training.lightning_adapter import call_at_the_end, dump_checkpoint
from training.loader import TrainLoader
from training.loader.loaders import CountRows, with_view
from training.order import Plan
from training.user.ready import build_all

# Steps without an exchange of gradients.
_UNSYNCHRONISED = 10
# What is none of the other parts: callbacks, logging, schedules.
BETWEEN = "callbacks"
# Method of the strategy → the part of a step that it is.
METHODS = {
    "batch_to_device": "transfer",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
}
MOST_EVENTS = 400_000  # some 80 MB of JSON, 8 MB compressed
_MOST_OPERATIONS = 12
# What torch writes of the machine and of paths.
_LEFT_OUT = ("traceName", "distributedInfo", "host_name", "trace_id")
# Batches that are held in memory, and taken again and again.
_HELD = 32
# How long a rank that failed may take to say so.
_ENDS_WITHIN_S = 5.0
_HALF = {"bf16": torch.bfloat16, "16": torch.float16}
_WIDTH, _COPIED_BYTES, _FOR_S = 1024, 2**26, 0.15


class Done(BaseException):
    """Leaves the training once all is measured, without the validation and the hooks at its end."""


class ProfiledSteps:
    """What happens between the steps of a profile; a part that a short training does not reach stays unmeasured.

    Attributes:
        step_s, phases: of the timed steps.
        exchange_s: what the backward passes of the middle step take longer than those of one without an exchange.
    """

    def __init__(self, request: ProfileRequest, clock: PhaseClock, accumulate: int, *, traces: bool) -> None:
        self._request, self._clock, self._accumulate = request, clock, accumulate
        self._taken = -1
        self._began = self._validated = 0.0
        self._left: list[tuple[Callable[[L.Trainer], None], Callable[[L.Trainer], None], int]] = [
            (self._nothing, self._nothing, request.warmup),
            (self._begin_timing, self._end_timing, request.steps),
        ]
        if request.traced:
            self._left += [
                (self._begin_counting, self._end_counting, 1),
                *([(self._begin_free, self._end_free, _UNSYNCHRONISED)] if request.ranks > 1 else []),
                # All ranks take equally many steps; one of them writes the trace.
                (self._begin_trace, self._end_trace, request.traced)
                if traces
                else (self._nothing, self._nothing, request.traced),
            ]
        self._ends: Callable[[L.Trainer], None] | None = None
        self._remaining = 0
        self.step_s: list[float] = []
        self.phases: dict[str, float] = {}
        self.exchange_s: float | None = None
        self._backward_s: list[float] = []
        self._passed_back = self._synchronised_s = 0.0
        self.counter: OperationCounter | None = None
        self.counted = False
        self.checkpoint_s: float | None = None
        self.operations: list[Operation] = []
        self.traced, self.cut = 0, False
        self._timing = False
        self._stack = contextlib.ExitStack()
        self._profiler: Any = None

    def between_steps(self, loop: StepLoop, fetcher: Any) -> None:
        """Called before each micro-batch is fetched."""
        self._taken += 1
        if self._taken % self._accumulate == 0:
            self.stepped(loop.trainer)

    def passes_over(self, loop: StepLoop) -> bool:
        """No micro-batch is skipped."""
        return False

    def enter(self, place: str) -> None:
        """Called when a batch is asked for, and when it is there."""
        self._clock.enter("data") if place == "fetching" else self._clock.leave()

    def waited(self, seconds: float) -> None:
        """Nothing to add: the clock has it."""

    def stepped(self, trainer: L.Trainer) -> None:
        """A step ends and another may begin."""
        self._note_step()
        while not self._remaining:
            if self._ends is not None:
                self._ends(trainer)
                self._ends = None
            if not self._left:
                self.close(trainer)
                raise Done
            begins, self._ends, self._remaining = self._left.pop(0)
            begins(trainer)
        self._remaining -= 1

    def _note_step(self) -> None:
        now, validated = self._clock.now(), self._clock.seconds["validation"]
        if self._timing:
            self.step_s.append(now - self._began - (validated - self._validated))
        passed_back = self._clock.seconds.get("backward", 0.0)
        self._backward_s.append(passed_back - self._passed_back)
        self._began, self._validated, self._passed_back = now, validated, passed_back

    def close(self, trainer: L.Trainer) -> None:
        """The training is over, perhaps before all parts were measured."""
        self._note_step()
        if self._ends is not None and not self._remaining:
            self._ends(trainer)
        elif self._timing:
            self._end_timing(trainer)
        self._stack.close()
        self.checkpoint_s = _checkpoint_s(trainer) if self._request.traced else None

    def _restart(self) -> None:
        self._clock.restart()
        self._began, self._validated, self._passed_back, self._backward_s = self._clock.now(), 0.0, 0.0, []

    def _nothing(self, trainer: L.Trainer) -> None:
        """Steps of which nothing is measured."""

    def _begin_timing(self, trainer: L.Trainer) -> None:
        self._restart()
        self._timing = True

    def _end_timing(self, trainer: L.Trainer) -> None:
        self._timing = False
        self._synchronised_s = statistics.median(self._backward_s)
        self.phases = {part: seconds for part, seconds in self._clock.seconds.items() if part != "validation"}

    def _begin_counting(self, trainer: L.Trainer) -> None:
        sharded = trainer.world_size > 1 and not hasattr(trainer.strategy.model, "no_sync")
        if not sharded:  # a step of sharded parameters does not run inside another dispatch
            self.counter = self._stack.enter_context(OperationCounter())

    def _end_counting(self, trainer: L.Trainer) -> None:
        self._stack.close()
        self.counted = self.counter is not None

    def _begin_free(self, trainer: L.Trainer) -> None:
        model = trainer.strategy.model
        if isinstance(model, nn.parallel.DistributedDataParallel):
            self._stack.enter_context(model.no_sync())
            self._restart()

    def _end_free(self, trainer: L.Trainer) -> None:
        self._stack.close()
        if isinstance(trainer.strategy.model, nn.parallel.DistributedDataParallel):
            self.exchange_s = max(0.0, self._synchronised_s - statistics.median(self._backward_s))

    def _begin_trace(self, trainer: L.Trainer) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if trainer.strategy.root_device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = self._stack.enter_context(torch.profiler.profile(activities=activities))
        self._clock.names_in_trace = True

    def _end_trace(self, trainer: L.Trainer) -> None:
        self._clock.names_in_trace = False
        self._stack.close()
        folder = Path(self._request.folder)
        raw = folder / "torch-trace.json"
        self._profiler.export_chrome_trace(str(raw))
        self.operations = longest(self._profiler.key_averages())
        self.cut = rewrite(raw, folder / TRACE)
        raw.unlink()
        self.traced = self._request.traced


def _checkpoint_s(trainer: L.Trainer) -> float:
    """Seconds that a checkpoint holds the steps: its copy to host memory, into buffers that are there already."""
    staging, seconds = Staging(), 0.0
    for _ in range(2):
        began = time.perf_counter()
        capture(dump_checkpoint(trainer), {}, trainer.global_rank, staging=staging).wait()
        seconds = time.perf_counter() - began
    return seconds


class PhaseClock:
    """Seconds by part.

    Attributes:
        seconds: part → seconds of its own, since the last `restart`.
        names_in_trace: whether the parts are written into a trace that is being recorded.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, settle: Callable[[], None] | None = None
    ) -> None:
        self._clock, self._settle = clock, settle
        self._parts: list[tuple[str, Any]] = []
        self.seconds: dict[str, float] = defaultdict(float)
        self.names_in_trace = False
        self._since = clock()

    def restart(self) -> None:
        """Count from now on."""
        self._count()
        self.seconds = defaultdict(float)

    def enter(self, part: str) -> None:
        """A part begins, within the one that is running."""
        self._count()
        record = torch.profiler.record_function(f"trainwright: {part}") if self.names_in_trace else None
        if record is not None:
            record.__enter__()
        self._parts.append((part, record))

    def leave(self) -> None:
        """The part that began last ends."""
        self._count()
        _, record = self._parts.pop()
        if record is not None:
            record.__exit__(None, None, None)

    def now(self) -> float:
        """The time, once the device has done what it was given."""
        self._count()
        return self._since

    def _count(self) -> None:
        if self._settle is not None:
            self._settle()
        now = self._clock()
        self.seconds[self._parts[-1][0] if self._parts else BETWEEN] += now - self._since
        self._since = now

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call as a part, where this thread makes it."""
        mine = threading.get_ident()

        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != mine:
                return call(*args, **kwargs)
            self.enter(part)
            try:
                return call(*args, **kwargs)
            finally:
                self.leave()

        return timed


class ValidationClock(L.Callback):
    """Counts validation, which is no part of a step, as a part of its own."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation begins."""
        self._clock.enter("validation")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The steps continue."""
        self._clock.leave()


def time_parts(trainer: L.Trainer, clock: PhaseClock) -> None:
    """Time the methods of a Trainer's strategy, and this thread's waits for collectives."""
    for name, part in METHODS.items():
        setattr(trainer.strategy, name, clock.timed(part, getattr(trainer.strategy, name)))
    dist.Work.wait = clock.timed("synchronisation", dist.Work.wait)  # type: ignore[method-assign]


class OperationCounter(TorchDispatchMode):
    """Counts the operations that run inside it.

    Attributes:
        bytes: read and written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._flops = FlopCounterMode(display=False)

    @property
    def flops(self) -> int:
        """Floating-point operations so far."""
        return int(self._flops.get_total_flops())

    def __enter__(self) -> OperationCounter:
        self._flops.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._flops.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.bytes += traffic([*tree_leaves(args), *tree_leaves(kwargs or {})], tree_leaves(made), func._schema)
        return made


def traffic(taken: list[Any], made: list[Any], schema: Any) -> int:
    """Bytes of an operation's arguments and results; 0 for one that only makes a view of its argument."""
    given = [one for one in taken if isinstance(one, torch.Tensor)]
    results = [one for one in made if isinstance(one, torch.Tensor)]
    if not schema.is_mutable and given and all(any(_shares(one, other) for other in given) for one in results):
        return 0
    return sum(one.numel() * one.element_size() for one in [*given, *results])


def _shares(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0
    except (NotImplementedError, RuntimeError):  # a tensor without storage of its own
        return False


def peaks(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """FLOPs and bytes per second that this process gets from the device with large operands."""
    left = torch.ones(_WIDTH, _WIDTH, device=device, dtype=dtype)
    product = torch.empty_like(left)
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    multiplied = _per_second(lambda: torch.mm(left, left, out=product), device)
    return multiplied * 2 * _WIDTH**3, _per_second(lambda: target.copy_(source), device) * 2 * _COPIED_BYTES


def _per_second(call: Callable[[], Any], device: torch.device) -> float:
    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.no_grad():
        call()  # the first call prepares libraries
        synchronize()
        calls, began = 0, time.perf_counter()
        while (seconds := time.perf_counter() - began) < _FOR_S:
            call()
            synchronize()
            calls += 1
    return calls / seconds


def rewrite(path: Path, to: Path, most_events: int = MOST_EVENTS) -> bool:
    """Write torch's trace anew without names of the machine, compressed; returns whether later events are left out."""
    # Python reads and writes NaN and Infinity, which are not JSON: the viewer would refuse the whole file.
    found = json.loads(path.read_text(errors="replace"), parse_constant=lambda _: None)
    trace, cut = shortened(found, most_events)
    with gzip.open(to, "wt", compresslevel=6) as file:
        json.dump(trace, file, allow_nan=False)
    return cut


def shortened(trace: Mapping[str, Any], most_events: int) -> tuple[dict[str, object], bool]:
    """A trace with the first `most_events` events by time, and whether others are left out."""
    kept = {name: value for name, value in trace.items() if name not in _LEFT_OUT and name != "traceEvents"}
    events = trace.get("traceEvents", [])
    named = [one for one in events if one.get("ph") == "M"]
    timed = sorted((one for one in events if one.get("ph") != "M"), key=lambda one: float(one.get("ts", 0)))
    return {**kept, "traceEvents": [*named, *timed[:most_events]]}, len(timed) > most_events


def longest(averages: EventList) -> list[Operation]:
    """The operations with the most time of their own, longest first; on CUDA, that of the device."""
    on_device = any(one.self_device_time_total for one in averages)
    rows = [
        Operation(
            name=str(one.key)[:80],
            calls=one.count,
            seconds=(one.self_device_time_total if on_device else one.self_cpu_time_total) / 1e6,
        )
        for one in averages
        if not str(one.key).startswith(("trainwright: ", "ProfilerStep"))
    ]
    return sorted(rows, key=lambda one: -one.seconds)[:_MOST_OPERATIONS]


class ReadyBatches:
    """A loader's first batches, repeated to `count`."""

    def __init__(self, loader: Iterable[Any], count: int) -> None:
        self._held = list(itertools.islice(loader, min(_HELD, count)))
        self._count = count if self._held else 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(self._held), self._count)


def with_ready_batches(loaders: dict[str, Any], owner: LightningDataModule | LightningModule, count: int) -> None:
    """Replace our loader, or that of the user's data module, by its first batches."""
    if "train_dataloaders" in loaders:
        loader = loaders["train_dataloaders"]
        loaders["train_dataloaders"] = ReadyBatches(loader, count)
        loader.close()
        return
    make = owner.train_dataloader

    def train_dataloader() -> ReadyBatches:
        return ReadyBatches(make(), count)

    owner.train_dataloader = train_dataloader  # type: ignore[method-assign]


def main(request: ProfileRequest, report: Report) -> StepProfile:
    """Take the steps on all ranks, and answer with what rank 0 saw.

    Raises:
        UsageError: the training ends before a step was timed, or its settings are refused.
        UserCodeError: the module raised.
    """
    if "RANK" in os.environ:
        return profiled(request, report)
    os.environ.update(_place(request, 0, _free_port()))
    others = [_start(request, rank) for rank in range(1, request.ranks)]
    try:
        return profiled(request, report)
    except Interrupted as error:
        raise _cause(others) or error from error
    finally:
        for process, _ in others:
            process.kill()


def profiled(request: ProfileRequest, report: Report) -> StepProfile:
    """This rank's part; errors as the error tree has them."""
    context = _context(request)
    prepare(context)
    threads = os.environ["OMP_NUM_THREADS"].partition(",")[0]
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))  # torch is imported already, and has read the variable
    try:
        return _profiled(context, request, report)
    except TrainwrightError:
        raise
    except BaseException as error:
        raise classify(error, context.project, timeout_s=context.train.collective_timeout_s) from error


def _profiled(context: Context, request: ProfileRequest, report: Report) -> StepProfile:
    plan, loaders = our_loaders(context)
    loader = loaders.get("train_dataloaders")
    accumulate = plan.accumulate if plan else 1
    on_gpu = torch.cuda.is_available()
    clock = PhaseClock(settle=torch.cuda.synchronize if on_gpu else None)
    steps = ProfiledSteps(request, clock, accumulate, traces=context.rank == 0)
    owned = {**owned_settings(context, plan), "logger": History()}
    callbacks = [CountRows(), ValidationClock(clock)]
    module, datamodule, trainer = build_all(
        context.settings, context.project, str(context.dataset_path or ""), owned, callbacks
    )
    if request.compiled:
        compile_parts(module)
    if request.batches_ready:
        with_ready_batches(loaders, datamodule or module, (request.warmup + request.steps) * accumulate)
    install(trainer, steps, steps)
    time_parts(trainer, clock)
    call_at_the_end(trainer, lambda: steps.close(trainer))
    report(Advanced(done=1, long=True))
    try:
        with contextlib.suppress(Done):
            trainer.fit(module, datamodule=datamodule, **with_view(loaders))
    finally:
        if isinstance(loader, TrainLoader):
            loader.close()
    if not steps.step_s:
        raise UsageError(
            f"The training ends before a step can be timed: the first {request.warmup} steps are its warm-up.",
            remedy="Raise trainer.max_epochs, max_steps or limit_train_batches, or give more data.",
        )
    spent = loader.spent if isinstance(loader, TrainLoader) else {"your loader": 1.0}
    return _answer(context, plan, trainer.strategy.root_device, steps, spent)


def _answer(
    context: Context, plan: Plan | None, device: torch.device, steps: ProfiledSteps, spent: Mapping[str, float]
) -> StepProfile:
    counter = steps.counter if steps.counted else None
    rates = peaks(device, _dtype(context)) if counter is not None else (0.0, 0.0)
    return StepProfile(
        device=device.type,
        world_size=context.world_size,
        rows=context.train.global_batch_size,
        accumulate=plan.accumulate if plan else 1,
        steps_per_epoch=plan.steps_per_epoch if plan else 0,
        step_s=steps.step_s,
        phases=steps.phases,
        data_cause=max(spent, key=lambda name: spent[name], default=""),
        exchange_s=steps.exchange_s,
        flops=counter.flops if counter else 0,
        bytes=counter.bytes if counter else 0,
        peak_flops=rates[0],
        peak_bytes=rates[1],
        checkpoint_s=steps.checkpoint_s,
        traced=steps.traced,
        cut=steps.cut,
        operations=steps.operations,
    )


def compile_parts(module: LightningModule) -> None:
    """Compile each submodule of a module that is called as one."""
    for part in module.children():
        if not isinstance(part, Metric | nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
            part.compile()


def _dtype(context: Context) -> torch.dtype:
    """The type in which the module multiplies."""
    precision = str((context.lightning.get("trainer") or {}).get("precision") or "")
    return _HALF.get(precision.partition("-")[0], torch.float32)


def _context(request: ProfileRequest) -> Context:
    """The context of a rank that has neither store nor checkpoint."""
    train = TrainSpec.model_validate(request.train)
    assert isinstance(train.lightning, dict), "the request inlines the Lightning config"
    # Loggers of the config would report this training to their servers.
    config: dict[str, Any] = dict(train.lightning)
    config["trainer"] = {name: value for name, value in (config.get("trainer") or {}).items() if name != "logger"}
    return Context(
        training="",
        generation=0,
        train=train.model_copy(update={"lightning": config}),
        lightning=config,
        dataset=request.dataset,
        mixture=request.mixture,
        dataset_path=Path(request.dataset_path) if request.dataset_path else None,
        init_from=None,
        resume=None,
        skip=[],
        stop=None,
        provenance={},
        targets=[],
        sealed={},
        heartbeat_s=1.0,
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=request.ranks,
        local_world_size=request.ranks,
        devices=request.devices,
        nodes=request.nodes,
        scratch=Path(request.folder),
        project=Path(request.project).resolve(),
        store_uri="",
        store_options={},
    )


def _start(request: ProfileRequest, rank: int) -> tuple[subprocess.Popen[bytes], Path]:
    """Another rank of the same request, and the file of its answer."""
    answer = Path(sys.argv[2]).with_name(f"answer-{rank}.json")
    environment = {**os.environ, **_place(request, rank, int(os.environ["MASTER_PORT"])), PARENT: str(os.getpid())}
    return subprocess.Popen(module_command(PROFILE.module, sys.argv[1], str(answer)), env=environment), answer


def _cause(others: Sequence[tuple[subprocess.Popen[bytes], Path]]) -> TrainwrightError | None:
    """Why another rank ended, which is why the connection to it was lost."""
    until = time.monotonic() + _ENDS_WITHIN_S
    while time.monotonic() < until and not any(answer.exists() for _, answer in others):
        time.sleep(0.05)
    for _, answer in others:
        found = json.loads(answer.read_text()) if answer.exists() else {}
        if "error" in found and not isinstance(error := from_json(found["error"]), Interrupted):
            return error
    return None


def _place(request: ProfileRequest, rank: int, port: int) -> dict[str, str]:
    """The variables with which torchrun places a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % request.devices),
        "GROUP_RANK": str(rank // request.devices),
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_WORLD_SIZE": str(request.devices),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "profile",
    }


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    child_main(PROFILE, main)
