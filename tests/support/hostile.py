"""Puts hostile checkpoints through verify, resume and evaluate: `python -m tests.support.hostile FOLDER`.

A short training makes genuine checkpoints. Each case then gets a copy of the store, is attacked and mostly sealed anew
as its attacker would, and is taken up in a process forked from this one. Prints one JSON line per case: its name, exit
code, cause, sentence, how much memory it took, how long, and whether anything of the attacker's ran.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError, from_json
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.messages.children import EvaluateRequest, VerifyRequest
from infra.gang.ledger import Ledger
from infra.store import layout, open_store
from tasks.stages.trainings import key_of, trained_with
from tests.support.hostile_cases import CASES, Attack, Case
from training.fit import rank
from training.score import evaluate_worker, verify_worker

NET = """\
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(3, 4)
        self.two = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.two(self.one(x))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Data(L.LightningDataModule):
    def train_dataloader(self):
        x = torch.arange(96.0).reshape(32, 3) / 96
        return DataLoader(TensorDataset(x, (x.sum(1) > 1).long()), batch_size=4)

    test_dataloader = train_dataloader
"""
TRAIN: dict[str, Any] = {
    "lightning": {
        "model": {"class_path": "net.Net"},
        "data": {"class_path": "net.Data"},
        "trainer": {"max_steps": 12, "accelerator": "cpu"},
    },
    "global_batch_size": 4,
    "strategy": "single",
    "devices": 1,
    "checkpoint": {"every_steps": 4},
}
SEALED = {"train": TRAIN, "code_digest": "c" * 64, "dataset_id": None}
TRAINING = layout.training(key_of(SEALED), 0)
CANARY = "canary"


class Scene:
    """A folder with a project, a store and two committed checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_store(str(folder / "store"))

    def train(self, resume: Checkpoint | None = None, *, generation: int = 0) -> int:
        """Run one rank in this process."""
        scratch = self.folder / f"scratch-{generation}"
        scratch.mkdir()
        code = {"uri": "code/x", "id": "a" * 64, "seal": "b" * 64}
        told = {
            "schema_version": 1, "training": TRAINING, "generation": generation, "token": generation, "nodes": 1,
            "devices": 1, "dataset": None, "train": TRAIN, "data_external": True, "sealed": SEALED, "heartbeat_s": 0.0,
            "resume": None if resume is None else resume.to_json(),
            "provenance": {"parents": [], "code": {"ref": code}},
        }  # fmt: skip
        (scratch / "launch.json").write_text(json.dumps(told))
        os.environ.update(
            {
                "TRAINWRIGHT_LAUNCH": str(scratch / "launch.json"),
                "TRAINWRIGHT_STORE": self.store.uri,
                "TRAINWRIGHT_SCRATCH": str(scratch),
                "TRAINWRIGHT_PROJECT": str(self.folder / "project"),
                **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
            }
        )
        return rank.main()

    def answer(self, generation: int, kind: str) -> Any:
        """What the rank left."""
        path = self.folder / f"scratch-{generation}" / f"rank-0.{kind}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def checkpoint(self, step: int) -> Checkpoint:
        """A genuine one, as a pointer would tell of it."""
        ref = self.store.manifest(layout.checkpoint(TRAINING, step, 0)).ref
        facts = {"training": TRAINING, "step": step, "generation": 0, "world_size": 1, "epoch": 0}
        settings = self.store.manifest(ref).settings
        return Checkpoint(ref=ref, key=key_of(SEALED), **{**facts, "epoch": settings["epoch"]})


def take_up(scene: Scene, route: str, checkpoint: Checkpoint) -> None:
    """Use a checkpoint as the product does; raises what the product raises."""
    code = Ref(uri="code/x", id="a" * 64, seal="b" * 64)
    request: dict[str, Any] = {
        "store": {"uri": scene.store.uri}, "checkpoint": checkpoint.to_json(), "train": TRAIN,
        "code": code.to_json(), "paths": {code.id: str(scene.folder / "project")},
    }  # fmt: skip
    if route == "verify":
        verify_worker.main(VerifyRequest.from_json({**request, "dataset": None}), lambda _: None)
    elif route == "evaluate":
        metric = {"loss": {"logged": "test_loss", "mode": "min"}}
        more = {
            "uri": "evaluations/e-0", "key": "e", "evaluate": {"metrics": metric}, "sets": {}, "data_external": True,
            "settings": {}, "provenance": {}, "metrics_code": code.to_json(),
        }  # fmt: skip
        evaluate_worker.main(EvaluateRequest.from_json({**request, **more}), lambda _: None)
    elif route == "rebuild":
        trained_with(scene.store, checkpoint)
    elif route == "conduct":
        pointer = scene.store.pointer(layout.latest(TRAINING))
        value = {"schema_version": 1, "token": 0, "checkpoints": [checkpoint.to_json()], "retiring": []}
        pointer.create(value)
        Ledger(scene.store, TRAINING, 1).resume_from(SEALED)
    elif scene.train(checkpoint, generation=1):
        raise from_json(scene.answer(1, "error"))


def carried_out(case: Case, first: Path, folder: Path) -> dict[str, Any]:
    """One case in a process of its own."""
    shutil.copytree(first, folder, symlinks=True)
    scene = Scene(folder)
    checkpoint = case.attack(Attack(Path(scene.store.uri), scene.checkpoint(8), scene.checkpoint(4), folder / CANARY))
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    found: dict[str, Any] = {"exit_code": 0, "sentence": ""}
    try:
        take_up(scene, case.route, checkpoint)
    except TrainwrightError as error:
        found = {"exit_code": error.exit_code, "sentence": error.message}
    except Exception as error:
        found = {"exit_code": 1, "sentence": f"{type(error).__name__}: {error}"}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    ran = (folder / CANARY).exists()
    return {**found, "name": case.name, "grown_mib": grown >> 10, "s": time.monotonic() - started, "ran": ran}


def main(folder: Path) -> None:
    """Make the genuine checkpoints, then carry out every case."""
    first = folder / "first"
    (first / "project").mkdir(parents=True)
    (first / "project" / "net.py").write_text(NET)
    forked(lambda: Scene(first).train(), folder / "train.log")
    shutil.rmtree(first / "scratch-0")
    for number, case in enumerate(CASES):
        answer = folder / f"{number}.json"

        def work(case: Case = case, number: int = number, answer: Path = answer) -> int:
            answer.write_text(json.dumps(carried_out(case, first, folder / str(number))))
            return 0

        forked(work, folder / f"{number}.log")
        print(
            answer.read_text() if answer.exists() else json.dumps({"name": case.name, "exit_code": "died"}), flush=True
        )
        shutil.rmtree(folder / str(number), ignore_errors=True)


def forked(work: Any, log: Path) -> None:
    """Do it in a fork of this process, which itself runs nothing of the user's."""
    child = os.fork()
    if child == 0:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
