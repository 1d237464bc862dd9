"""How fast `predict` is beside a bare loop, and whether its memory grows with the input.

    python benchmarks/predict.py [--quick]

A perceptron of 8 inputs predicts for a Parquet file of 10 columns. Ours is the work of the child, without imports: the
rows in blocks, parts on the disk, the join, fsync; bare is `ParquetFile.iter_batches`, the same float32 tensor, the
module under `inference_mode`, and `ParquetWriter`. Both write `row` and the vector. In both, torch has one thread: with
more, it waits for one that another program keeps from running, which takes longer than all else. Then the command
predicts for a tenth of the rows, for all and for ten times as many; the memory of its processes must not grow.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from common import arguments, conclude, interleaved, machine, ratio, scratch, show
from noise import Watch

from data_contracts.messages.raw_data import PredictRequest
from infra.store import open_store
from tasks import predict as predicting
from tasks.predict import PredictOptions, predict
from training.predict import worker

INPUTS = [f"x{number}" for number in range(8)]
ROWS = 1_000_000
NET = """\
import lightning as L
from torch import nn, optim


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return optim.Adam(self.parameters())
"""
METRIC = {
    "class_path": "torchmetrics.classification.MulticlassAccuracy",
    "init_args": {"num_classes": 2},
    "target": "label",
    "mode": "max",
}
SPEC = {
    "version": 1,
    "name": "net",
    "data": {"source": "train.parquet"},
    "contract": {
        "suite": {"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "x0"}}]},
    },
    "shards": {"split": {"key": "id"}},
    "train": {
        "lightning": {"model": {"class_path": "net.Net"}, "trainer": {"max_epochs": 1}},
        "global_batch_size": 64,
        "strategy": "single",
        "batch": [INPUTS, "label"],
    },
    "evaluate": {"metrics": {"accuracy": METRIC}},
    "promote": {"gates": [{"metric": "accuracy", "min": 0.0}]},
}


def write(path: Path, rows: int) -> None:
    """Rows of a key, eight floats and a label, in row groups of 100,000."""
    draw = np.random.default_rng(0)
    schema = pa.schema([("id", pa.int64()), *((name, pa.float64()) for name in INPUTS), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, 100_000):
            size = min(100_000, rows - first)
            columns = [np.arange(first, first + size), *(draw.random(size) for _ in INPUTS), draw.integers(0, 2, size)]
            writer.write_table(pa.table(list(map(pa.array, columns)), schema=schema))


def train(folder: Path) -> None:
    """Promote a model of the tiny project."""
    (folder / "pyproject.toml").write_text("")
    (folder / "net.py").write_text(NET)
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    write(folder / "train.parquet", 2_000)
    command = [sys.executable, "-m", "flows.cli", "run", "spec.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


def ours(folder: Path, rows: Path, size: int) -> float:
    """Seconds of the child's work."""
    taken = []

    def here(child: object, request: PredictRequest, **more: Any) -> Any:
        since = time.perf_counter()
        answer = worker.main(request, lambda report: None)
        taken.append(time.perf_counter() - since)
        return answer

    predicting.run_child = here  # type: ignore[assignment]
    store = open_store(str(folder / ".trainwright"), create=False)
    options = PredictOptions(
        model="net", input=str(rows), output=str(folder / "ours.parquet"), batch_size=size, overwrite=True
    )
    predict(store, options, lambda progress: None)
    return taken[0]


def bare(folder: Path, rows: Path, size: int, module: torch.nn.Module) -> float:
    """Seconds of a loop by hand."""
    since = time.perf_counter()
    at, schema = 0, pa.schema([("row", pa.int64()), ("prediction", pa.list_(pa.float32(), 2))])
    with pq.ParquetWriter(folder / "bare.parquet", schema) as writer, torch.inference_mode():
        for batch in pq.ParquetFile(rows).iter_batches(2**16, columns=INPUTS):
            stacked = np.stack([column.to_numpy() for column in batch.columns], axis=1).astype(np.float32)
            made = [module(part) for part in torch.from_numpy(stacked).split(size)]
            flat = pa.array(torch.cat(made).numpy().reshape(-1))
            numbers = pa.array(np.arange(at, at + len(stacked)))
            writer.write_batch(pa.record_batch([numbers, pa.FixedSizeListArray.from_arrays(flat, 2)], schema))
            at += len(stacked)
    return time.perf_counter() - since


def peak_mib(folder: Path, rows: Path) -> float:
    """The largest resident memory of the command and all its descendants at one time, in MiB; looked at every 20 ms."""
    command = [sys.executable, "-m", "flows.cli", "predict", "net", str(rows), str(folder / "peak.parquet")]
    options = ["--store", str(folder / ".trainwright"), "--overwrite", "--batch-size", "512"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    largest = 0
    with subprocess.Popen([*command, *options], env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            found = 0
            for one in (me := psutil.Process(process.pid)), *me.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found += one.memory_info().rss
            largest = max(largest, found)
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit(f"predict ended with {process.returncode}")
    return largest / 2**20


def main() -> None:
    """Print seconds and memory."""
    options, watch = arguments(__doc__), Watch()
    torch.set_num_threads(1)
    rows = ROWS // 10 if options.quick else ROWS
    print(f"{machine()}\ntorch {torch.__version__}, pyarrow {pa.__version__}")
    with scratch() as folder:
        train(folder)
        file = folder / "rows.parquet"
        write(file, rows)
        module = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
        figures = {}
        for name, size in (("vs_bare", 512), ("vs_bare_8192", 8192)):
            taken = interleaved(
                {
                    "ours": lambda size=size: ours(folder, file, size),
                    "bare": lambda size=size: bare(folder, file, size, module),
                },
                3 if options.quick else 5,
            )
            show(f"{rows:,} rows, batches of {size}", {key: [1e3 * one for one in v] for key, v in taken.items()}, "ms")
            figures[name] = ratio(taken["bare"], taken["ours"])
        peaks: dict[int, float] = {}
        for count in (rows // 10, rows, 10 * rows):
            write(folder / "large.parquet", count)
            peaks[count] = peak_mib(folder, folder / "large.parquet")
            print(f"largest resident memory of all processes: {peaks[count]:.0f} MiB for {count:,} rows")
        slope = (peaks[10 * rows] - peaks[rows]) * 2**20 / (9 * rows)
        print(f"slope: {slope:.1f} bytes a row; a row of the input has {8 * 10} bytes")
        conclude(figures, watch.end(), quick=options.quick)


if __name__ == "__main__":
    main()
