"""Metrics that are not means over rows: as torchmetrics has them, with a p-value and an interval that hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.classification as classification
import torchmetrics.regression as regression
from numpy.typing import NDArray

from tasks.evidence.paired_scores import PairedScores, Ranking, value_of
from tasks.evidence.resampled_metrics import resampled_metric

KINDS = [
    ("BinaryAUROC", {}),
    ("BinaryAveragePrecision", {}),
    ("BinaryF1Score", {}),
    ("BinaryF1Score", {"threshold": 0.3}),
    ("BinaryPrecision", {}),
    ("BinaryRecall", {"ignore_index": 0}),
    ("BinarySpecificity", {}),
    ("MulticlassSpecificity", {"num_classes": 4, "average": "micro"}),
    ("MulticlassSpecificity", {"num_classes": 4}),
    ("BinaryMatthewsCorrCoef", {}),
    ("BinaryCohenKappa", {}),
    ("BinaryJaccardIndex", {}),
    ("BinaryCalibrationError", {"n_bins": 10}),
    ("BinaryCalibrationError", {"n_bins": 7, "norm": "l2"}),
    ("MulticlassAccuracy", {"num_classes": 4, "average": "macro"}),
    ("MulticlassF1Score", {"num_classes": 4, "average": "weighted"}),
    ("MulticlassF1Score", {"num_classes": 4, "average": "micro"}),
    ("MulticlassAUROC", {"num_classes": 4}),
    ("MulticlassCalibrationError", {"num_classes": 4, "norm": "max"}),
    ("MulticlassMatthewsCorrCoef", {"num_classes": 4}),
    ("MulticlassJaccardIndex", {"num_classes": 4}),
    ("MeanSquaredError", {"squared": False}),
    ("R2Score", {}),
    ("PearsonCorrCoef", {}),
]


def drawn(kind: str, rows: int, seed: int, ties: bool = False) -> tuple[Any, Any, Any]:
    """Truth and two models' predictions, as the metric takes them."""
    draw = np.random.default_rng(seed)
    if kind.startswith("Multiclass"):
        target = draw.integers(0, 4, rows)
        scores = [draw.normal(size=(rows, 4)) + skill * np.eye(4)[target] for skill in (1.0, 1.2)]
        if ties:
            scores = [np.round(one) for one in scores]
        return target, *(torch.softmax(torch.tensor(one), 1).float().numpy() for one in scores)
    if kind.startswith("Binary"):
        target = draw.integers(0, 2, rows)
        scores = [1 / (1 + np.exp(-(draw.normal(size=rows) + skill * (2 * target - 1)))) for skill in (0.7, 0.9)]
        if ties:
            scores = [np.round(one, 1) for one in scores]
        return target, *(one.astype(np.float32) for one in scores)
    target = draw.normal(size=rows)
    return target.astype(np.float32), *((target + draw.normal(size=rows)).astype(np.float32) for _ in range(2))


def by_torchmetrics(kind: str, init_args: dict[str, Any], target: Any, prediction: Any) -> float:
    module = classification if hasattr(classification, kind) else regression
    metric = getattr(module, kind)(**init_args).set_dtype(torch.float64)
    return float(metric(torch.tensor(prediction), torch.tensor(target)))


def of(kind: str, init_args: dict[str, Any]) -> Any:
    return resampled_metric("score", f"torchmetrics.{kind}", init_args)


@pytest.mark.parametrize(("kind", "init_args"), KINDS, ids=lambda one: str(one))
@pytest.mark.parametrize(("rows", "ties"), [(200, False), (501, True), (12, True)])
def test_value_is_that_of_torchmetrics(kind: str, init_args: dict[str, Any], rows: int, ties: bool) -> None:
    for seed in range(3):
        target, one, _ = drawn(kind, rows, seed, ties)
        wanted = by_torchmetrics(kind, init_args, target, one)
        assert value_of(of(kind, init_args), target, one) == pytest.approx(wanted, abs=2e-6)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("bins", [1, 3, 10, 11, 15, 20, 37, 100])
def test_scores_at_the_edges_of_bins_are_in_torchmetrics_bins(bins: int, norm: Any) -> None:
    edges = torch.linspace(0, 1, bins + 1)
    scores = torch.cat([edges, edges.nextafter(torch.tensor(0.0)), edges.nextafter(torch.tensor(1.0))]).numpy()
    scores = np.concatenate([scores, (np.arange(bins + 1) / bins).astype(np.float32)])
    target = (np.arange(len(scores)) % 3 == 0).astype(np.int64)
    metric = classification.BinaryCalibrationError(n_bins=bins, norm=norm)
    found = value_of(of("BinaryCalibrationError", {"n_bins": bins, "norm": norm}), target, scores)
    assert found == pytest.approx(float(metric(torch.tensor(scores), torch.tensor(target))), abs=1e-6)


@pytest.mark.parametrize(("kind", "init_args"), KINDS, ids=lambda one: str(one))
def test_gain_and_interval(kind: str, init_args: dict[str, Any]) -> None:
    target, mine, theirs = drawn(kind, 300, 1)
    metric = of(kind, init_args)
    mode = "min" if "Error" in kind else "max"
    scores = PairedScores(metric, mode, target, mine, theirs)
    sign = 1 if mode == "max" else -1
    assert scores.gain == pytest.approx(sign * (value_of(metric, target, mine) - value_of(metric, target, theirs)))
    found = scores.interval(0.95)
    assert found.low < scores.gain < found.high
    # The spread of the resamples and of the influence are two estimates of one thing; a calibration error, which has
    # corners, spreads less than its slopes say.
    rows = np.random.default_rng(2).integers(0, 300, (150, 300))
    spread = np.nanstd(
        [value_of(metric, target[at], mine[at]) - value_of(metric, target[at], theirs[at]) for at in rows]
    )
    assert 0.75 < (scores._influence.std() / np.sqrt(300) / spread) < (1.8 if "Calibration" in kind else 1.35)
    assert scores._influence.mean() == pytest.approx(0, abs=1e-6)
    # The other way round is the other way round.
    reverse = PairedScores(metric, mode, target, theirs, mine)
    assert reverse.gain == pytest.approx(-scores.gain)
    assert reverse.p_value() + scores.p_value() > 0.95  # 1 for a normal distribution; more where both are cautious


@pytest.mark.parametrize(("kind", "init_args"), KINDS, ids=lambda one: str(one))
@pytest.mark.parametrize("mode", ["max", "min"])
def test_one_model_alone(kind: str, init_args: dict[str, Any], mode: Any) -> None:
    target, mine, _ = drawn(kind, 300, 1)
    metric = of(kind, init_args)
    alone, sign = PairedScores(metric, mode, target, mine, None), 1 if mode == "max" else -1
    assert alone.gain == pytest.approx(sign * value_of(metric, target, mine))
    found = alone.interval(0.95)
    assert found.low < alone.gain < found.high
    assert ("too large on few rows" in found.method) == ("Calibration" in kind)
    deviation = alone._influence.std() / np.sqrt(300)
    assert alone.p_value(alone.gain - 8 * deviation) < 1e-3
    assert alone.p_value(alone.gain + deviation) > 0.5
    # Against itself a model gains nothing, and what both share does not count.
    assert PairedScores(metric, mode, target, mine, mine).p_value() == 1


def test_an_interval_ends_where_the_metric_does() -> None:
    draw = np.random.default_rng(3)
    target = np.arange(40) % 2
    scores = (target + draw.normal(0, 0.4, 40)).clip(0, 1).astype(np.float32)
    alone = PairedScores(of("BinaryAUROC", {}), "max", target, scores, None).interval(0.999)
    assert (alone.high, alone.low > 0) == (1.0, True)
    assert PairedScores(of("BinaryAUROC", {}), "min", target, scores, None).interval(0.999).low == -1.0
    error = PairedScores(of("MeanSquaredError", {"squared": False}), "min", target, scores, None).interval(0.999)
    assert error.high <= 0


COVERED: list[tuple[str, dict[str, Any], bool]] = [
    ("MeanSquaredError", {"squared": False}, True), ("MeanSquaredError", {"squared": False}, False),
    ("BinaryAUROC", {}, True), ("BinaryAUROC", {}, False), ("BinaryF1Score", {}, False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "init_args", "paired"), COVERED, ids=lambda one: str(one))
def test_an_interval_covers_as_often_as_it_says(kind: str, init_args: dict[str, Any], paired: bool) -> None:
    metric, mode, times = of(kind, init_args), "min" if "Error" in kind else "max", 600

    def scores(rows: int, seed: int) -> PairedScores:
        target, mine, theirs = drawn(kind, rows, seed)
        return PairedScores(metric, mode, target, mine, theirs if paired else None)  # type: ignore[arg-type]

    truth = scores(1_000_000, 1).gain
    found = [scores(100, seed).interval(0.9) for seed in range(10, 10 + times)]
    assert np.mean([one.low <= truth <= one.high for one in found]) >= 0.9 - 3 * np.sqrt(0.09 / times)


@pytest.mark.parametrize("kind", ["BinaryAUROC", "BinaryAveragePrecision"])
def test_influence_is_what_more_of_a_row_changes(kind: str) -> None:
    target, one, _ = drawn(kind, 400, 3, ties=True)
    scores, truth, area, times = one.astype(np.float64), target == 1, kind == "BinaryAUROC", 1000
    ranking = Ranking(scores, truth)
    influence = ranking.area_influence() if area else ranking.precision_influence()

    def value(copies: NDArray[np.int64]) -> float:
        repeated = Ranking(np.repeat(scores, copies), np.repeat(truth, copies))
        return repeated.area() if area else repeated.precision()

    copies = np.full(400, times)
    for row in range(0, 400, 37):
        more = copies + (np.arange(400) == row)
        assert influence[row] == pytest.approx((value(more) - value(copies)) * times * 400, abs=1e-2)


@pytest.mark.parametrize("kind", ["BinaryAUROC", "BinaryF1Score", "BinaryCalibrationError"])
def test_equal_models_are_seldom_called_different(kind: str) -> None:
    metric, years = of(kind, {}), 600
    draw = np.random.default_rng(5)
    p_values = []
    for _ in range(years):
        target = draw.integers(0, 2, 400)
        one, other = ((draw.normal(size=400) + target) / 4 % 1 for _ in range(2))
        p_values.append(PairedScores(metric, "max", target, one.astype(np.float32), other.astype(np.float32)).p_value())
    # 2.5 % and 10 % of 600, and four standard deviations of them.
    assert np.sum(np.array(p_values) <= 0.025) <= 15 + 16
    assert np.sum(np.array(p_values) <= 0.1) <= 60 + 30
    assert np.sum(np.array(p_values) <= 0.5) >= 300 - 50


def test_units_are_drawn_as_a_whole() -> None:
    target, mine, theirs = drawn("BinaryAUROC", 200, 2)
    alone = PairedScores(of("BinaryAUROC", {}), "max", target, mine, theirs)
    # Each row ten times over says no more than once.
    many = [np.repeat(one, 10) for one in (target, mine, theirs)]
    together = PairedScores(of("BinaryAUROC", {}), "max", *many, np.repeat(np.arange(200), 10))
    assert (together.p_value(), together.num_units) == (pytest.approx(alone.p_value(), rel=1e-6), 200)
    wide = alone.interval(0.95)
    one = together.interval(0.95)
    narrow = PairedScores(of("BinaryAUROC", {}), "max", *many).interval(0.95)
    assert one.high - one.low == pytest.approx(wide.high - wide.low, rel=1e-2)
    assert narrow.high - narrow.low < 0.5 * (wide.high - wide.low)


def test_one_class_alone_decides_nothing() -> None:
    draw = np.random.default_rng(0)
    scores = PairedScores(
        of("BinaryAUROC", {}), "max", np.zeros(50, np.int64), draw.random(50, np.float32), draw.random(50, np.float32)
    )
    assert scores.p_value() == 1
