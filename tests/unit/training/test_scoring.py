"""Metrics over batches: the value is torchmetrics' own, the outcomes are the finest whose mean it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import lightning as L
import pytest
import torch
import torchmetrics
from torch import nn

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.spec import MetricSpec
from training.evaluator import outcomes_table, score

TRAIN = {"lightning": {"model": {"class_path": "x.Y"}, "trainer": {"accelerator": "cpu"}}, "batch": ["x", "y"]}
PREFIX = "torchmetrics.classification."
ACCURACY = {"class_path": f"{PREFIX}MulticlassAccuracy", "init_args": {"num_classes": 3, "average": "micro"}}
F1 = {"class_path": f"{PREFIX}MulticlassF1Score", "init_args": {"num_classes": 3, "average": "macro"}}


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


class Loader:
    """An iterable with a length, as our loader is; Lightning takes a list for several loaders."""

    def __len__(self) -> int:
        return len(batches())

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(batches())


def scored(metrics: dict[str, dict], module: L.LightningModule | None = None, train: dict = TRAIN) -> dict:
    specs = {name: MetricSpec(**{"mode": "max", **fields}) for name, fields in metrics.items()}
    return score(module or Module(), Loader(), specs, train, Path("."))


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


def test_a_metric_that_is_no_mean_is_compared_as_one_number() -> None:
    found = scored({"f1": {**F1, "target": "1"}})["f1"]
    x, y = whole()
    expected = torchmetrics.functional.f1_score(x, y, "multiclass", num_classes=3, average="macro").item()
    assert found.value.value == pytest.approx(expected)
    assert (found.value.unit, found.outcomes.rows) == ("dataset", [10])


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


def test_outcomes_stand_in_one_table_line_by_line() -> None:
    table = outcomes_table(scored({"accuracy": {**ACCURACY, "target": "y"}, "loss": {"logged": "loss"}}))
    assert table.column_names == ["metric", "unit", "position", "rows", "value"]
    assert table.num_rows == 10 + 3
    assert sum(table.column("rows").to_pylist()) == 20


class Dictionary(Module):
    def predict_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> dict[str, torch.Tensor]:
        return {"logits": self(batch[0])}


class Broken(Module):
    def predict_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        raise ZeroDivisionError("of the user's")


class NoTest(L.LightningModule):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_dictionary_of_predictions_needs_a_key() -> None:
    spec = {**ACCURACY, "target": "y", "prediction": "logits"}
    assert scored({"a": spec}, Dictionary())["a"].value.unit == "row"
    with pytest.raises(UsageError, match=r"evaluate.metrics.a.prediction: predict_step returns logits"):
        scored({"a": {**spec, "prediction": "probabilities"}}, Dictionary())


REFUSED = [
    ({"class_path": "torchmetrics.Acuracy", "target": "y"}, Module, r"there is no torchmetrics\.Acuracy"),
    ({"class_path": "torch.nn.Linear", "target": "y"}, Module, r"torch\.nn\.Linear is no torchmetrics Metric"),
    ({**ACCURACY, "init_args": {"classes": 3}, "target": "y"}, Module, "init_args: MulticlassAccuracy refuses them"),
    ({**ACCURACY, "target": "z"}, Module, "target: a batch has no z"),
    ({**ACCURACY, "init_args": {"num_classes": 9}, "target": "x"}, Module, "cannot score predictions of shape"),
    ({"logged": "accuracy"}, Module, "test_step logs no accuracy; it logs acc, late, loss"),
    ({"logged": "loss"}, NoTest, "NoTest has no test_step"),
]


@pytest.mark.parametrize(("fields", "module", "words"), REFUSED, ids=[case[2] for case in REFUSED])
def test_a_metric_that_cannot_be_is_refused_in_one_sentence(fields: dict, module: type, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        scored({"a": fields}, module())


def test_what_the_module_raises_is_the_users() -> None:
    with pytest.raises(UserCodeError, match="of the user's"):
        scored({"a": {**ACCURACY, "target": "y"}}, Broken())


def test_a_value_that_is_no_number_decides_nothing() -> None:
    class Empty(Module):
        def test_step(self, batch: object, batch_idx: int) -> None:
            self.log("loss", torch.tensor(math.nan))

    with pytest.raises(UsageError, match="its value is nan"):
        scored({"a": {"logged": "loss"}}, Empty())
