"""Ranks on this machine as the launcher starts them: torchrun, a dataset, a project, a store, scratch folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_contracts.handoffs import Dataset
from infra.processes.processes import module_command
from infra.store import Store, open_store
from tests.support.speed.children import for_ranks
from tests.support.splits import write_dataset

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 480
KEY = "k" * 40
TRAINING = f"trainings/{KEY}-0"


def make_dataset(
    folder: Path, rows: dict[str, int], *, shards: int = 2, form: str = "parquet", holes: int = 0
) -> dict[str, Any]:
    """A small regression dataset in shards: `x` (tensor of 4), `a`, `b`, `y`. Returns the hand-off as JSON.

    Args:
        holes: how many rows of each split have an `x` that is no number.
    """
    # A TFRecord cannot hold float64.
    kind = np.float64 if form == "parquet" else np.float32
    tables = {}
    for split, count in rows.items():
        draw = np.random.RandomState(len(split))
        x = draw.standard_normal((count, 4)).astype(np.float32)
        x[:holes, 2] = np.nan
        columns = {
            "id": pa.array(range(count), pa.int64()),
            "x": pa.array(list(x), pa.list_(pa.float32())),
            "a": pa.array(x[:, 0].astype(kind)),
            "b": pa.array(x[:, 1].astype(kind)),
            "y": pa.array((x.sum(1) > 0).astype(np.int64)),
        }
        tables[split] = pa.table(columns)
    return write_dataset(folder, tables, shards=shards, form=form)


def seal_dataset(store: Store, dataset: tuple[Path, dict[str, Any]]) -> Dataset:
    """The dataset that `make_dataset` wrote into a folder, sealed in a store; the order is made of its id."""
    folder, told = dataset
    writer = store.writer(f"datasets/{KEY}-0")
    for path in sorted(folder.iterdir()):
        writer.put(path.name, path)
    ref = writer.seal("dataset", {}, {})
    splits = {split: [{**shard, "uri": ref.uri} for shard in shards] for split, shards in told["splits"].items()}
    return Dataset.from_json({**told, "ref": ref.to_json(), "key": KEY, "splits": splits})


@dataclass
class Gang:
    """One training on this machine, generation after generation.

    Attributes:
        train: the spec's `train` section, with the Lightning config inlined.
        init_from: what points at the weights that `train["init_from"]` names.
        told: what the ranks are told besides.
    """

    folder: Path
    train: dict[str, Any]
    project: Path
    dataset: dict[str, Any] | None = None
    dataset_folder: Path | None = None
    ranks: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    init_from: dict[str, Any] | None = None
    told: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = open_store(str(self.folder / "store"))

    def scratch(self, generation: int) -> Path:
        """The folder in which the ranks of a generation report."""
        return self.folder / f"g{generation}"

    def tell(self, generation: int = 0, resume: dict[str, Any] | None = None) -> dict[str, str]:
        """Write what a generation is told and return its ranks' environment."""
        scratch = self.scratch(generation)
        scratch.mkdir(parents=True)
        told = {
            "schema_version": 1,
            "training": TRAINING,
            "generation": generation,
            "token": generation,
            "nodes": 1,
            "devices": self.ranks,
            "dataset": self.dataset,
            "train": {"devices": self.ranks, **self.train},
            "data_external": self.dataset is None,
            "init_from": self.init_from,
            "resume": resume,
            "sealed": {"train": self.train, "code_digest": "", "dataset_id": None},
            "provenance": self.provenance,
            "heartbeat_s": 0.0,
            **self.told,
        }
        (scratch / "launch.json").write_text(json.dumps(told))
        return {
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            "TRAINWRIGHT_LAUNCH": str(scratch / "launch.json"),
            "TRAINWRIGHT_STORE": self.store.uri,
            "TRAINWRIGHT_STORE_OPTIONS": "{}",
            "TRAINWRIGHT_SCRATCH": str(scratch),
            "TRAINWRIGHT_PROJECT": str(self.project),
            "TRAINWRIGHT_DATASET": str(self.dataset_folder or ""),
            **self.environment,
        }

    def start(self, generation: int = 0, resume: dict[str, Any] | None = None) -> subprocess.Popen[bytes]:
        """Start the ranks of a generation and return torchrun's process."""
        return torchrun("training.fit.rank", self.ranks, self.tell(generation, resume), self.project)

    def run(self, generation: int = 0, resume: dict[str, Any] | None = None) -> Path:
        """Run a generation to its end and return its scratch folder."""
        wait(self.start(generation, resume))
        return self.scratch(generation)

    def train_to_end(self, generation: int = 0, resume: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run a generation that must succeed and return the checkpoint that it ended with."""
        self.run(generation, resume)
        return self.end(generation)

    def end(self, generation: int = 0) -> dict[str, Any]:
        """The checkpoint that a generation, which must have succeeded, ended with."""
        done = answer(self.scratch(generation), 0, "done")
        assert done is not None, self.log(generation)[-8000:]
        return done["checkpoint"]

    def log(self, generation: int = 0) -> str:
        """What torchrun and the ranks printed."""
        return "\n".join(path.read_text() for path in sorted(self.scratch(generation).glob("log*.txt")))

    def checkpoint_folder(self, checkpoint: dict[str, Any]) -> Path:
        """A sealed checkpoint's files, every byte checked."""
        manifest = self.store.verify(checkpoint["ref"]["uri"])
        return self.store.local(manifest.ref)


def torchrun(module: str, ranks: int, environment: Mapping[str, str], project: Path) -> subprocess.Popen[bytes]:
    """Start ranks that run a module, with their output in the scratch folder that the environment names."""
    rank = module_command("infra.gang.rank_bootstrap", module)
    options = ["--standalone", f"--nproc-per-node={ranks}", "--no-python"]
    log = Path(environment["TRAINWRIGHT_SCRATCH"]) / "log.txt"
    return start(module_command("torch.distributed.run", *options, *rank), environment, log, project)


def start(command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; it is forked from a warm process, and prints to `log`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment, **for_ranks()}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip


def wait(process: subprocess.Popen[bytes], timeout_s: float = TIMEOUT_S) -> None:
    """Wait for torchrun's end, and see to it that it ends."""
    try:
        process.wait(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def train_together(gangs: Sequence[Gang], generation: int = 0, resume: Sequence[Any] = ()) -> None:
    """Train several gangs of as many ranks one after another in the same processes: starting those takes longest.

    Args:
        resume: the checkpoint from which each goes on; default: from none.
    """
    trainings = [gang.tell(generation, place) for gang, place in zip(gangs, resume or [None] * len(gangs), strict=True)]
    environment = {**trainings[0], "TRAININGS": json.dumps(trainings)}
    process = torchrun("tests.support.several_trainings", gangs[0].ranks, environment, gangs[0].project)
    wait(process, TIMEOUT_S * len(gangs))


def answer(scratch: Path, rank: int, kind: str = "") -> Any:
    """What a rank wrote: its progress, or with `kind` its `error` or `done`; None if it did not."""
    path = scratch / (f"rank-{rank}.{kind}.json" if kind else f"rank-{rank}.json")
    return json.loads(path.read_text()) if path.exists() else None
