"""What `trainwright plan` estimates beside what then happens, for six models: memory of a step, and a training's time.

    python benchmarks/plan.py [--quick] [--only mlp,gpt]

Each model is trained once, so that there is an earlier run. Then a longer training is estimated, and carried out. Its
time is that of a quiet machine only if the loads after both trainings are about 1. Memory is compared with what a
process needs that takes real steps of Lightning's Trainer on the dataset's rows: bytes of tensors, and what torch's
allocator gave out, by its profiler (`max_memory_allocated` where there is a CUDA device). The difference is work space
of kernels. The errors in the last line are the largest of the six: of bytes of tensors on a CPU, of the allocator on a
GPU. `interval_loss` is that of `interval.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from common import machine  # noqa: E402

from flows.stages import stages  # noqa: E402
from tasks.estimates.estimate import Estimate, estimate  # noqa: E402
from tasks.run.meter import metered  # noqa: E402
from tasks.run.run import Run, open_run  # noqa: E402
from tasks.run.spec_check import read_spec  # noqa: E402

BATCH = 64
# Epochs of the earlier training and of the one that is estimated.
EPOCHS = (10, 30)
QUICK = "mlp,cnn"


@dataclass(frozen=True)
class Case:
    """A model: its class, its arguments, its columns of the digits, or the example of its own."""

    name: str
    model: str
    init_args: dict[str, Any]


@dataclass(frozen=True)
class Taken:
    """The most memory that a training had at once: bytes of tensors, and what the allocator had given out."""

    tensors: int
    allocated: int
    on_gpu: bool = False


CASES = [
    Case("mlp", "zoo.MLP", {"optimizer": "Adam", "columns": 64, "width": 1024, "depth": 2}),
    Case("cnn", "zoo.CNN", {"optimizer": "SGD", "columns": 64, "channels": 64}),
    Case("gpt", "gpt.ByteGPT", {"context": 64, "width": 128, "depth": 3, "heads": 4, "lr": 0.001}),
    Case("lstm", "zoo.LSTM", {"optimizer": "AdamW", "columns": 64, "width": 256, "depth": 2}),
    Case("batch norm", "zoo.CNN", {"optimizer": "SGD", "columns": 64, "channels": 64, "norm": True}),
    Case("embedding", "zoo.Embedding", {"optimizer": "Adam", "columns": 64, "words": 50_000, "width": 64}),
]


def write_project(folder: Path, case: Case) -> Path:
    """A project of the model on 1,797 digits, or on as many windows of 65 bytes; returns its spec."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "plan"\nversion = "0"\n')
    shutil.copy(ROOT / "tests/support/module_zoo.py", folder / "zoo.py")
    shutil.copy(ROOT / "examples/stdlib_gpt/gpt.py", folder / "gpt.py")
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, rows = np.random.default_rng(7), 1797
    gpt = case.name == "gpt"
    shape, dtype = ((65,), "uint8") if gpt else ((64,), "float32")
    values = draw.integers(0, 17, (rows, *shape)).astype(dtype)
    name = "tokens" if gpt else "x"
    cells = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), shape[0])
    columns = {"id": pa.array(range(rows)), name: cells, "label": pa.array(draw.integers(0, 10, rows))}
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    bounds = {"column": "label", "min_value": 0, "max_value": 9}
    expectation = {"type": "expect_column_values_to_be_between", "kwargs": bounds}
    (folder / "suite.json").write_text(json.dumps({"name": "plan", "expectations": [expectation]}))
    model = {"class_path": case.model, "init_args": case.init_args}
    spec = {
        "version": 1,
        "name": "plan",
        "data": {"source": "rows.parquet"},
        "contract": {"suite": "suite.json"},
        "shards": {"split": {"key": "id", "fractions": {"train": 0.8, "val": 0.1, "test": 0.1}}},
        "train": {
            "lightning": {"model": model, "trainer": {"accelerator": "cpu", "limit_val_batches": 0}},
            "strategy": "single",
            "global_batch_size": BATCH,
            "batch": {"tokens": "tokens"} if gpt else ["x", "label"],
        },
        "evaluate": {"metrics": {"loss": {"logged": "bits_per_byte" if gpt else "test_loss", "mode": "min"}}},
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def train(spec: Path, epochs: int) -> tuple[float, float]:
    """Train for so many epochs, recorded as a run; the seconds of the train stage, and the machine's load meanwhile."""
    run = open_run(read_spec(spec, [f"train.lightning.trainer.max_epochs={epochs}"]))

    @metered
    def work(run: Run) -> Any:
        made: dict[str, Any] = {}
        for stage in stages()[:3]:
            made[stage.name] = stage(run, *(made[one.name] for one in stage.takes))

    work(run)
    return run.live.results["train"].seconds, os.getloadavg()[0]


def planned(spec: Path, epochs: int) -> Estimate:
    """The estimate of a training of so many epochs."""
    run = open_run(read_spec(spec, [f"train.lightning.trainer.max_epochs={epochs}"]), recorded=False)
    found = estimate(run, ["train"])
    assert found is not None
    return found


def taken(spec: Path) -> Taken:
    """The memory that real steps of Lightning's Trainer take, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "--measure", str(spec)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Taken(**json.loads(done.stdout.splitlines()[-1]))


def measure(spec: Path) -> Taken:
    """`taken`, in this process."""
    import torch
    from lightning.fabric.utilities.apply_func import apply_to_collection
    from torch.profiler import ProfilerActivity, profile

    from tasks.stages.shard import shard
    from tasks.stages.stage import EarlierHandoffs
    from training.loader import Shards, Split
    from training.user.ready import build_module, plain_trainer

    run = open_run(read_spec(spec, ["train.lightning.trainer.max_epochs=1"]), recorded=False)
    dataset = EarlierHandoffs(run).handoff(shard)
    settings = run.train_settings()
    folder = run.store.local(dataset.ref, cache=run.live.workspace / "data")
    split = Split(Shards(folder, dataset, "train"), batch=settings["batch"])
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        settings["lightning"]["trainer"]["accelerator"] = "gpu"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, live_bytes() as live:
        # One batch, as a loader's batches live one after another; a copy, as what NumPy allocates is not counted.
        batches = [apply_to_collection(split.take(slice(0, BATCH)), torch.Tensor, torch.clone)]
        module = build_module(settings, run.project(), optimizer=True)
        trainer = plain_trainer({"lightning": {"trainer": settings["lightning"]["trainer"]}}, [])
        trainer.fit_loop.max_epochs = 4
        trainer.fit(module, train_dataloaders=Again(batches))
    return Taken(live.peak, torch.cuda.max_memory_allocated() if on_gpu else peak(profiled), on_gpu)


def live_bytes() -> Any:
    """A context that counts the bytes of living tensors, without the work space of kernels."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class LiveBytes(TorchDispatchMode):
        """Counts the bytes of living tensors that operations have made since it began.

        Attributes:
            alive: bytes now; peak: most so far.
        """

        def __init__(self) -> None:
            super().__init__()
            self.alive = self.peak = 0
            self._sizes: dict[int, int] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for one in tree_leaves(made):
                if isinstance(one, torch.Tensor):
                    self._see(one)
            self._note()
            return made

        def _see(self, tensor: torch.Tensor) -> None:
            storage = tensor.untyped_storage()
            if id(storage) in self._sizes:
                return
            size = storage.nbytes()
            self._sizes[id(storage)] = size
            self.alive += size
            weakref.finalize(storage, self._gone, id(storage))

        def _gone(self, name: int) -> None:
            self.alive -= self._sizes.pop(name)

        def _note(self) -> None:
            self.peak = max(self.peak, self.alive)

    return LiveBytes()


class Again:
    """A loader that yields the same batches."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def peak(profiled: Any) -> int:
    """The most bytes that a CPU's allocator had given out at once, by the profiler's events."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    found = [one for one in events if one.get("name") == "[memory]" and one["args"]["Device Type"] == 0]
    alive = most = 0
    for one in sorted(found, key=lambda one: one["ts"]):
        alive += one["args"]["Bytes"]
        most = max(most, alive)
    return most


def compare(case: Case, folder: Path, epochs: tuple[int, int]) -> tuple[float, float]:
    """Print a row of the table; the errors of memory and time."""
    spec = write_project(folder / case.name.replace(" ", "-"), case)
    _, load_then = train(spec, epochs[0])
    began = time.monotonic()
    found = planned(spec, epochs[1])
    plan_s = time.monotonic() - began
    [need] = found.needs
    time_s, load = train(spec, epochs[1])
    memory = taken(spec)
    assert found.stages[0].time is not None, found.stages[0].why
    expected = found.stages[0].time.expected
    errors = [need.bytes / memory.tensors - 1, need.bytes / memory.allocated - 1, expected / time_s - 1]
    print(
        f"{case.name:10} {case.init_args.get('optimizer', 'AdamW'):5} {need.bytes / 1e6:10.2f} "
        f"{memory.tensors / 1e6:10.2f} {errors[0]:+6.1%} {memory.allocated / 1e6:12.2f} {errors[1]:+6.1%} "
        f"{expected:9.2f} {time_s:8.2f} {errors[2]:+6.1%} {load_then:6.1f} {load:5.1f} {plan_s:7.1f}  "
        f"{found.unmeasured}",
        flush=True,
    )
    return abs(errors[0] if not memory.on_gpu else errors[1]), abs(errors[2])


def interval_loss(quick: bool) -> float | None:
    """The last line of `interval.py`."""
    command = [sys.executable, str(ROOT / "benchmarks/interval.py"), *(["--quick"] if quick else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])["interval_loss"]


def main() -> None:
    """Print the table and the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"half as many epochs; {QUICK} unless --only is given")
    parser.add_argument("--only", default="", help="names of models")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(vars(measure(Path(options.measure)))))
        return
    os.environ.setdefault("TRAINWRIGHT_MACHINE", "local")
    epochs = (EPOCHS[0] // 2, EPOCHS[1] // 2) if options.quick else EPOCHS
    only = options.only or (QUICK if options.quick else "")
    wanted = [case for case in CASES if not only or case.name in only.split(",")]
    print(machine())
    print(f"{BATCH} rows a step; an earlier run of {epochs[0]} epochs, then one of {epochs[1]}")
    print(
        "model      opt   planned MB tensors MB  error allocated MB  error planned s   took s  error loads of both "
        " plan s"
    )
    with tempfile.TemporaryDirectory() as name, contextlib.suppress(KeyboardInterrupt):
        os.environ["TRAINWRIGHT_HOME"] = f"{name}/home"
        errors = [compare(case, Path(name), epochs) for case in wanted]
    found: dict[str, float | None] = {
        "memory_error": round(max(one[0] for one in errors), 4),
        "time_error": round(max(one[1] for one in errors), 4),
        "interval_loss": interval_loss(options.quick),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
