"""The child process that profiles a short training: `python -m training.profile REQUEST ANSWER`.

It trains in a scratch folder as a rank does, and neither opens a store nor writes a checkpoint. This process is rank 0;
it starts the other ranks beside itself. After some steps of warm-up, `torch.profiler` records the timed steps, and on
several ranks some more that exchange no gradients.

Lightning tells its profiler where a step is, so the parts of a step have names in the record. Each second belongs to
the innermost part. On CUDA, the end of each part waits for the device: kernels run behind the code that launches them.

The trace is in Chrome's format, which ui.perfetto.dev opens. It holds names and times, and no values.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.profilers import Profiler
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity, record_function, schedule
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
from training.loader.loaders import CountRows, ReadyBatches, with_view
from training.order import Plan
from training.user.ready import build_all

# Steps without an exchange of gradients.
_UNSYNCHRONISED = 10
# What is none of the other parts: callbacks, logging, schedules.
BETWEEN = "callbacks"
# The last word of an action of Lightning's → the part of a step that it is.
PARTS = {
    "batch_to_device": "transfer",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
}
# Recorded within a step, and not part of it.
_APART = ("validation", "first checkpoint", "checkpoint")
_PREFIX, _STEP = "trainwright: ", "ProfilerStep"
_MOST_OPERATIONS = 12
# Matrix products, convolutions, attention and recurrent layers, which are bound by arithmetic.
_PRODUCTS = re.compile("mm|conv|linear|attention|lstm|gru|rnn")
# An operation that takes less on average costs more to call than to compute.
_SHORT_S = 20e-6
# What torch writes of the machine and of paths.
_LEFT_OUT = ("traceName", "distributedInfo", "host_name", "trace_id")
# Settings of the Trainer that a profile replaces: loggers would report this training to their servers.
_OURS = ("logger", "profiler")
# How long a rank that failed may take to say so, or to end.
_ENDS_WITHIN_S = 60.0


class Done(BaseException):
    """Leaves the training once all is measured, without the validation and the hooks at its end."""


class NamedParts(Profiler):
    """Names the parts of a step in torch's record, as Lightning begins and ends them."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[str, record_function] = {}

    def start(self, action_name: str) -> None:
        """Begin a part; other actions of Lightning's are passed over."""
        part = PARTS.get(action_name.rpartition(".")[2])
        if part is not None:
            self.begin(action_name, part)

    def stop(self, action_name: str) -> None:
        """End the part, once the device has done its work."""
        record = self._running.pop(action_name, None)
        if record is not None:
            _wait_for_device()
            record.__exit__(None, None, None)

    def begin(self, action_name: str, part: str) -> None:
        """Begin a part that Lightning has no action for."""
        _wait_for_device()
        self._running[action_name] = record_function(f"{_PREFIX}{part}")
        self._running[action_name].__enter__()


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class ProfiledSteps(L.Callback):
    """Runs torch's profiler from step to step of a training, and ends the training once all is measured.

    Attributes:
        current: number of the step that is running, from 0.
        profiler: has the record once `close` was called.
    """

    def __init__(self, request: ProfileRequest, parts: NamedParts, accumulate: int) -> None:
        self._request, self._parts, self._accumulate = request, parts, accumulate
        self._micro_batches = self.current = 0
        self._stack = contextlib.ExitStack()
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        exchanges = request.ranks > 1 and request.train.get("strategy") == "ddp"
        self._recorded = request.steps + (_UNSYNCHRONISED if exchanges else 0)
        steps = schedule(wait=0, warmup=request.warmup, active=self._recorded, repeat=1)
        self.profiler = torch.profiler.profile(activities=activities, schedule=steps)

    def between_steps(self, loop: StepLoop, fetcher: Any) -> None:
        """Called before each micro-batch is fetched."""
        self.current, within = divmod(self._micro_batches, self._accumulate)
        self._micro_batches += 1
        if within:
            return
        if self.current == self._request.warmup + self._recorded:
            self.close(loop.trainer)
            raise Done
        if self.current == 0:
            self.profiler.start()
        else:
            self.profiler.step()
        if self.current == self._request.warmup + self._request.steps:
            model = loop.trainer.strategy.model
            assert isinstance(model, nn.parallel.DistributedDataParallel)
            self._stack.enter_context(model.no_sync())

    def passes_over(self, loop: StepLoop) -> bool:
        """No micro-batch is skipped."""
        return False

    def enter(self, place: str) -> None:
        """Called when a batch is asked for, and when it is there."""
        self._parts.begin("fetch", "data") if place == "fetching" else self._parts.stop("fetch")

    def waited(self, seconds: float) -> None:
        """Nothing to add: the record has it."""

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation is not part of a step."""
        self._parts.begin("validation", "validation")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The steps continue."""
        self._parts.stop("validation")

    def close(self, trainer: L.Trainer) -> None:
        """Measure how long a checkpoint holds the steps, and end the record; the training may have ended before."""
        self._stack.close()
        staging = Staging()
        for part in ("first checkpoint", "checkpoint"):  # the second one goes into buffers that are there already
            self._parts.begin(part, part)
            capture(dump_checkpoint(trainer), {}, trainer.global_rank, staging=staging)
            staging.wait()
            self._parts.stop(part)
        self.profiler.stop()


def steps_of(events: Iterable[FunctionEvent]) -> list[dict[str, float]]:
    """Seconds of the parts of each recorded step, in order. What is within two parts belongs to the inner one."""
    steps: dict[float, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in events:
        if not event.name.startswith((_PREFIX, _STEP)):
            continue
        around = _named_from(event)
        step = around[-1]
        if not step.name.startswith(_STEP):  # before the first step, or after the last
            continue
        seconds = event.time_range.elapsed_us() / 1e6
        parts = steps[step.time_range.start]
        parts[_part_name(event)] += seconds
        if event is not step:
            parts[_part_name(around[1])] -= seconds
    return [dict(steps[start]) for start in sorted(steps)]


def _named_from(event: FunctionEvent) -> list[FunctionEvent]:
    """The event and the parts around it, up to its step."""
    named, parent = [event], event.cpu_parent
    while parent is not None:
        if parent.name.startswith((_PREFIX, _STEP)):
            named.append(parent)
        parent = parent.cpu_parent
    return named


def _part_name(event: FunctionEvent) -> str:
    return BETWEEN if event.name.startswith(_STEP) else str(event.name.removeprefix(_PREFIX))


def exchange_s(synchronised: list[dict[str, float]], others: list[dict[str, float]]) -> float | None:
    """Seconds that the backward passes of the middle step take longer than those of one without an exchange."""
    if not others:
        return None
    middle, alone = (
        statistics.median(parts.get("backward", 0.0) for parts in steps) for steps in (synchronised, others)
    )
    return max(0.0, middle - alone)


def operations_of(averages: EventList) -> list[Operation]:
    """The operations with their own time, longest first; on CUDA, that of the device."""
    on_device = any(row.self_device_time_total for row in averages)
    rows = [
        Operation(
            name=str(row.key)[:80],
            calls=row.count,
            seconds=(row.self_device_time_total if on_device else row.self_cpu_time_total) / 1e6,
        )
        for row in averages
        if row.device_type == DeviceType.CPU
        and not row.is_user_annotation
        and not str(row.key).startswith(("autograd::", _PREFIX, _STEP))
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def write_trace(profiler: torch.profiler.profile, to: Path) -> None:
    """Write torch's trace without names of the machine, compressed."""
    raw = to.with_name("torch-trace.json")
    profiler.export_chrome_trace(str(raw))
    # Python reads and writes NaN and Infinity, which are not JSON: the viewer would refuse the whole file.
    trace = json.loads(raw.read_text(errors="replace"), parse_constant=lambda _: None)
    raw.unlink()
    with gzip.open(to, "wt", compresslevel=6) as file:
        json.dump({name: value for name, value in trace.items() if name not in _LEFT_OUT}, file, allow_nan=False)


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
    os.environ.update(_place(request, 0, find_free_network_port()))
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
    parts = NamedParts()
    steps = ProfiledSteps(request, parts, accumulate)
    owned = {**owned_settings(context, plan), "logger": History(), "profiler": parts}
    module, datamodule, trainer = build_all(
        context.settings, context.project, str(context.dataset_path or ""), owned, [CountRows(), steps]
    )
    if request.compiled:
        compile_parts(module)
    if request.batches_ready:
        with_ready_batches(loaders, datamodule or module, (request.warmup + request.steps) * accumulate)
    install(trainer, steps, steps)
    call_at_the_end(trainer, lambda: steps.close(trainer))
    report(Advanced(done=1, long=True))
    try:
        with contextlib.suppress(Done):
            trainer.fit(module, datamodule=datamodule, **with_view(loaders))
    finally:
        if isinstance(loader, TrainLoader):
            loader.close()
    if steps.current < request.warmup:
        raise UsageError(
            f"The training ends before a step can be timed: the first {request.warmup} steps are its warm-up.",
            remedy="Raise trainer.max_epochs, max_steps or limit_train_batches, or give more data.",
        )
    if context.rank == 0:
        write_trace(steps.profiler, Path(request.folder) / TRACE)
    spent = loader.split.spent if isinstance(loader, TrainLoader) else {"your loader": 1.0}
    return _answer(request, context, plan, steps.profiler, spent)


def _answer(
    request: ProfileRequest,
    context: Context,
    plan: Plan | None,
    profiler: torch.profiler.profile,
    spent: Mapping[str, float],
) -> StepProfile:
    recorded = steps_of(profiler.events())
    timed, unsynchronised = recorded[: request.steps], recorded[request.steps :]
    operations = operations_of(profiler.key_averages())
    busy = [row for row in operations if row.seconds >= _SHORT_S * row.calls]
    return StepProfile(
        device="cuda" if torch.cuda.is_available() else "cpu",
        world_size=context.world_size,
        rows=context.train.global_batch_size,
        accumulate=plan.accumulate if plan else 1,
        steps_per_epoch=plan.steps_per_epoch if plan else 0,
        step_s=[sum(seconds for part, seconds in parts.items() if part not in _APART) for parts in timed],
        phases={
            part: sum(parts.get(part, 0.0) for parts in timed)
            for part in dict.fromkeys(part for parts in timed for part in parts if part not in _APART)
        },
        data_cause=max(spent, key=lambda name: spent[name], default=""),
        exchange_s=exchange_s(timed, unsynchronised),
        traced=len(recorded),
        busy_s=sum(row.seconds for row in busy),
        products_s=sum(row.seconds for row in busy if _PRODUCTS.search(row.name)),
        checkpoint_s=recorded[-1].get("checkpoint"),
        operations=operations[:_MOST_OPERATIONS],
    )


def compile_parts(module: LightningModule) -> None:
    """Compile each submodule of a module that is called as one."""
    for part in module.children():
        if not isinstance(part, Metric | nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
            part.compile()


def _context(request: ProfileRequest) -> Context:
    """The context of a rank that has neither store nor checkpoint."""
    train = TrainSpec.model_validate(request.train)
    assert isinstance(train.lightning, dict), "the request inlines the Lightning config"
    config: dict[str, Any] = dict(train.lightning)
    config["trainer"] = {name: value for name, value in (config.get("trainer") or {}).items() if name not in _OURS}
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
    while time.monotonic() < until and not any(one.poll() is not None or answer.exists() for one, answer in others):
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


if __name__ == "__main__":
    child_main(PROFILE, main)
