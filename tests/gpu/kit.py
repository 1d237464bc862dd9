"""Everything that only a GPU can show, measured in one go: `bash tests/gpu/run.sh --out DIR` runs this file.

Each row of the table is a process of its own with a deadline; when that is over, the process is killed with all its
descendants, and what it had found by then counts. Ours is a gang as the conductor starts it (node, torchrun, rank). The
bare loop beside it is `benchmarks/loops.py`. The table is printed and saved after each row. `--dry-run` does the same
on the CPU with tiny sizes: it proves that each line runs; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path[:0] = [str(ROOT), str(BENCHMARKS)]

import common  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from noise import Median  # noqa: E402

from data_contracts.errors import TrainwrightError  # noqa: E402
from data_contracts.handoffs import Checkpoint, Dataset  # noqa: E402
from data_contracts.messages.commands import MODULE_MEMORY, SizeRequest  # noqa: E402
from data_contracts.messages.gang import Launch  # noqa: E402
from data_contracts.pipeline_spec import RetrySpec, TrainSpec  # noqa: E402
from infra.child import run_child  # noqa: E402
from infra.code_bundle import CodeBundle, pack  # noqa: E402
from infra.gang.conductor import (  # noqa: E402
    GangOutcome,
    TrainingRequest,
    conduct,
)
from infra.gpus import installed_nvml  # noqa: E402
from infra.machine import threads_per_process  # noqa: E402
from infra.processes.processes import MARK, find_marked, kill_marked, marked_env, new_mark, terminable  # noqa: E402
from infra.store import open_store  # noqa: E402
from training import formats  # noqa: E402
from training.formats.schema import FILE, columns_of, conform_rows, finish, narrow, to_json  # noqa: E402  # noqa: E402

END_S = 540
# Kept free at the end, for the last row to be killed and the table to be written.
RESERVE_S = 6
# Nothing starts in less.
LEAST_S = 5
PACKAGES = ("torch", "lightning", "torchmetrics", "triton", "numpy", "pyarrow", "safetensors", "blake3", "pydantic")
PRECISION = "bf16-mixed"
NEVER = RetrySpec(preempted=0, node_lost=0, hung=0, oom=0, diverged=0, storage=0, crashed=0)
# Four of them fit a GPU of 80 GB at once.
GPT = {"size": common.GPT_2, "batch_size": 12, "rows": 4096, "warm": 12, "steps": 40, "turns": 4}
IMAGES = {"size": {"side": 160, "width": 256, "depth": 8}, "batch_size": 128, "rows": 4096}
# Where no speed is measured: its checkpoints take a third of a second.
SMALL = {"vocabulary": 8192, "depth": 4}
TINY_GPT = {"size": common.TINY, "batch_size": 4, "rows": 64, "warm": 2, "steps": 2, "turns": 1}
TINY_IMAGES = {"size": {"side": 16, "width": 8, "depth": 1}, "batch_size": 4, "rows": 64}


# ---- what rows share


@dataclass
class Bench:
    """A row's place and sizes, and what it has found.

    Attributes:
        folder: its own.
        tiny: whether it is a dry run on the CPU.
    """

    folder: Path
    tiny: bool

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.store = open_store(str(self.folder / "store"))
        self.device, self.accelerator = ("cpu", "cpu") if self.tiny else ("cuda", "gpu")
        self.gpt, self.images = (TINY_GPT, TINY_IMAGES) if self.tiny else (GPT, IMAGES)

    def new_folder(self, name: str) -> str:
        """A new folder of a training's notes."""
        (self.folder / name).mkdir()
        return str(self.folder / name)

    def report(self, name: str, value: str, met: bool | None = None) -> None:
        """Note a figure at once; `met`: whether it reaches its goal, None where it has none."""
        with (self.folder / "found.jsonl").open("a") as file:
            file.write(json.dumps({"name": name, "value": value, "met": met}) + "\n")

    @cached_property
    def code(self) -> CodeBundle:
        """The project of the modules, sealed."""
        project = self.folder / "project"
        project.mkdir()
        (project / "pyproject.toml").write_text('[project]\nname = "kit"\nversion = "0"\n')
        for path in (HERE / "models.py", BENCHMARKS / "modules.py", BENCHMARKS / "loops.py"):
            shutil.copy(path, project)
        return pack(project, self.store)


@dataclass
class Training:
    """A training that ours and the bare loop can carry out.

    Attributes:
        model: class of models.py; size: its arguments.
        columns: of the data, name → rows.
    """

    bench: Bench
    model: str
    size: dict[str, int]
    columns: dict[str, np.ndarray]
    batch_size: int

    def ours(self, name: str, steering: dict[str, Any], trainer: dict[str, Any], **train: Any) -> GangOutcome:
        """Train as a gang until it ends; raises what ended it, which is never retried unless `node_lost` says so."""
        with self.bench.lock:  # made by the first of several threads
            dataset, code = self.dataset, self.bench.code
        retry = NEVER.model_copy(update={"node_lost": train.pop("node_lost", 0)})
        launch = Launch(
            training=f"trainings/{name}-0",
            nodes=1,
            devices=1,
            heartbeat_s=train.pop("heartbeat_s", 1.0),
            silence_s=60.0,
            hang_s=train.get("hang_timeout_s", 600.0),
            code=code.ref,
            dataset=dataset,
            train=self.section(steering, trainer, **train),
            sealed={"train": {}, "code_digest": code.digest, "dataset_id": dataset.ref.id},
            provenance={"run_id": "kit"},
        )
        request = TrainingRequest(launch=launch, holder="kit", retry=retry, keep=2, select=None, rollcall_timeout_s=300)
        return conduct(self.bench.store, request)

    def section(self, steering: dict[str, Any], trainer: dict[str, Any], **train: Any) -> dict[str, Any]:
        """The spec's `train`."""
        arguments = {"steering": steering, "size": self.size}
        written = {
            "lightning": {
                "model": {"class_path": f"models.{self.model}", "init_args": arguments},
                "trainer": {
                    "accelerator": self.bench.accelerator,
                    "precision": PRECISION,
                    "max_epochs": -1,
                    **trainer,
                },
            },
            "strategy": "single",
            "global_batch_size": self.batch_size,
            "batch": {name: name for name in self.columns},
            "checkpoint": {"every_steps": 10**9},
            "hang_timeout_s": 600.0,
            **train,
        }
        return TrainSpec.model_validate(written).model_dump(mode="json")

    def bare(self, steering: dict[str, Any], **settings: Any) -> None:
        """Train with a bare loop until it ends."""
        with self.bench.lock:
            data, _ = str(self.arrays), self.bench.code
        arguments = {"steering": steering, "size": self.size}
        given = {
            "module": "models", "model": self.model, "init_args": arguments, "data": data, "steps": sys.maxsize,
            "batch_size": self.batch_size, "accelerator": self.bench.accelerator, "precision": PRECISION,
            **settings,
        }  # fmt: skip
        alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        # Each compiles into a cache of its own; as many threads as ours gives a rank.
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.bench.folder / "inductor")}
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads_per_process(1)))}
        command, folder = [sys.executable, "loops.py", "bare", json.dumps(given)], self.bench.folder / "project"
        environment = {**os.environ, **alone, **cache, **threads}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the bare loop ended with exit code {done.returncode}: {done.stderr[-2000:]}")

    @property
    def name(self) -> str:
        """Tells it from another model, or another size, of the same row."""
        return f"{self.model.lower()}{sum(self.size.values())}"

    @cached_property
    def arrays(self) -> Path:
        """Folder with the columns as NumPy's files."""
        folder = self.bench.folder / f"arrays-{self.name}"
        common.store(self.columns, folder)
        return folder

    @cached_property
    def dataset(self) -> Dataset:
        """The columns as a sealed dataset of one split, in one shard."""
        arrays = {name: pa.array(each.reshape(-1)) for name, each in self.columns.items()}
        cells = {
            name: pa.FixedSizeListArray.from_arrays(array, self.columns[name].shape[1])
            if self.columns[name].ndim > 1
            else array
            for name, array in arrays.items()
        }
        table = pa.table({"id": pa.array(range(len(next(iter(self.columns.values()))))), **cells})
        narrowed, form = narrow(table), formats.get("parquet")
        table = conform_rows(narrowed, finish(narrowed.schema, table.schema))
        name = f"train-00000{form.SUFFIX}"
        path = self.bench.folder / f"{self.name}-{name}"
        formats.write_shard("parquet", table, path)
        writer = self.bench.store.writer(f"datasets/{self.name}-0")
        entries = [writer.put(FILE, json.dumps(to_json(table.schema)).encode()), writer.put(name, path)]
        ref = writer.seal("dataset", {}, {}, entries)
        shard = {"path": name, "rows": table.num_rows, "bytes": entries[1].bytes, "blake3": entries[1].blake3}
        return Dataset.from_json(
            {
                "ref": ref.to_json(),
                "key": self.name,
                "format": "parquet",
                "splits": {"train": [{"uri": ref.uri, **shard}]},
                "columns": columns_of(table.schema),
            }
        )


def gpt(bench: Bench, *, small: bool = False, **other: int) -> Training:
    """The GPT on drawn tokens; `other`: sizes that differ."""
    size = {**bench.gpt["size"], **(SMALL if small and not bench.tiny else {}), **other}
    shape = (bench.gpt["rows"], size["context"] + 1)
    tokens = np.random.default_rng(common.SEED).integers(0, size["vocabulary"], shape, np.uint16)
    return Training(bench, "GPT", size, {"tokens": tokens}, bench.gpt["batch_size"])


def images(bench: Bench, model: str = "Images", **size: int) -> Training:
    """A model of drawn pictures."""
    rows, sized = bench.images["rows"], {**bench.images["size"], **size}
    draw = np.random.default_rng(common.SEED)
    columns = {
        "image": draw.integers(0, 256, (rows, 3 * sized["side"] ** 2), np.uint8),
        "label": draw.integers(0, 10, rows, np.int64),
    }
    return Training(bench, model, sized, columns, bench.images["batch_size"])


class Turns:
    """Trainings that run at the same time, each in its turn alone: they wait at their gates (`models.Steered`).

    Args:
        starts: name → what carries the training out, given its steering.
    """

    def __init__(self, bench: Bench, warm: int, steps: int, starts: dict[str, Callable[[dict[str, Any]], Any]]) -> None:
        self._pool = ThreadPoolExecutor(len(starts))
        self.folders = {name: Path(bench.new_folder(name)) for name in starts}
        self.runs: dict[str, Future[Any]] = {}
        for name, start in starts.items():
            self.runs[name] = self._pool.submit(start, {"out": str(self.folders[name]), "turns": [warm, steps]})

    def take(self, names: Sequence[str], turns: int) -> dict[str, list[float]]:
        """Seconds a step of each in each of its turns, one after another."""
        taken: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            self.wait(name, "ready-0")
        for turn in range(turns):
            for name in names:
                (self.folders[name] / f"go-{turn}").touch()
                taken[name].append(float(self.wait(name, f"turn-{turn}")))
        return taken

    def wait(self, name: str, file: str) -> str:
        """The text of a file of a training, once it is there."""
        path = self.folders[name] / file
        while not path.exists():
            if self.runs[name].done():
                raise RuntimeError(f"{name} ended: {self.runs[name].exception() or 'too early'}")
            time.sleep(0.005)
        return path.read_text()


def notes(folder: Path) -> dict[str, Any]:
    """What a module has noted."""
    found: dict[str, Any] = json.loads((folder / "notes.json").read_text())
    return found


def compare(bench: Bench, taken: dict[str, list[float]], ours: str, bare: str, what: str, least: float) -> None:
    """Report how fast ours is beside the bare loop."""
    ratio = common.ratio(taken[bare], taken[ours], digits=4)
    text = f"{ratio:.4f} ({ratio.pairs[0]:.4f} to {ratio.pairs[-1]:.4f}, {len(ratio.pairs)} pairs)"
    step_ms = 1000 * Median(taken[ours], 6)
    bench.report(what, f"{text}; a step {step_ms:.2f} ms", ratio >= least)


def weights(bench: Bench, checkpoint: Checkpoint) -> dict[str, str]:
    """The digest of each file with tensors of a checkpoint, every byte checked."""
    manifest = bench.store.verify(checkpoint.ref.uri)
    return {file.path: file.blake3 for file in manifest.files if file.path.endswith(".safetensors")}


# ---- the rows


def compiled(bench: Bench) -> dict[str, str]:
    """The steering of a compiled model. A dry run leaves out the compiler's last stages, which take a minute."""
    return {"compiled": "whole", "backend": "eager" if bench.tiny else "inductor"}


def gpt_beside_bare(bench: Bench) -> None:
    """Tokens of a GPT, ours beside a bare loop, eager and compiled."""
    training, whole = gpt(bench), compiled(bench)
    turns = Turns(
        bench,
        bench.gpt["warm"],
        bench.gpt["steps"],
        {
            "ours compiled": lambda steering: training.ours("compiled", {**steering, **whole}, {}),
            "bare compiled": lambda steering: training.bare({**steering, **whole}),
            "ours eager": lambda steering: training.ours("eager", steering, {}),
            "bare eager": lambda steering: training.bare(steering),
        },
    )
    failed: list[RuntimeError] = []
    for kind in ("compiled", "eager"):
        names = [f"bare {kind}", f"ours {kind}"]
        try:
            taken = turns.take(names, bench.gpt["turns"])
        except RuntimeError as error:
            failed.append(error)
            continue
        compare(bench, taken, names[1], names[0], f"{kind}, of the bare loop", 0.99)
        tokens_per_s = [bench.gpt["batch_size"] * bench.gpt["size"]["context"] / min(taken[name]) for name in names]
        peak = next((flops for part, flops in common.PEAK.items() if part in card()), float("inf"))
        use = [f"{each * common.flops_per_token(bench.gpt['size']) / peak:.1%}" for each in tokens_per_s]
        shown = f"bare {tokens_per_s[0]:,.0f} ({use[0]}), ours {tokens_per_s[1]:,.0f} ({use[1]})"
        bench.report(f"{kind}, tokens/s (FLOPs utilisation)", shown)
    if failed:  # only now, for the other kind has its result
        raise failed[0]


def killed_and_resumed(bench: Bench) -> None:
    """A rank killed by SIGKILL, with deterministic algorithms; what these cost."""
    training = gpt(bench)
    turns = Turns(
        bench,
        bench.gpt["warm"],
        bench.gpt["steps"] // 2,
        {
            name: lambda steering, name=name: training.ours(name, steering, {"deterministic": name == "deterministic"})
            for name in ("plain", "deterministic")
        },
    )
    bitwise(bench, "single", {})
    taken = turns.take(["plain", "deterministic"], min(bench.gpt["turns"], 2))
    cost = common.ratio(taken["deterministic"], taken["plain"], digits=3)
    bench.report("a step with deterministic algorithms", f"{cost:.3f} times as long")


def bitwise(bench: Bench, name: str, steering: dict[str, Any], strategy: str = "single") -> None:
    """Whether a training that was killed once ends with the weights of one that was not; both run at the same time."""
    training = gpt(bench, small=True)
    every, kill_at, last = (2, 5, 6) if bench.tiny else (8, 20, 24)
    folders = {kind: Path(bench.new_folder(f"{name}-{kind}")) for kind in ("whole", "killed")}

    def run(kind: str) -> GangOutcome:
        return training.ours(
            f"{name}-{kind}",
            {"out": str(folders[kind]), **steering, **({"kill_at": kill_at} if kind == "killed" else {})},
            {"max_steps": last, "deterministic": True},
            checkpoint={"every_steps": every},
            node_lost=1,
            strategy=strategy,
        )

    with ThreadPoolExecutor(2) as pool:
        whole, killed = pool.map(run, folders)
    resumed_at = notes(folders["killed"])["resumed_at"]
    same = weights(bench, whole.checkpoint) == weights(bench, killed.checkpoint)
    both = f"killed before step {kill_at}, resumed from step {resumed_at}, {killed.generations} generations"
    was_resumed = (folders["killed"] / "killed").exists() and resumed_at > 0
    equal = "equal to the bit" if same else "DIFFERENT"
    bench.report(f"weights, {name}", f"{equal} after step {killed.checkpoint.step} ({both})", same and was_resumed)


def checkpoints(bench: Bench) -> None:
    """What a checkpoint costs the steps."""
    import checkpoint as benchmark

    num_bytes, rows, steps, rounds = (10**6, 8, 2, 1) if bench.tiny else (15 * 10**8, 4096, 20, 3)
    work = benchmark.Work(bench.folder, num_bytes, bench.device, rows)
    pairs = [(work.memory_copy(), work.ours_stall()) for _ in range(rounds + 1)][1:]
    ratio = Median([stall / copy for copy, stall in pairs], 3)
    copy_s, stall_s = (statistics.median(each) for each in zip(*pairs, strict=True))
    shown = f"{1000 * stall_s:.1f} ms beside {1000 * copy_s:.1f} ms for {work.num_bytes / 1e6:,.0f} MB"
    bench.report("stall, of the pinned copy to the host", f"{ratio:.3f}: {shown}", ratio <= 1.3)
    work.steps(steps)
    beside = Median([alone / saving for alone, saving in (work.slowed(steps) for _ in range(rounds))], 3)
    bench.report("steps beside a save, of those alone", f"{beside:.3f}", beside >= 0.95)
    bench.report("whole save", f"{work.ours_save():.2f} s, hashed, synced and sealed")


def synchronisations(bench: Bench) -> None:
    """How often the host waits for the device where a bare loop does not."""
    first, count = (2, 16) if bench.tiny else (16, 64)
    training, last = gpt(bench, small=True), first + count + 2
    steering = {name: {"out": bench.new_folder(name), "profile": [first, first + count]} for name in ("ours", "bare")}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(training.bare, steering["bare"], steps=last)
        training.ours("waits", steering["ours"], {"max_steps": last})
        beside.result()
    ours, bare = (notes(Path(each["out"])) for each in steering.values())
    added = ours["steps_with_waits"] - bare["steps_with_waits"]
    shown = f"{added} of {count} (ours {ours['steps_with_waits']}, bare {bare['steps_with_waits']})"
    # Lightning reads what is logged after each 50th step.
    bench.report("steps in which we wait", shown, added <= count / 16 + count // 50)
    bench.report("calls that wait", f"ours {ours['waits']}, bare {bare['waits']}")


def loader_to_device(bench: Bench) -> None:
    """Our loader beside a batch that lies on the device."""
    training = images(bench)
    warm, steps, turns = (2, 2, 1) if bench.tiny else (64, 48, 3)
    both = Turns(
        bench,
        warm,
        steps,
        {
            "bare": lambda steering: training.bare(steering, resident=True),
            "ours": lambda steering: training.ours("loader", steering, {}),
        },
    )
    taken = both.take(["bare", "ours"], turns)
    megabytes = sum(each[: training.batch_size].nbytes for each in training.columns.values()) / 1e6
    compare(bench, taken, "ours", "bare", f"batches of {megabytes:.1f} MB, of one that lies there", 0.98)
    (both.folders["ours"] / "end").touch()
    outcome: GangOutcome = both.runs["ours"].result()
    noted = notes(both.folders["ours"])
    share = (outcome.summary.wait_share or 0.0) * noted["total_s"] / (noted["total_s"] - noted["waited_s"])
    bench.report("waiting for data", f"{share:.2%} of the steps' time", share <= 0.01)


def sharded(bench: Bench) -> None:
    """FSDP2 over one rank, ours beside a bare `fully_shard`; and its first loss beside that of a rank without it."""
    training, alone = gpt(bench), {"out": bench.new_folder("one-rank")}
    turns = Turns(
        bench,
        bench.gpt["warm"],
        bench.gpt["steps"],
        {
            "bare": lambda steering: training.bare(steering, sharded=True),
            "ours": lambda steering: training.ours("sharded", steering, {}, strategy="fsdp"),
        },
    )
    training.ours("one-rank", alone, {"max_steps": 1})
    taken = turns.take(["bare", "ours"], min(bench.gpt["turns"], 3))
    compare(bench, taken, "ours", "bare", "FSDP2, of the bare loop", 0.99)
    losses = [notes(Path(folder))["first_loss"] for folder in (turns.folders["ours"], alone["out"])]
    bench.report("first loss, with FSDP2 and without", " and ".join(map(repr, losses)), losses[0] == losses[1])


def faults(bench: Bench) -> None:
    """What is said of a rank that runs out of memory, fails an assertion on the device, or never ends."""
    # Short steps: a hang counts after ten times the longest pause between two reports, which come every 16 steps.
    training, limit_s = gpt(bench, small=True, **({} if bench.tiny else {"context": 128})), 4.0
    wanted = {"oom": "out_of_memory", "assert": "user_code", "hang": "hung"}
    step = 2 if bench.tiny else 400  # 2 s of steps

    def run(what: str) -> tuple[float, TrainwrightError | None]:
        folder = bench.new_folder(what)
        try:
            steering = {"out": folder, "fault": [what, step]}
            training.ours(what, steering, {"max_steps": step + 50}, hang_timeout_s=limit_s, heartbeat_s=0.1)
        except TrainwrightError as error:
            return time.monotonic() - notes(Path(folder)).get("fault_at", 0.0), error
        return 0.0, None

    with ThreadPoolExecutor(len(wanted)) as pool:
        for what, (after_s, error) in zip(wanted, pool.map(run, wanted), strict=True):
            cause, rank = (None, None) if error is None else (error.cause, error.details.get("rank"))
            right = (cause, rank) == (wanted[what], 0)
            in_time = what != "hang" or after_s <= limit_s + 5
            sentence = "" if error is None else error.message.splitlines()[0][:160]
            bench.report(what, f"{cause}, rank {rank}, after {after_s:.1f} s: {sentence}", right and in_time)
    left, until = len(find_marked(os.environ[MARK].rpartition("/")[2])), time.monotonic() + 3
    # The driver cleans up after a process that was killed.
    while (contexts := count_contexts()) and time.monotonic() < until:
        time.sleep(0.1)
    bench.report("processes and contexts left", f"{left} and {contexts}", not left and not contexts)


def count_contexts() -> int:
    """Processes that compute on a GPU."""
    nvml = installed_nvml()
    devices = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())] if nvml else []
    return sum(len(nvml.nvmlDeviceGetComputeRunningProcesses(device)) for device in devices)


def planned_memory(bench: Bench) -> None:
    """What `plan` estimates of a step's memory, beside what torch's allocator gave out at most."""
    wide = {} if bench.tiny else {"width": 4096, "depth": 6, "side": 32}
    trainings = [gpt(bench), images(bench), images(bench, "MLP", **wide)]
    folders = {training.model: bench.new_folder(f"memory-{training.model}") for training in trainings}

    def train(training: Training) -> int:
        name = f"memory-{training.model.lower()}"
        training.ours(name, {"out": folders[training.model]}, {"max_steps": 5})
        return int(notes(Path(folders[training.model]))["peak_bytes"])

    def plan(training: Training) -> tuple[int, str]:
        with bench.lock:
            project, columns = bench.code.root, training.dataset.columns
        request = SizeRequest(
            train=training.section({"out": bench.new_folder(f"plan-{training.model}")}, {}),
            project=str(project), columns=columns, rows=[training.batch_size], accelerated=True,
        )  # fmt: skip
        sizes = run_child(MODULE_MEMORY, request, project=project)
        return sizes.steps[0].peak if sizes.steps else 0, sizes.unknown or sizes.unprobed

    with ThreadPoolExecutor(2 * len(trainings)) as pool:
        taken = [pool.submit(train, training) for training in trainings]
        for training, peak, (planned, why) in zip(trainings, taken, pool.map(plan, trainings), strict=True):
            error = planned / peak.result() - 1 if peak.result() else float("inf")
            shown = f"planned {planned / 1e6:,.0f} MB, taken {peak.result() / 1e6:,.0f} MB ({error:+.1%}) {why}"
            bench.report(f"memory of {training.model}", shown.strip(), abs(error) <= 0.1)


def killed_elsewhere(bench: Bench) -> None:
    """A rank killed by SIGKILL when it is compiled, and under FSDP2."""
    bitwise(bench, "compiled", compiled(bench))
    bitwise(bench, "fsdp2", {}, "fsdp")


@dataclass(frozen=True)
class Row:
    """A row of the table; `deadline_s` None: the rest of the time."""

    name: str
    deadline_s: float | None
    goal: str
    measure: Callable[[Bench], None]


ROWS = [
    Row("gpt", 130, "at least 0.99 of the bare loop", gpt_beside_bare),
    Row("killed", 45, "weights equal to the bit", killed_and_resumed),
    Row("checkpoint", 40, "stall at most 1.3 of the copy, steps at least 0.95", checkpoints),
    Row("waits", 30, "at most one step in 16, and what is logged", synchronisations),
    Row("loader", 35, "at least 0.98; waiting at most 1 %", loader_to_device),
    Row("fsdp2", 35, "at least 0.99; the same first loss", sharded),
    Row("faults", 40, "cause and rank right; hang within 9 s; nothing left", faults),
    Row("memory", 30, "within 10 %", planned_memory),
    Row("killed elsewhere", None, "weights equal to the bit", killed_elsewhere),
]


# ---- the run


def card() -> str:
    """The GPU's name."""
    nvml = installed_nvml()
    return str(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))) if nvml is not None else ""


def heading(dry: bool) -> str:
    """What this is measured on."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    nvml = installed_nvml()
    driver = "no GPU" if nvml is None else f"{card()}, driver {nvml.nvmlSystemGetDriverVersion()}"
    sort = "A DRY RUN ON THE CPU WITH TINY SIZES: the figures mean nothing.\n" if dry else ""
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, tests/gpu/run.sh{' --dry-run' if dry else ''}\n{sort}{driver}\n"
        f"{common.machine()}\n{versions}\n"
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def run_row(row: Row, folder: Path, limit_s: float, dry: bool) -> dict[str, Any]:
    """Measure a row in a process of its own; what it found, and why it ended without the rest."""
    if limit_s < LEAST_S:
        return {"row": row.name, "seconds": 0, "found": [], "why": "no time was left"}
    own = folder / row.name.replace(" ", "-")
    own.mkdir()
    mark, began = new_mark(), time.monotonic()
    command = [sys.executable, str(HERE / "kit.py"), "--row", row.name, "--folder", str(own), *["--dry-run"] * dry]
    with (own / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, env=marked_env(mark), stdout=log, stderr=log, start_new_session=True)
        try:
            why = f"exit code {code}" if (code := process.wait(limit_s)) else ""
        except subprocess.TimeoutExpired:
            why = f"stopped at its deadline of {limit_s:.0f} s"
        finally:
            kill_marked(mark)
            process.wait()
    if why and (printed := (own / "log.txt").read_text(errors="replace").strip()):
        print(printed[-4000:])
        why = f"{why} ({printed.splitlines()[-1][:300]})"
    lines = (own / "found.jsonl").read_text().splitlines() if (own / "found.jsonl").exists() else []
    seconds = round(time.monotonic() - began, 1)
    return {"row": row.name, "seconds": seconds, "found": [json.loads(line) for line in lines], "why": why}


def table(results: Sequence[dict[str, Any]]) -> str:
    """All rows so far, those without a result with the reason."""
    rows, lines = {row.name: row for row in ROWS}, []
    for result in results:
        row = rows[result["row"]]
        deadline = "rest" if row.deadline_s is None else f"{row.deadline_s:.0f} s"
        lines.append(f"\n{row.name} ({result['seconds']} s of {deadline}; goal: {row.goal})")
        for each in result["found"]:
            verdict = {True: "met", False: "MISSED", None: ""}[each["met"]]
            lines.append(f"  {verdict:8}{each['name']}: {each['value']}")
        if result["why"]:
            lines.append(f"  no result{' for the rest' if result['found'] else ''}: {result['why']}")
    return "\n".join(lines)


def run(rows: Sequence[Row], out: Path, dry: bool, spent_s: float) -> int:
    """Run these rows; prints and saves the table after each. 1 if a dry run left a row without a result."""
    began, results = time.monotonic() - spent_s, []
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{datetime.now(UTC):%Y-%m-%d}-gpu{'-dry-run' if dry else ''}.txt"
    head = heading(dry)
    with tempfile.TemporaryDirectory(prefix="kit-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        os.environ["TRAINWRIGHT_HOME"] = str(folder / "home")
        for row in rows:
            left_s = END_S if dry else END_S - RESERVE_S - (time.monotonic() - began)
            limit_s = left_s if dry or row.deadline_s is None else min(row.deadline_s, left_s)
            results.append(run_row(row, folder, limit_s, dry))
            shutil.rmtree(folder / row.name.replace(" ", "-") / "store", ignore_errors=True)
            text = f"{head}{table(results)}\n\n{json.dumps(results)}\n"
            path.write_text(text)
            print(table(results[-1:]), flush=True)
    print(f"\n{path}")
    return int(dry and any(result["why"] or not result["found"] for result in results))


def main() -> int:
    """Run everything, or one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the result")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--only", help="names of rows, with commas between them")
    parser.add_argument("--spent-s", type=float, default=0.0, help="seconds that are gone already")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row is None:
        rows = [row for row in ROWS if not options.only or row.name in options.only.split(",")]
        with terminable():  # so that no row outlives this process
            return run(rows, options.out, options.dry_run, options.spent_s)
    sys.path.insert(0, str(HERE))
    row, code = next(row for row in ROWS if row.name == options.row), 1
    try:
        row.measure(Bench(options.folder, options.dry_run))
        code = 0
    except Exception:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # trainings that still wait for a turn end with their row


if __name__ == "__main__":
    sys.exit(main())
