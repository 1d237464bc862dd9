"""The children of verify and evaluate, run here: a sealed checkpoint, its own code, and today's metrics."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError
from infra.store import Store, open_store
from tests.support.gang import make_dataset
from training import evaluator, verifier
from training.assemble import build_module
from training.checkpoint.capture import capture
from training.checkpoint.save import Place, save

# Built late, as for sharding; its own metrics.py has no Score, and another Old.
MODEL = """
import lightning as L
from torch import nn
import metrics


class Net(L.LightningModule):
    def configure_model(self):
        self.layer = nn.Linear(4, 1)

    def predict_step(self, batch, batch_idx):
        return metrics.halve(self.layer(batch[0])[:, 0])
"""
THEIRS = """
def halve(x):
    return x / 2
"""
OURS = """
import torch, torchmetrics

class Score(torchmetrics.MeanMetric):
    def update(self, prediction, target):
        super().update(torch.full_like(prediction, 7.0))
"""
TRAIN = {
    "lightning": {"model": {"class_path": "model.Net"}, "trainer": {"accelerator": "cpu"}},
    "batch": ["x", "y"],
    "seed": 0,
}


@pytest.fixture
def projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The champion's project and today's, both with a `metrics.py`."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    champion, today = tmp_path / "champion", tmp_path / "today"
    for folder, files in ((champion, {"model": MODEL, "metrics": THEIRS}), (today, {"metrics": OURS})):
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
    yield champion, today
    for name in ("model", "metrics"):
        sys.modules.pop(name, None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def request_of(store: Store, projects: tuple[Path, Path], tmp_path: Path) -> dict[str, Any]:
    """What verify and evaluate ask for of a sealed checkpoint of the champion's module."""
    module = build_module(TRAIN, projects[0])
    uri = "trainings/t-0/checkpoints/1-g0"
    ref = save(
        Place(store, uri, {"step": 1}, {}, {}, tmp_path), capture({"state_dict": module.state_dict()}, {}, 0), 1, []
    )
    checkpoint = {"ref": ref.to_json(), "key": "t", "training": "trainings/t-0", "generation": 0}
    facts = {"step": 1, "epoch": 0, "world_size": 1, "metrics": {}, "dropped_rows": 0}
    dataset = make_dataset(tmp_path / "dataset", {"test": 10})
    return {
        "store": store.uri,
        "store_options": {},
        "uri": "evaluations/e-0",
        "key": "e",
        "checkpoint": {**checkpoint, **facts},
        "train": TRAIN,
        "evaluate": {"metrics": {"score": {"class_path": "metrics.Score", "target": "y", "mode": "max"}}},
        "sets": {"": {"dataset": dataset, "path": str(tmp_path / "dataset"), "split": "test"}},
        "data_external": False,
        "dataset_path": "",
        "project": str(projects[0]),
        "metrics_project": str(projects[1]),
        "settings": {},
        "provenance": {},
    }


def test_a_champion_is_scored_by_todays_metrics_and_its_own_code(request_of: dict[str, Any]) -> None:
    sys.modules.pop("model"), sys.modules.pop("metrics")
    found = evaluator.main(request_of, lambda _: None)
    assert found["metrics"]["score"]["value"] == 7.0
    assert found["metrics"]["score"]["rows"] == 10


def test_layers_that_are_made_late_are_there_when_weights_are_loaded(request_of: dict[str, Any]) -> None:
    assert verifier.main(request_of, lambda _: None)["tensors"] == 2


def test_a_module_without_those_layers_does_not_fit(request_of: dict[str, Any], projects: tuple[Path, Path]) -> None:
    (projects[0] / "model.py").write_text(MODEL.replace("nn.Linear(4, 1)", "nn.Identity()"))
    sys.modules.pop("model")
    with pytest.raises(CorruptError, match="the module has no layer.bias"):
        verifier.main(request_of, lambda _: None)
