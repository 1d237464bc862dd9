"""A checkpoint, its rows and its module, and ranks that verify and score it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from data_contracts.handoffs import Checkpoint, Dataset, Ref
from data_contracts.messages.children import (
    Child,
    EvaluateRequest,
    LaidOut,
    RemoteJob,
    ScoredSet,
    StoreAddress,
    VerifyRequest,
)
from infra.store import open_store
from tests.support.gang import REPOSITORY, make_dataset, seal_dataset, torchrun, wait
from training.checkpoint.saver import CheckpointTarget, capture, save
from training.fit.reference_loss import record
from training.loader import Shards, Split
from training.user.ready import build_module, make_ready, plain_trainer

METRICS = {
    "accuracy": {"class_path": "torchmetrics.classification.MulticlassAccuracy", "target": "y", "mode": "max",
                 "init_args": {"num_classes": 2, "average": "micro"}},
    "f1": {"class_path": "torchmetrics.classification.MulticlassF1Score", "target": "y", "mode": "max",
           "init_args": {"num_classes": 2}},
    "loss": {"logged": "test_loss", "mode": "min"},
    "places": {"logged": "place", "mode": "min"},
}  # fmt: skip
ROWS = {"many": 53, "few": 3, "none": 0, "train": 21}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp", "shard_modules": ["Block"]},
    "hsdp": {"strategy": "hsdp", "shard_modules": ["Block"], "shard_ranks": 2},
}


@dataclass
class Scoring:
    """A store with a dataset of `ROWS`, and checkpoints of `nets.Scored`.

    Attributes:
        code: of the module and the metrics.
    """

    home: Path
    project: Path
    code: Ref = field(default_factory=lambda: Ref(uri="code/a", id="a" * 64, seal="a" * 64))

    def __post_init__(self) -> None:
        self.store = open_store(str(self.home / "store"))
        self.folder = self.home / "dataset"
        self.dataset: Dataset = seal_dataset(self.store, (self.folder, make_dataset(self.folder, ROWS)))

    @property
    def paths(self) -> dict[str, str]:
        """Where code and dataset lie."""
        return {self.code.id: str(self.project), self.dataset.ref.id: str(self.folder)}

    def train(self, precision: str | None = None, **model: Any) -> dict[str, Any]:
        """The settings of the training of a module with these arguments."""
        module, trainer = {"class_path": "nets.Scored", "init_args": model}, {"accelerator": "cpu"}
        trainer |= {"precision": precision} if precision else {}
        return {"lightning": {"model": module, "trainer": trainer}, "batch": ["x", "y"], "seed": 0}

    def checkpoint(
        self, name: str, held: dict[str, Any] | None = None, *, broken: Sequence[str] = (), **model: Any
    ) -> Checkpoint:
        """A sealed checkpoint of the untrained module.

        Args:
            held: the recorded loss.
            broken: names of the parameters that hold a value that is not a number.
        """
        module: Any = self._module(self.train(**model))
        for one in broken:
            module.get_parameter(one).data.view(-1)[0] = torch.nan
        training = f"trainings/{name}-0"
        settings = {"step": 1, **({"held": held} if held else {})}
        place = CheckpointTarget(self.store, f"{training}/checkpoints/1-g0", settings, {}, {}, self.home)
        ref = save(place, capture({"state_dict": module.state_dict()}, {}, 0), 1, [])
        fields = {"ref": ref.to_json(), "key": name, "training": training, "generation": 0, "world_size": 1}
        return Checkpoint.from_json({**fields, "step": 1, "epoch": 0, "metrics": {}, "dropped_rows": 0})

    def held(self, rows: int, **changes: Any) -> dict[str, Any]:
        """The loss of one process on the first rows, as it is sealed with a checkpoint."""
        train = self.train(**changes)
        module, trainer = self._module(train), plain_trainer(train, [])
        module.trainer = trainer
        split = Split(Shards(self.folder, self.dataset, "train"), batch=train["batch"], in_order=True)
        found = record(module, lambda: split.take(slice(0, rows)), trainer, sharded=False, rows=rows)
        assert found is not None
        return found

    def evaluation(self, checkpoint: Checkpoint, uri: str = "evaluations/e-0", **changes: Any) -> EvaluateRequest:
        """A request to score a checkpoint; the settings may be changed."""
        asked = {"metrics": METRICS, "split": "many", "batch_size": 8, **changes}
        model, kept, pairs = asked.pop("model", {}), asked.pop("predictions", False), asked.pop("pairs", [])
        return EvaluateRequest(
            store=StoreAddress(uri=self.store.uri), uri=uri, key="e", checkpoint=checkpoint, train=self.train(**model),
            evaluate=asked, sets={"": ScoredSet(dataset=self.dataset, split=asked["split"])}, data_external=False,
            code=self.code, metrics_code=self.code, paths=self.paths, settings={}, provenance={},
            predictions=kept, pairs=pairs,
        )  # fmt: skip

    def verification(self, checkpoint: Checkpoint, **changes: Any) -> VerifyRequest:
        """A request to verify a checkpoint that was trained with changed settings."""
        return VerifyRequest(
            store=StoreAddress(uri=self.store.uri), checkpoint=checkpoint, train=self.train(**changes), code=self.code,
            dataset=self.dataset, paths=self.paths,
        )  # fmt: skip

    def environment(self, scratch: Path, **more: str) -> dict[str, str]:
        """Of ranks that report in a folder."""
        return {
            "PYTHONPATH": str(REPOSITORY), "TRAINWRIGHT_SCRATCH": str(scratch), "TRAINWRIGHT_STORE": self.store.uri,
            "TRAINWRIGHT_STORE_OPTIONS": "{}", "TRAINWRIGHT_PROJECT": str(self.project), "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(torch.get_num_threads()), **more,
        }  # fmt: skip

    def answers(self, ranks: int, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What so many ranks answer to each case."""
        scratch = Path(tempfile.mkdtemp(prefix=f"ranks-{ranks}-", dir=self.home))
        (scratch / "cases.json").write_text(json.dumps(cases))
        environment = self.environment(scratch, CASES=str(scratch / "cases.json"))
        wait(torchrun("tests.support.scoring_ranks", ranks, environment, self.project))
        answers = [scratch / f"answer-{number}.json" for number in range(len(cases))]
        logs = [path.read_text() for path in sorted(scratch.glob("log*.txt"))]
        assert all(map(os.path.exists, answers)), "\n".join(logs)[-6000:]
        return [json.loads(answer.read_text()) for answer in answers]

    def _module(self, train: dict[str, Any]) -> Any:
        torch.manual_seed(5)
        return ready_module(train, self.project)


def ready_module(train: dict[str, Any], project: Path, stage: str = "test") -> Any:
    """A module after the hooks that come before its weights."""
    module = build_module(train, project)
    make_ready(module, plain_trainer(train, []), stage, project)
    return module


def case_of(layout: str, child: Child[Any, Any], request: LaidOut) -> dict[str, Any]:
    """A case for `Scoring.answers`."""
    settings = {**LAYOUTS[layout], "collective_timeout_s": 10}
    return {"layout": settings, "job": RemoteJob.of(child.module, request).to_json(), "paths": request.paths}
