"""A score is that of all rows at once, whatever the size of a batch; logits or probabilities are decided once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torchmetrics.classification
import torchmetrics.regression

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import MetricSpec
from tasks.evidence.paired_scores import value_of
from tasks.evidence.resampled_metrics import keeps_pairs, resampled_metric
from tests.unit.training.score.test_metrics import NoTest
from training.score import metrics as score_metrics
from training.score.metrics import PredictionScore
from training.score.outcomes import PairTable, Scored
from training.score.scoring import Scorer, score
from training.score.team import Progress

ROWS = {1: 20, 83: 100}
AVERAGES = ("macro", "weighted", "micro")
OF_COUNTS = ("Accuracy", "F1Score", "HammingDistance", "JaccardIndex", "NegativePredictiveValue", "Precision", "Recall",
             "Specificity")  # fmt: skip
OF_ORDER = ("AUROC", "AveragePrecision")


BINARY = (*OF_COUNTS, *OF_ORDER, "CalibrationError", "CohenKappa", "EER", "HingeLoss", "LogAUC", "MatthewsCorrCoef")
TASKS = (("Multiclass", "num_classes"), ("Multilabel", "num_labels"))
# A hundred metrics: torchmetrics' class and its arguments.
METRICS: list[tuple[str, dict[str, Any]]] = [
    *((f"Binary{name}", {}) for name in BINARY),
    *((f"Binary{name}", {"threshold": 0.6}) for name in OF_COUNTS),
    *((f"Binary{name}", {"ignore_index": -1}) for name in ("Accuracy", *OF_ORDER, "CalibrationError")),
    *((f"Binary{name}", {"thresholds": 20}) for name in OF_ORDER),
    ("BinaryFBetaScore", {"beta": 2.0}),
    ("BinaryAUROC", {"normalization": None}),
    ("BinaryCalibrationError", {"n_bins": 7, "norm": "l2"}),
    ("BinaryCalibrationError", {"n_bins": 20, "norm": "max"}),
    *((f"{task}{n}", {count: 3, "average": one}) for task, count in TASKS for one in AVERAGES for n in OF_COUNTS),
    *((f"{task}{n}", {count: 3, "average": one}) for task, count in TASKS for one in AVERAGES[:2] for n in OF_ORDER),
    *((f"{task}{n}", {count: 3}) for task, count in TASKS for n in ("ExactMatch", "MatthewsCorrCoef")),
    ("MulticlassHingeLoss", {"num_classes": 3}),
    ("MulticlassHingeLoss", {"num_classes": 3, "squared": True}),
    ("MulticlassCalibrationError", {"num_classes": 3}),
    ("MulticlassCohenKappa", {"num_classes": 3}),
    ("MulticlassLogAUC", {"num_classes": 3, "average": "macro"}),
    ("MultilabelCoverageError", {"num_labels": 3}),
    ("MultilabelRankingAveragePrecision", {"num_labels": 3}),
    ("MultilabelRankingLoss", {"num_labels": 3}),
    ("MultilabelAUROC", {"num_labels": 3, "average": "micro"}),
    *((name, {}) for name in ("MeanSquaredError", "MeanAbsoluteError", "R2Score", "PearsonCorrCoef")),
]


def class_of(kind: str) -> Any:
    return getattr(torchmetrics.classification, kind, None) or getattr(torchmetrics.regression, kind)


def drawn(kind: str, rows: int, kept: int | None = None, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that lie in 0 to 1 for most batches, and truths; some are to be ignored."""
    draw = torch.Generator().manual_seed(seed)
    shape = (rows,) if kind.startswith("Binary") or not kind.startswith("Multi") else (rows, 3)
    if kind.startswith("Multiclass"):
        target = torch.arange(rows) % 3
        better = torch.nn.functional.one_hot(target, 3)
    else:
        target = torch.randint(0, 2, shape, generator=draw)
        target[:2] = torch.tensor([0, 1]).reshape(2, *(1 for _ in shape[1:]))
        better = target
    scores = 0.15 + 0.35 * torch.rand(*shape, generator=draw) + 0.3 * better * torch.rand(*shape, generator=draw)
    scores[-1], scores[rows // 2] = -0.4, 1.7
    if kept is not None:
        target[5::9] = kept
    return scores, target if kind.startswith(("Binary", "Multi")) else target.float()


def at_once(kind: str, init_args: dict[str, Any], prediction: torch.Tensor, target: torch.Tensor) -> float:
    return float(class_of(kind)(**init_args)(prediction, target))


def in_batches(
    kind: str, init_args: dict[str, Any], size: int, prediction: torch.Tensor, target: torch.Tensor, **more: Any
) -> Scored:
    spec = MetricSpec(class_path=f"torchmetrics.{kind}", init_args=init_args, target="y", mode="max",
                      scores=more.pop("scores", None))  # fmt: skip
    score = PredictionScore("score", spec, class_of(kind), **more)
    for scores, truth in zip(prediction.split(size), target.split(size), strict=True):
        score.update(scores, truth)
    return score.result()


@pytest.mark.parametrize("size", ROWS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_hundred_metrics_are_those_of_all_rows_at_once(size: int, tmp_path: Path) -> None:
    assert len(METRICS) >= 100
    wrong = []
    for number, (kind, init_args) in enumerate(METRICS):
        prediction, target = drawn(kind, ROWS[size], init_args.get("ignore_index"))
        table = PairTable(tmp_path / f"{number}.parquet")
        found = in_batches(kind, init_args, size, prediction, target, pairs=table)
        wanted = at_once(kind, init_args, prediction, target)
        if found.value.value != pytest.approx(wanted, rel=2e-6, abs=1e-6):
            wrong.append((kind, init_args, found.value.value, wanted))
        # Of some of the rows, as a gate on a slice computes it: with what was decided from all.
        kept, path = torch.arange(ROWS[size]) % 5 != 1, f"torchmetrics.{kind}"
        turned = prediction
        if kind.startswith(("Binary", "Multilabel")) and "normalization" not in init_args:
            turned = prediction.sigmoid()
        elif kind.startswith("Multiclass"):
            turned = prediction.softmax(1)
        wanted = at_once(kind, init_args, turned[kept], target[kept])
        if found.outcomes.unit == "row":
            value = float(np.mean(np.array(found.outcomes.values)[kept.numpy()]))
        elif keeps_pairs(path, init_args) and (kind, init_args.get("average")) != ("MulticlassAUROC", "weighted"):
            value = value_of(resampled_metric("score", path, init_args), *pairs_in(table, kept.numpy()))
        else:
            continue
        if value != pytest.approx(wanted, rel=2e-6, abs=2e-6):
            wrong.append((kind, init_args, "slice", value, wanted))
    assert not wrong, "\n".join(map(str, wrong))


def pairs_in(table: PairTable, kept: Any) -> tuple[Any, Any]:
    file = pq.read_table(table._file.path if table.close_for_pages() else "")
    target, *predictions = (column.to_numpy() for column in file.columns)
    return target[kept], (predictions[0] if len(predictions) == 1 else np.stack(predictions, axis=1))[kept]


@pytest.mark.parametrize("most", [0, 300, 2**24])
def test_scores_wait_in_memory_and_in_a_file(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_metrics, "_IN_MEMORY_BYTES", most)
    prediction, target = torch.linspace(0.1, 0.9, 101), torch.arange(101) % 2
    prediction[100] = -3
    found = in_batches("BinaryAccuracy", {}, 10, prediction, target)
    assert found.outcomes.values == [*(target[:100] == 1).float().tolist(), 1.0]


def test_what_predict_step_returns_can_be_said() -> None:
    prediction, target = torch.tensor([0.2, 0.4, 0.6, 0.9]), torch.tensor([1, 0, 1, 1])

    def accuracy(**more: Any) -> float:
        return in_batches("BinaryAccuracy", {}, 2, prediction, target, **more).value.value

    assert (accuracy(), accuracy(scores="probabilities"), accuracy(scores="logits")) == (0.75, 0.75, 0.75)
    prediction, target = torch.tensor([0.2, 0.4, 0.6, 0.9]), torch.tensor([1, 1, 1, 1])
    assert (accuracy(), accuracy(scores="probabilities"), accuracy(scores="logits")) == (0.5, 0.5, 1.0)
    prediction = torch.tensor([0.2, 0.4, 0.6, 1.0000002])
    assert accuracy(scores="probabilities") == 0.5
    prediction = torch.tensor([0.2, 0.4, 0.6, 1.3])
    with pytest.raises(UsageError, match=r"a score is below 0 or above 1.*Write scores: logits"):
        accuracy(scores="probabilities")
    with pytest.raises(UsageError, match="metrics.score.scores has no effect: MulticlassAccuracy takes scores as"):
        in_batches("MulticlassAccuracy", {"num_classes": 3}, 2, torch.rand(4, 3), target, scores="logits")
    with pytest.raises(ValueError, match="scores"):
        MetricSpec(logged="a", scores="logits", mode="max")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_row_that_does_not_count_does_not_decide(size: int) -> None:
    prediction, target = torch.tensor([0.2, 0.9, 7.0, 0.4]), torch.tensor([0, 1, -1, 1])
    found = in_batches("BinaryCalibrationError", {"ignore_index": -1}, size, prediction, target)
    wanted = at_once("BinaryCalibrationError", {"ignore_index": -1}, prediction, target)
    assert found.value.value == pytest.approx(wanted)


THREE = {"num_classes": 3}
LABELS = {"num_labels": 3}
NOT_DEFINED: list[tuple[str, dict[str, Any], list[Any], str]] = [
    ("BinaryAUROC", {}, [1, 1, 1, 1], "all rows are of class 1"),
    ("BinaryAUROC", {"thresholds": 5}, [0, 0, 0, 0], "no row is of class 1"),
    ("BinaryAUROC", {"ignore_index": 0}, [0, 1, 1, 0], "all rows are of class 1"),
    ("BinaryAveragePrecision", {}, [0, 0, 0, 0], "no row is of class 1"),
    ("BinaryEER", {}, [1, 1, 1, 1], "all rows are of class 1"),
    ("MulticlassAUROC", THREE, [0, 1, 1, 0], "no row is of class 2"),
    ("MulticlassAUROC", {**THREE, "average": "weighted"}, [2, 2, 2, 2], "all rows are of class 2"),
    ("MulticlassAveragePrecision", THREE, [0, 2, 2, 0], "no row is of class 1"),
    ("MultilabelAUROC", LABELS, [[0, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]], "all rows are of class 1"),
    ("MultilabelAveragePrecision", LABELS, [[0, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]], "no row is of class 2"),
    ("PearsonCorrCoef", {}, [1.0, 1.0, 1.0, 1.0], "its formula has no value for these rows"),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(("kind", "init_args", "target", "reason"), NOT_DEFINED, ids=lambda one: str(one))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_not_defined_is_nan_and_says_why(
    kind: str, init_args: dict[str, Any], target: list[Any], reason: str, size: int
) -> None:
    shape = (4, 3) if kind.startswith("Multi") else (4,)
    prediction = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    found = in_batches(kind, init_args, size, prediction, torch.tensor(target))
    assert np.isnan(found.value.value)
    assert found.undefined == reason


DEFINED: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("BinaryAveragePrecision", {}, [1, 1, 1, 1]),
    ("MulticlassAUROC", {**THREE, "average": "weighted"}, [0, 1, 1, 0]),
    ("MultilabelAUROC", {**LABELS, "average": "micro"}, [[0, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]]),
    ("MulticlassRecall", THREE, [0, 1, 1, 0]),
]


@pytest.mark.parametrize(("kind", "init_args", "target"), DEFINED, ids=lambda one: str(one))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_defined_keeps_its_value(kind: str, init_args: dict[str, Any], target: list[Any]) -> None:
    shape = (4, 3) if kind.startswith("Multi") else (4,)
    prediction, truth = torch.rand(shape), torch.tensor(target)
    found = in_batches(kind, init_args, 3, prediction, truth)
    assert found.value.value == pytest.approx(at_once(kind, init_args, prediction, truth), rel=1e-6)
    assert found.undefined == ""


def test_scores_of_a_set_are_what_they_were_on_the_sets_before() -> None:
    spec = {"right": MetricSpec(class_path="torchmetrics.classification.BinaryAccuracy", target="y", mode="max")}
    classes = {"right": torchmetrics.classification.BinaryAccuracy}
    truth = torch.ones(4)

    def right(scorer: Scorer, *scores: float) -> float:
        rows = torch.utils.data.DataLoader([(torch.tensor(scores), truth)], batch_size=None)
        return score(NoTest(), rows, spec, classes, scorer)["right"].value.value

    def scorer() -> Scorer:
        train = {"lightning": {"trainer": {"accelerator": "cpu"}}, "batch": ["x", "y"]}
        return Scorer(train, Path(__file__).parent, Progress(lambda report: None))

    assert right(scorer(), 0.2, 0.4, 0.6, 0.8) == 0.5
    known = scorer()
    assert right(known, 0.2, -0.4, 0.6, 0.8) == 0.75
    assert right(known, 0.2, 0.4, 0.6, 0.8) == 1.0
    known = scorer()
    assert right(known, 0.2, 0.4, 0.6, 0.8) == 0.5
    with pytest.raises(UsageError, match="metrics.right: a score is below 0 or above 1, but those of an earlier set"):
        right(known, 0.2, 0.4, 0.6, 1.8)
