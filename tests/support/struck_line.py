"""One run of the whole line on hosts of its own: a conductor that can be killed and started again, and its ledger."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from infra.processes.processes import kill_marked, marked_env, new_mark
from infra.store import Store, layout, open_store
from tests.support.cluster import POOL, Cluster
from tests.support.tiny import SPEC, trainwright, write_project
from training.checkpoint import read_tensors

NODES = 2
BATCH, STEPS_PER_EPOCH = 32, 15
EVERY = 20
ROW_BYTES = 2**22  # as in MODEL

# Not a word of Trainwright in it, but for the number of the generation, which only the ledger needs.
MODEL = """\
import json
import os
import time
from pathlib import Path

import lightning as L
import torch
from torch import nn

ROW_BYTES = 2**22


class Net(L.LightningModule):
    def __init__(self, place: str, dropout: float):
        super().__init__()
        self.place = Path(place)
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 2))
        self.ledger = None

    def forward(self, x):
        return self.net(x)

    def on_train_start(self):
        generation = json.loads(Path(os.environ["TRAINWRIGHT_LAUNCH"]).read_text())["generation"]
        self.ledger = open(self.place / f"ledger-g{generation}-r{self.global_rank}", "a")

    def training_step(self, batch, batch_idx):
        x, y, ids = batch
        if not self.training:  # the loss on a held batch
            return nn.functional.cross_entropy(self(x), y)
        if (self.place / "pace").exists():
            time.sleep(0.1)
        torch.empty(len(x), ROW_BYTES, dtype=torch.uint8)  # what larger models need for each row of a micro-batch
        self.ledger.write(json.dumps([self.global_step + 1, time.time(), ids.tolist()]) + "\\n")
        self.ledger.flush()
        return nn.functional.cross_entropy(self(x), y)

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]
"""


def disk_of(folder: Path) -> Path:
    """The folder of a line's store."""
    return folder / "project" / ".trainwright"


class Line:
    """One run of the line in a project of its own; its conductor is a process that can be killed and started again."""

    def __init__(
        self, folder: Path, cluster: Cluster | None, epochs: int, *, hurried: bool, dropout: float = 0.1
    ) -> None:
        self.folder, self.cluster = folder, cluster
        self.place = folder / "place"
        self.place.mkdir(parents=True, exist_ok=True)
        if not hurried:
            (self.place / "pace").touch()
        train = {
            **SPEC["train"],
            "lightning": {
                "model": {"class_path": "net.Net", "init_args": {"place": str(self.place), "dropout": dropout}},
                "trainer": {"max_epochs": epochs},
            },
            "batch": [["a", "b", "c"], "label", "id"],
            "strategy": "ddp",
            "nodes": NODES,
            "checkpoint": {"every_steps": EVERY},
            **({"launcher": "work-pool", "pool": POOL, "rollcall_timeout_s": 120} if cluster else {}),
        }
        causes = ("preempted", "node_lost", "hung", "storage", "admission", "oom")
        budgets = dict.fromkeys(causes, 1000)
        self.spec = write_project(folder / "project", {"train": train, "retry": budgets})
        (folder / "project" / "net.py").write_text(MODEL)
        self.total = epochs * STEPS_PER_EPOCH
        self.mark = new_mark()

    @property
    def disk(self) -> Path:
        """The store's folder."""
        return disk_of(self.folder)

    @property
    def store(self) -> Store:
        """The run's store."""
        return open_store(str(self.disk), create=False)

    def conduct(self) -> None:
        """Start the run, or resume it."""
        assert self.cluster is not None
        runs = self.disk / "runs"
        command = ["run", str(self.spec)]
        if runs.exists() and os.listdir(runs):
            command = ["resume", os.listdir(runs)[0], "--store", str(self.disk)]
        environment = {**marked_env(self.mark), **self.cluster.site.environment, **self.cluster.home}
        with (self.folder / "said.txt").open("a") as said, (self.folder / "answer.txt").open("w") as answer:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", *command, "--json"],
                env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=answer, stderr=said,
                start_new_session=True,
            )  # fmt: skip

    def alone(self) -> None:
        """The same training on this machine, with nothing in its way."""
        done = trainwright("run", self.spec, "--json", cwd=self.folder, timeout_s=900)
        assert done.returncode == 0, done.stderr

    @property
    def training(self) -> str:
        """Its directory in the store."""
        (name,) = [name for name in self.store.list("trainings") if not name.startswith(".")]
        return f"trainings/{name}"

    def generation(self) -> int:
        """Number of the newest generation, -1 before the first."""
        with contextlib.suppress(Exception):
            names = self.store.list(self.training)
            return max((int(name[1:]) for name in names if name[:1] == "g" and name[1:].isdigit()), default=-1)
        return -1

    def taken(self, generation: int, rank: int = 0) -> list[tuple[int, float, list[int]]]:
        """Step, time and row ids of what a rank took in a generation."""
        path = self.place / f"ledger-g{generation}-r{rank}"
        if not path.exists():
            return []
        return [tuple(json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def resumed(self, generation: int) -> int:
        """The step that a generation began from."""
        resume = self.store.read_json(layout.launch(self.training, generation))["resume"]
        return 0 if resume is None else int(resume["step"])

    def ended_at(self, generation: int) -> float | None:
        """When the conductor ended a generation, on the clock of the machine."""
        marker = Path(self.store.uri) / layout.cancel(self.training, generation)
        return marker.stat().st_mtime if marker.exists() else None

    def end_of(self, generation: int) -> str:
        """The sentence about the end of a generation; "" if nobody could say one."""
        said = (self.folder / "said.txt").read_text()
        found = re.search(rf"generation {generation} ended (.*?) Continuing from step", said)
        return found[1] if found else ""

    def said(self) -> str:
        """What it printed for people."""
        return (self.folder / "said.txt").read_text()[-6000:]

    def weights(self) -> dict[str, torch.Tensor]:
        """What it handed over."""
        uri = self.store.read_json(layout.result(self.training))["ref"]["uri"]
        found = dict(read_tensors(self.store.local(uri)))
        return {name: value.clone() for name, value in found.items() if name.startswith("state_dict/")}

    def kept(self) -> dict[int, list[int]]:
        """By step, the row ids of all ranks in the generation whose step it is that was kept."""
        owner: dict[int, int] = {}
        for generation in range(self.generation() + 1):
            begun = self.resumed(generation)
            owner = {step: one for step, one in owner.items() if step <= begun}
            # A step of several micro-batches stands there several times.
            steps = list(dict.fromkeys(step for step, _, _ in self.taken(generation)))
            assert steps == list(range(begun + 1, begun + 1 + len(steps))), f"generation {generation}: {steps}"
            owner.update(dict.fromkeys(steps, generation))
        rows: dict[int, list[int]] = {}
        for generation in set(owner.values()):
            for rank in range(NODES):
                for step, _, ids in self.taken(generation, rank):
                    if owner.get(step) == generation:
                        rows.setdefault(step, []).extend(ids)
        return rows

    def hurry(self) -> None:
        """Let the steps that are left take no longer than they must."""
        (self.place / "pace").unlink()

    def close(self) -> None:
        """End it."""
        kill_marked(self.mark)


def check_samples(line: Line) -> None:
    """Every step once, and each sample once per epoch."""
    rows = line.kept()
    assert sorted(rows) == list(range(1, line.total + 1))
    assert {len(ids) for ids in rows.values()} == {BATCH}
    for epoch in range(line.total // STEPS_PER_EPOCH):
        ids = [one for step in range(STEPS_PER_EPOCH) for one in rows[epoch * STEPS_PER_EPOCH + step + 1]]
        assert len(set(ids)) == len(ids), f"epoch {epoch}"
