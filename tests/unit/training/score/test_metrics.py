"""Metrics over batches: the value is torchmetrics' own, the outcomes are the finest whose mean it is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torchmetrics
from torch import nn

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import MetricSpec
from training.score.metrics import metric_classes
from training.score.scoring import Scorer, score
from training.score.team import Progress

TRAIN = {"lightning": {"model": {"class_path": "x.Y"}, "trainer": {"accelerator": "cpu"}}, "batch": ["x", "y"]}
HERE = Path(__file__).parent
PREFIX = "torchmetrics.classification."
ACCURACY = {"class_path": f"{PREFIX}MulticlassAccuracy", "init_args": {"num_classes": 3, "average": "micro"}}


class Module(L.LightningModule):
    """Adds one to its input's scores, so that predictions can be told."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=3, average="micro")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("loss", nn.functional.cross_entropy(self(x), y))
        self.accuracy(self(x), y)
        self.log("acc", self.accuracy)

    def on_test_epoch_end(self) -> None:
        self.log("late", torch.tensor(0.25))


def batches(sizes: tuple[int, ...] = (4, 4, 2), seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 3, generator=draw), torch.randint(0, 3, (n,), generator=draw)) for n in sizes]


def loader_of(*batches: tuple[torch.Tensor, torch.Tensor]) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def scored(
    metrics: dict[str, dict], module: L.LightningModule | None = None, train: dict = TRAIN, source: Any = None
) -> dict:
    specs = {name: MetricSpec(**{"mode": "max", **fields}) for name, fields in metrics.items()}
    scorer = Scorer(train, HERE, Progress(lambda report: None))
    return score(module or Module(), source or loader_of(*batches()), specs, metric_classes(specs, HERE, HERE), scorer)


def whole() -> tuple[torch.Tensor, torch.Tensor]:
    xs, ys = zip(*batches(), strict=True)
    return torch.cat(xs), torch.cat(ys)


def test_a_mean_over_rows_keeps_one_outcome_per_row() -> None:
    found = scored({"accuracy": {**ACCURACY, "target": "y"}})["accuracy"]
    x, y = whole()
    right = (x.argmax(1) == y).float()
    assert found.value.value == pytest.approx(right.mean().item())
    assert (found.value.unit, found.value.rows) == ("row", 10)
    assert found.outcomes.values == right.tolist()


@pytest.mark.parametrize(("name", "unit", "count"), [("loss", "batch", 3), ("acc", "batch", 3), ("late", "dataset", 1)])
def test_what_test_step_logs_is_captured_per_batch(name: str, unit: str, count: int) -> None:
    found = scored({"m": {"logged": name}})["m"]
    x, y = whole()
    expected = {
        "loss": nn.functional.cross_entropy(x + 1, y).item(),
        "acc": (x.argmax(1) == y).float().mean().item(),
        "late": 0.25,
    }
    assert found.value.value == pytest.approx(expected[name], rel=1e-5)
    assert (found.value.unit, len(found.outcomes.values)) == (unit, count)
    assert sum(found.outcomes.rows) == found.value.rows == 10


class Dictionary(Module):
    def predict_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> dict[str, torch.Tensor]:
        return {"logits": self(batch[0])}


class Empty(Module):
    """Its loss is not a number."""

    def test_step(self, batch: object, batch_idx: int) -> None:
        self.log("loss", torch.tensor(math.nan))


class NoTest(L.LightningModule):
    """Its input is its prediction."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_dictionary_of_predictions_needs_a_key() -> None:
    spec = {**ACCURACY, "target": "y", "prediction": "logits"}
    assert scored({"a": spec}, Dictionary())["a"].value.unit == "row"
    with pytest.raises(UsageError, match=r"evaluate.metrics.a.prediction: predict_step returns logits"):
        scored({"a": {**spec, "prediction": "probabilities"}}, Dictionary())


REFUSED = [
    (
        {"class_path": "torchmetrics.Acuracy", "target": "y"},
        Module,
        "module torchmetrics has no Acuracy",
    ),
    ({"class_path": "torch.nn.Linear", "target": "y"}, Module, r"torch\.nn\.Linear is not a Metric"),
    ({**ACCURACY, "init_args": {"classes": 3}, "target": "y"}, Module, "init_args: MulticlassAccuracy refuses them"),
    ({**ACCURACY, "target": "z"}, Module, "target: a batch has no z"),
    ({**ACCURACY, "init_args": {"num_classes": 9}, "target": "x"}, Module, "cannot score predictions of shape"),
    ({"logged": "accuracy"}, Module, "test_step logs no accuracy; it logs acc, late, loss"),
    ({"logged": "loss"}, NoTest, "NoTest has no test_step"),
    ({"logged": "loss"}, Empty, "its value is nan"),
]


@pytest.mark.parametrize(("fields", "module", "words"), REFUSED, ids=[case[2] for case in REFUSED])
def test_a_metric_that_cannot_be_is_refused_in_one_sentence(fields: dict, module: type, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        scored({"a": fields}, module())


def rows_of(answers: torch.Tensor, target: torch.Tensor) -> torch.utils.data.DataLoader:
    sizes = (100, 100, len(target) - 200)
    return torch.utils.data.DataLoader(list(zip(answers.split(sizes), target.split(sizes), strict=True)), None)


class Answers(L.LightningModule):
    """Its input is its answer; what it logs is the share of right ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        self.log("right", (batch[0] == batch[1]).float().mean(), batch_size=len(batch[0]))


@pytest.mark.parametrize(
    ("metric", "rows", "unit"),
    [
        ({"class_path": f"{PREFIX}BinaryAccuracy", "target": "y"}, 360, "row"),
        ({"class_path": f"{PREFIX}BinaryRecall", "target": "y"}, 400, "dataset"),
        ({"logged": "right"}, 360, "batch"),
    ],
    ids=["row", "dataset", "logged"],
)
def test_a_value_at_a_round_bound_is_that_bound(metric: dict, rows: int, unit: str) -> None:
    # 342 of 360 are found, which single precision calls 0.949999988.
    target = (torch.arange(rows) < 360).long()
    answers = target.float()
    answers[:18] = 0
    found = scored({"a": metric}, Answers(), source=rows_of(answers, target))["a"]
    assert (found.value.unit, found.value.value) == (unit, 0.95)


LOGGED: dict[str, tuple[Any, float]] = {
    "twice in a batch": (lambda m, y: [m.log("a", v, batch_size=1) for v in (1.0, 3.0)], 2.0),
    "a sum": (lambda m, y: m.log("a", float(len(y)), reduce_fx="sum"), 10.0),
    "a maximum": (lambda m, y: m.log("a", float(len(y)), reduce_fx="max"), 4.0),
    "in some batches": (lambda m, y: m.log("a", float(len(y))) if len(y) == 4 else None, 4.0),
}


@pytest.mark.parametrize(("log", "expected"), LOGGED.values(), ids=LOGGED)
def test_what_is_logged_in_another_way_has_lightnings_own_value(log: Any, expected: float) -> None:

    class Logs(Module):
        def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
            log(self, batch[1])

    found = scored({"a": {"logged": "a"}}, Logs())["a"]
    assert found.value.value == expected
    assert (found.value.unit, found.outcomes.values, found.outcomes.rows) == ("dataset", [expected], [10])


class Shifted(L.LightningDataModule):
    """Turns every answer right on its way to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.stages: list[str] = []

    def setup(self, stage: str) -> None:
        self.stages.append(stage)

    def test_dataloader(self) -> torch.utils.data.DataLoader:
        return rows_of(torch.zeros(360), torch.ones(360))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] + 1, batch[1]


def test_a_data_modules_own_hooks_see_its_batches() -> None:
    data = Shifted()
    metrics = {"a": {"class_path": f"{PREFIX}BinaryAccuracy", "target": "y"}, "b": {"logged": "right"}}
    found = scored(metrics, Answers(), source=data)
    assert [one.value.value for one in found.values()] == [1.0, 1.0]
    assert data.stages == ["test", "test"]
    assert "setup" not in vars(data)


SCORES = torch.tensor([0.9, 0.2, 0.8, 0.4, 0.7])
LABELS = torch.tensor([1, 0, 1, 1, 0])
SEVERAL = torch.stack([SCORES, 1 - SCORES, SCORES.flip(0)], 1), torch.stack([LABELS, 1 - LABELS, LABELS.flip(0)], 1)
FORMS = {
    "a score in a column": (SCORES[:, None], LABELS),
    "a label in a column": (SCORES, LABELS[:, None]),
    "both in columns, labels as floats": (SCORES[:, None], LABELS[:, None].float()),
    "labels as floats": (SCORES, LABELS.float()),
}


BINARY = [f"{PREFIX}Binary{name}" for name in ("Accuracy", "AUROC", "F1Score")] + ["torchmetrics.MeanSquaredError"]
MULTILABEL = [f"{PREFIX}Multilabel{name}" for name in ("F1Score", "AUROC", "AveragePrecision", "Accuracy")]


@pytest.mark.parametrize(
    ("names", "init_args", "plain", "form"),
    [
        *((BINARY, {}, (SCORES, LABELS), form) for form in FORMS.values()),
        (MULTILABEL, {"num_labels": 3}, SEVERAL, (SEVERAL[0], SEVERAL[1].float())),
    ],
    ids=[*FORMS, "several labels as floats"],
)
def test_a_column_is_one_number_a_row_and_labels_are_integers(
    names: list[str], init_args: dict, plain: Any, form: Any
) -> None:
    metrics = {name: {"class_path": name, "init_args": init_args, "target": "y"} for name in names}
    found, wanted = (
        scored(metrics, NoTest(), source=loader_of((x[:4], y[:4]), (x[4:], y[4:]))) for x, y in (form, plain)
    )
    assert {name: one.value for name, one in found.items()} == {name: one.value for name, one in wanted.items()}


class Squeezed(L.LightningModule):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze()


def test_a_squeeze_that_takes_the_rows_of_a_last_batch_is_named() -> None:
    loader = loader_of(*((torch.rand(size, 3), torch.zeros(size, dtype=torch.long)) for size in (4, 1)))
    with pytest.raises(
        UsageError, match=r"evaluate.metrics.a: predict_step .* shape \(3,\) for a batch of 1 row\."
    ) as caught:
        scored({"a": {**ACCURACY, "target": "y"}}, Squeezed(), source=loader)
    assert "squeeze(1)" in caught.value.remedy
