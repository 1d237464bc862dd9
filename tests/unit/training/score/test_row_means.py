"""A metric is compared row by row only if it is a mean over rows, not if it is close to one."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
import torchmetrics
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader

from data_contracts.errors import InsufficientEvidence
from tests.unit.training.score.test_metrics import PREFIX, Answers, scored
from training.score.outcomes import Outcomes, close

MACRO = {"class_path": f"{PREFIX}MulticlassAccuracy", "init_args": {"num_classes": 2, "average": "macro"}}
MICRO = {"class_path": f"{PREFIX}MulticlassAccuracy", "init_args": {"num_classes": 2, "average": "micro"}}
NAN = float("nan")


def two_classes(rows: tuple[int, int], wrong: tuple[int, int], batch: int, in_order: bool) -> DataLoader:
    """Scores (B, 2) and classes (B,) with so many rows of each class, and so many of them wrong."""
    truth = torch.cat([torch.full((n,), label) for label, n in enumerate(rows)])
    answer = truth.clone()
    answer[: wrong[0]] = 1
    answer[rows[0] : rows[0] + wrong[1]] = 0
    if not in_order:
        order = torch.randperm(len(truth), generator=torch.Generator().manual_seed(0))
        truth, answer = truth[order], answer[order]
    scores = one_hot(answer, 2).float()
    return DataLoader(list(zip(scores.split(batch), truth.split(batch), strict=True)), None)


@pytest.mark.parametrize(("batch", "in_order"), [(50, False), (512, True), (10_000, False)])
@pytest.mark.parametrize(
    ("rows", "wrong"),
    [((505, 495), (30, 30)), ((501, 499), (1, 0)), ((500, 500), (9, 0))],
    ids=["nearly balanced", "one wrong", "balanced"],
)
def test_a_macro_average_is_not_taken_for_a_mean(
    rows: tuple[int, int], wrong: tuple[int, int], batch: int, in_order: bool
) -> None:
    source = two_classes(rows, wrong, batch, in_order)
    found = scored({"a": {**MACRO, "target": "y"}}, Answers(), source=source)["a"]
    expected = sum(1 - w / n for w, n in zip(wrong, rows, strict=True)) / 2
    assert found.value.value == pytest.approx(expected, rel=1e-15)
    assert found.value.unit == ("dataset" if batch < sum(rows) else "batch")


MEANS: dict[str, tuple[str, dict[str, Any]]] = {
    "squared error": ("torchmetrics.MeanSquaredError", {}),
    "absolute error": ("torchmetrics.MeanAbsoluteError", {}),
    "cosine": ("torchmetrics.CosineSimilarity", {"reduction": "mean"}),
}


@pytest.mark.parametrize(("class_path", "init_args"), MEANS.values(), ids=MEANS)
@pytest.mark.parametrize("batch", [64, 1000])
def test_a_mean_in_single_precision_keeps_its_rows(class_path: str, init_args: dict[str, Any], batch: int) -> None:
    draw = torch.Generator().manual_seed(1)
    answers, truth = (torch.randn(400, 5, generator=draw) * 1000 for _ in range(2))
    if "Cosine" not in class_path:
        answers, truth = answers[:, 0], truth[:, 0]
    source = DataLoader(list(zip(answers.split(batch), truth.split(batch), strict=True)), None)
    metric = {"class_path": class_path, "init_args": init_args, "target": "y"}
    found = scored({"a": metric}, Answers(), source=source)["a"]
    assert (found.value.unit, len(found.outcomes.values)) == ("row", 400)
    assert found.value.value == found.outcomes.mean()


def test_a_root_of_a_mean_is_not_a_mean_even_of_nearly_equal_rows() -> None:
    errors = torch.linspace(1, 1.002, 300)
    source = DataLoader(list(zip(errors.split(100), torch.zeros(300).split(100), strict=True)), None)
    metric = {"class_path": "torchmetrics.MeanSquaredError", "init_args": {"squared": False}, "target": "y"}
    found = scored({"a": metric}, Answers(), source=source)["a"]
    assert found.value.value == pytest.approx(errors.double().square().mean().sqrt().item(), rel=1e-14)


class Logs(L.LightningModule):
    """Logs a metric as a whole, a plain mean, and a maximum that is close to the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.macro = torchmetrics.classification.MulticlassAccuracy(num_classes=2, average="macro")
        self.micro = torchmetrics.classification.MulticlassAccuracy(num_classes=2, average="micro")

    def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        for name in ("macro", "micro"):
            getattr(self, name)(*batch)
            self.log(name, getattr(self, name), batch_size=len(batch[1]))
        self.log("mean", 1 + batch_idx * 1e-6, batch_size=len(batch[1]))
        self.log("max", 1 + batch_idx * 1e-6, batch_size=len(batch[1]), reduce_fx="max")


@pytest.mark.parametrize(
    ("name", "unit"), [("macro", "dataset"), ("micro", "batch"), ("mean", "batch"), ("max", "dataset")]
)
def test_what_is_logged_is_a_mean_over_batches_only_if_it_is_reduced_so(name: str, unit: str) -> None:
    source = two_classes((505, 495), (30, 32), 250, False)
    found = scored({"a": {"logged": name}}, Logs(), source=source)["a"]
    assert found.value.unit == unit
    if name == "macro":
        assert found.value.value == pytest.approx((2 - 30 / 505 - 32 / 495) / 2, rel=2**-23)


@pytest.mark.parametrize(
    ("scores", "truth", "count"),
    [
        (torch.full((4, 2), NAN), torch.zeros(4).long(), 4),
        (torch.tensor([[0.0, 1], [NAN, 1], [0, NAN], [1, 0]]), torch.ones(4).long(), 2),
        (torch.zeros(4), torch.tensor([0.0, NAN, 0, 1]), 1),
    ],
    ids=["every row", "some rows", "the truth"],
)
def test_a_prediction_or_truth_that_is_not_a_number_decides_nothing(
    scores: torch.Tensor, truth: torch.Tensor, count: int
) -> None:
    metric = MICRO if scores.dim() == 2 else {"class_path": "torchmetrics.MeanSquaredError"}
    source = DataLoader(list(zip(scores.split(2), truth.split(2), strict=True)), None)
    words = (
        rf"evaluate\.metrics\.a: the prediction or the truth is NaN in {count} of 4 rows, so the gate cannot decide\."
    )
    with pytest.raises(InsufficientEvidence, match=words):
        scored({"a": {**metric, "target": "y"}}, Answers(), source=source)


def test_an_infinite_score_is_a_mask_and_decides() -> None:
    scores = torch.tensor([[0.0, -torch.inf], [-torch.inf, 3]])
    source = DataLoader([(scores, torch.tensor([0, 1]))], None)
    assert scored({"a": {**MICRO, "target": "y"}}, Answers(), source=source)["a"].value.value == 1


def test_counts_must_agree_in_double_where_the_metric_has_it() -> None:
    counts = Outcomes("row", [1.0, 0.0], [1, 1])
    assert counts.has_mean(0.5 + 1e-8)
    assert not counts.has_mean(0.5 + 1e-8, in_double=True)
    assert not counts.has_mean(0.5 + 1e-5)
    assert not close([NAN], [1], 0)
