"""The children of verify and evaluate, run here: a sealed checkpoint, its own code, and today's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pyarrow.parquet as pq
import pytest
import torch

from data_contracts.errors import CorruptError, InsufficientEvidence, UserCodeError
from data_contracts.handoffs import Checkpoint, Dataset, Ref
from data_contracts.messages.children import EvaluateRequest, ScoredSet, StoreAddress, Verified, VerifyRequest
from data_contracts.messages.commands import ExportRequest
from infra.records.evaluations import outcomes_of, unsealed
from infra.store import Store
from tests.support.gang import make_dataset
from tests.support.scoring import ready_module
from tests.support.tiny import own_modules
from training.checkpoint.saver import CheckpointTarget, capture, save
from training.export import worker as export_worker
from training.fit.reference_loss import record
from training.loader import OrderedLoader, Shards, Split
from training.score import evaluate_worker, verify_worker
from training.user.ready import plain_trainer

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
    champion, today = tmp_path / "champion", tmp_path / "today"
    for folder, files in ((champion, {"model": MODEL, "metrics": THEIRS}), (today, {"metrics": OURS})):
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
    with own_modules():
        yield champion, today


@pytest.fixture
def request_of(store: Store, projects: tuple[Path, Path], tmp_path: Path) -> EvaluateRequest:
    """What evaluate asks for of a sealed checkpoint of the champion's module."""
    with own_modules():
        checkpoint = sealed(store, tmp_path, ready_module(TRAIN, projects[0]))
    dataset = make_dataset(tmp_path / "dataset", {"train": 8, "test": 10})
    theirs, ours = (Ref(uri=f"code/{name}", id=name * 64, seal=name * 64) for name in "ab")
    return EvaluateRequest(
        store=StoreAddress(uri=store.uri),
        uri="evaluations/e-0",
        key="e",
        checkpoint=checkpoint,
        train=TRAIN,
        evaluate={"metrics": {"score": {"class_path": "metrics.Score", "target": "y", "mode": "max"}}},
        sets={"": ScoredSet(dataset=Dataset.from_json(dataset), split="test")},
        data_external=False,
        code=theirs,
        metrics_code=ours,
        paths={
            theirs.id: str(projects[0]), ours.id: str(projects[1]), dataset["ref"]["id"]: str(tmp_path / "dataset"),
        },
        settings={},
        provenance={},
    )  # fmt: skip


def sealed(store: Store, scratch: Path, module: Any, name: str = "t", held: Any = None) -> Checkpoint:
    """A sealed checkpoint of a module."""
    settings = {"step": 1, **({"held": held} if held else {})}
    place = CheckpointTarget(store, f"trainings/{name}-0/checkpoints/1-g0", settings, {}, {}, scratch)
    ref = save(place, capture({"state_dict": module.state_dict()}, {}, 0), 1, [])
    facts = {"step": 1, "epoch": 0, "world_size": 1, "metrics": {}, "dropped_rows": 0}
    return Checkpoint.from_json(
        {"ref": ref.to_json(), "key": name, "training": f"trainings/{name}-0", "generation": 0, **facts}
    )


def verified(asked: EvaluateRequest, dataset: Dataset | None = None) -> Verified:
    """What verify finds in the same checkpoint."""
    request = VerifyRequest(
        store=asked.store, checkpoint=asked.checkpoint, train=asked.train, dataset=dataset, code=asked.code,
        paths=asked.paths,
    )  # fmt: skip
    return verify_worker.main(request, lambda report: None)


def test_a_champion_is_scored_by_todays_metrics_and_its_own_code(request_of: EvaluateRequest) -> None:
    found = evaluate_worker.main(request_of, lambda _: None)
    assert found.metrics["score"].value == 7.0
    assert found.metrics["score"].rows == 10


def test_the_scores_of_a_sealed_set_are_apart_from_all_that_people_read(
    request_of: EvaluateRequest, store: Store
) -> None:
    sets = {"judge": {"split": "test", "sealed": True}, "open": {"split": "test"}}
    asked = request_of.model_copy(
        update={
            "evaluate": {**request_of.evaluate, "sets": sets},
            "sets": {**request_of.sets, **dict.fromkeys(sets, request_of.sets[""])},
            "predictions": True,
        }
    )
    found = evaluate_worker.main(asked, lambda _: None)
    assert set(found.metrics) == {"score", "open/score"}
    assert found.sealed == ["judge/score"]
    assert set(found.predictions) == {"", "open"}
    whole = unsealed(store, found)
    assert whole.metrics["judge/score"] == whole.metrics["score"]
    assert outcomes_of(store, whole, "judge/score").values.tolist() == [7.0] * 10
    folder = store.local(found.ref)
    said = [path.name for path in folder.iterdir() if b"judge/score" in path.read_bytes()]
    assert set(said) == {"handoff.json", "sealed.json", "sealed-outcomes.parquet"}
    assert (folder / "handoff.json").read_text().count("judge/score") == 1, "its name alone"
    assert not list(folder.glob("*predictions-judge*"))


def test_layers_that_are_made_late_are_there_when_weights_are_loaded(
    request_of: EvaluateRequest, projects: tuple[Path, Path]
) -> None:
    with own_modules():
        assert verified(request_of).tensors == 2
    (projects[0] / "model.py").write_text(MODEL.replace("nn.Linear(4, 1)", "nn.Identity()"))
    with pytest.raises(CorruptError, match="the module has no layer.bias"):
        verified(request_of)


# What setup() makes: layers, weights of other models, and attributes, each time that it is called.
SETUP = """
import lightning as L
import torch
from torch import nn


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.factor = nn.Linear(4, 4), None, 0.0

    def setup(self, stage):
        with torch.no_grad():
            self.body.weight.fill_(9.0)
        self.head, self.factor = nn.Linear(4, 1), 2.0
        if GUARD and stage == "fit":
            self.steps = len(self.trainer.train_dataloader)

    def forward(self, x):
        return self.factor * self.head(self.body(x))[:, 0]

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def test_step(self, batch, batch_idx):
        self.log("mean", self(batch[0]).mean())

    def predict_step(self, batch, batch_idx):
        return self(batch[0])
"""


@pytest.mark.parametrize("guard", [False, True], ids=["any stage", "a stage that asks for the loader"])
def test_what_setup_does_comes_before_the_weights(
    guard: bool, request_of: EvaluateRequest, projects: tuple[Path, Path], store: Store, tmp_path: Path
) -> None:
    (projects[0] / "model.py").write_text(SETUP.replace("GUARD", str(guard)))
    dataset = request_of.sets[""].dataset
    split = Split(Shards(tmp_path / "dataset", dataset, "test"), batch=["x", "y"], in_order=True)
    rows = OrderedLoader(split, 4)
    trained = ready_module(TRAIN, projects[0], "test")
    with torch.no_grad():
        for number, one in enumerate(trained.parameters()):
            one.copy_(torch.linspace(-1, 1, one.numel()).reshape(one.shape) / (number + 1))
    train_rows = Split(Shards(tmp_path / "dataset", dataset, "train"), batch=["x", "y"], in_order=True)
    held = record(trained, lambda: train_rows.take(slice(0, 8)), trained.trainer, sharded=False, rows=8)
    saved = {"state_dict": trained.state_dict(), "pytorch-lightning_version": L.__version__}
    torch.save(saved, tmp_path / "saved.ckpt")
    lightning, theirs = plain_trainer(TRAIN, []), {"dataloaders": rows, "ckpt_path": tmp_path / "saved.ckpt"}
    predicted = torch.cat(lightning.predict(type(trained)(), **theirs))  # type: ignore[arg-type]
    [logged] = lightning.test(type(trained)(), **theirs, verbose=False)  # type: ignore[arg-type]

    asked = request_of.model_copy(update={
        "checkpoint": sealed(store, tmp_path, trained, "setup", held), "predictions": True, "uri": "evaluations/s-0",
        "evaluate": {"metrics": {**request_of.evaluate["metrics"], "mean": {"logged": "mean", "mode": "min"}},
                     "batch_size": 4},
    })  # fmt: skip
    found = evaluate_worker.main(asked, lambda _: None)
    table = pq.read_table(store.local(found.ref) / found.predictions[""].file)
    assert torch.equal(torch.tensor(table["prediction"].to_pylist()), predicted)
    assert found.metrics["mean"].value == pytest.approx(logged["mean"], rel=1e-6)

    answer = verified(asked, dataset)
    assert answer.tensors == 4
    assert answer.loss == (None if guard else held["loss"])
    assert ("train_dataloader" in answer.raised or "NoneType" in answer.raised) == guard

    if guard:
        return  # an export never sets up the fit stage
    (tmp_path / "exported").mkdir()
    export = ExportRequest(
        store=asked.store, checkpoint=asked.checkpoint, train=asked.train, dataset=dataset, split="test", targets=["y"],
        format="torch", folder=str(tmp_path / "exported"), code=asked.code, paths=asked.paths,
    )  # fmt: skip
    exported = export_worker.main(export, lambda report: None)
    assert exported.tensors == 4
    program = torch.export.load(tmp_path / "exported" / "model.pt2").module()
    x = split.take(slice(0, 10))[0]
    assert torch.equal(program({"x": x})["prediction"], predicted)


ROWS = """
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Own(DataLoader):
    def __init__(self, rows, size):
        super().__init__(rows, size)


class Rows(L.LightningDataModule):
    def __init__(self, first, rows, batch):
        super().__init__()
        self.y = torch.arange(first, first + rows)
        self.batch = batch

    def test_dataloader(self):
        rows = TensorDataset(torch.rand(len(self.y), 4), self.y)
        if self.batch == 3:
            return [DataLoader(rows, self.batch, False)]
        return Own(rows, self.batch) if self.batch == 2 else DataLoader(rows, batch_size=self.batch)
"""


def test_the_truth_that_a_data_module_gives_is_told_apart(
    request_of: EvaluateRequest, projects: tuple[Path, Path], store: Store
) -> None:
    (projects[0] / "rows.py").write_text(ROWS)
    metric = {"class_path": "torchmetrics.regression.MeanSquaredError", "target": "1", "mode": "min"}
    told = {}
    cases = {"first": (0, 8, 4), "same": (0, 8, 3), "own": (0, 8, 2), "other": (1, 8, 4), "fewer": (0, 7, 4)}
    for name, (first, rows, batch) in cases.items():
        data = {"class_path": "rows.Rows", "init_args": {"first": first, "rows": rows, "batch": batch}}
        train = {**TRAIN, "batch": None, "lightning": {**TRAIN["lightning"], "data": data}}
        asked: dict[str, Any] = {"uri": f"evaluations/{name}-0", "train": train, "sets": {}, "data_external": True}
        asked["evaluate"] = {"metrics": {"mse": metric}}
        with own_modules():
            found = evaluate_worker.main(request_of.model_copy(update=asked), lambda _: None)
        told[name] = store.manifest(f"evaluations/{name}-0").provenance["rows"]["mse"]
        assert found.metrics["mse"].rows == rows
    assert told["first"] == told["same"] == told["own"], "however they are batched, and whatever the inputs are"
    assert len({one["digest"] for one in told.values()}) == 3
    assert {one["of"] for one in told.values()} == {"truth"}


def test_predictions_that_are_no_numbers_are_kept_for_the_contract_which_names_their_rows(
    request_of: EvaluateRequest, projects: tuple[Path, Path], store: Store
) -> None:
    (projects[0] / "metrics.py").write_text(
        "import torch\n\ndef halve(x):\n    return torch.where(torch.arange(len(x)) == 3, float('nan'), x)\n"
    )
    with own_modules(), pytest.raises(InsufficientEvidence, match="the prediction or the truth is NaN in 1 of 10 rows"):
        evaluate_worker.main(request_of, lambda _: None)
    found = evaluate_worker.main(request_of.model_copy(update={"predictions": True}), lambda _: None)
    assert found.undecided.startswith("evaluate.metrics.score: the prediction or the truth is NaN in 1 of 10 rows")
    assert found.metrics == {}
    values = pq.read_table(store.local(found.ref) / found.predictions[""].file)["prediction"].to_pylist()
    assert [at for at, one in enumerate(values) if one != one] == [3]


def test_what_is_not_defined_on_a_set_is_not_among_its_metrics_and_is_told_with_its_reason(
    request_of: EvaluateRequest, store: Store
) -> None:
    area = {"class_path": "torchmetrics.classification.BinaryAUROC", "init_args": {"ignore_index": 0}, "target": "y"}
    mean = {"class_path": "torchmetrics.MeanSquaredError", "target": "y", "mode": "min"}
    evaluate = {"metrics": {"area": {**area, "mode": "max"}, "mean": mean}}
    evaluate["sets"] = {"judge": {"split": "test", "sealed": True}}
    both = dict.fromkeys(("", "judge"), request_of.sets[""])
    changes = {"evaluate": evaluate, "sets": both, "pairs": ["area"], "shown": "area"}
    found = evaluate_worker.main(request_of.model_copy(update=changes), lambda _: None)
    reason = "all rows are of class 1"
    assert (list(found.metrics), found.undefined) == (["mean"], {"area": reason})
    assert (found.sealed, found.pairs, found.shown) == (["judge/area", "judge/mean"], {}, {})
    opened = unsealed(store, found)
    assert opened.undefined == {"area": reason, "judge/area": reason}
    assert set(opened.metrics) == {"mean", "judge/mean"}


RAISING = {
    "metrics": """
import torchmetrics

class Score(torchmetrics.MeanMetric):
    def update(self, prediction, target):
        raise KeyError("no such class")
""",
    "model": MODEL.replace("return metrics", "assert batch_idx < 2\n        return metrics"),
}


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (
            "metrics",
            r"^evaluate.metrics.score raised KeyError: 'no such class', on rows 0 to 3 of test-00000.parquet\.",
        ),
        ("model", r"^the module's predict_step raised .*, on rows 3 to 4 of test-00001.parquet\."),
    ],
)
def test_an_error_names_what_raised_and_the_rows_of_its_batch(
    module: str, sentence: str, request_of: EvaluateRequest, projects: tuple[Path, Path]
) -> None:
    for folder in projects if module == "metrics" else projects[:1]:
        (folder / f"{module}.py").write_text(RAISING[module] + (THEIRS if module == "metrics" else ""))
    asked = request_of.model_copy(update={"evaluate": {**request_of.evaluate, "batch_size": 4}})
    with pytest.raises(UserCodeError, match=sentence):
        evaluate_worker.main(asked, lambda _: None)
