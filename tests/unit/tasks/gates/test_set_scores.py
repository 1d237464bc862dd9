"""Both models' scores, row by row, from real sealed evaluations: what they become, and what cannot be compared."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.handoffs import Evaluation
from data_contracts.pipeline_spec import GateSpec
from infra.records.evaluations import TestRows
from infra.records.handoffs import put_handoff
from infra.store import Store
from tasks.evidence.paired_scores import PairedScores
from tasks.evidence.significance import PairedCounts, PairedValues, Proportion
from tasks.gates import set_scores
from tasks.gates.set_rows import SetRows
from tasks.gates.set_scores import SetScores
from tests.support.runs import make_run
from tests.support.tiny import SPEC

ROWS = 8
METRICS: dict[str, dict[str, Any]] = {
    "accuracy": {"logged": "acc", "mode": "max"},
    "loss": {"logged": "loss", "mode": "min"},
    "f1": {"class_path": "torchmetrics.classification.BinaryF1Score", "target": "y", "mode": "max"},
    "mine": {"class_path": "mine.Score", "target": "y", "mode": "max"},
    "right": {
        "class_path": "torchmetrics.classification.BinaryAccuracy",
        "init_args": {"ignore_index": -1},
        "target": "y",
        "mode": "max",
    },
    "area": {"class_path": "torchmetrics.classification.BinaryAUROC", "target": "y", "mode": "max"},
}
UNITS = np.array([0, 0, 1, 1, 2, 2, 3, 3])


def evaluation(store: Store, key: str, outcomes: dict[str, Any], pairs: Any = None) -> Evaluation:
    """A sealed evaluation; `outcomes` are (unit, mode, values) by metric, `pairs` truth and prediction of f1."""
    writer, lines, metrics = store.writer(f"evaluations/{key}-0"), [], {}
    for name, (unit, mode, values) in outcomes.items():
        rows = {"row": 1, "batch": 2, "dataset": ROWS}[unit]
        lines += [(name, unit, at, rows, float(value)) for at, value in enumerate(values)]
        value = float(np.mean(values))
        metrics[name] = {"value": value, "mode": mode, "rows": rows * len(values), "unit": unit}
    columns = ["metric", "unit", "position", "rows", "value"]
    table = pa.table({one: [line[at] for line in lines] for at, one in enumerate(columns)})
    fields: dict[str, Any] = {
        "schema_version": 1, "key": key, "checkpoint_id": key, "dataset_ids": {"": "d"}, "metrics": metrics,
    }  # fmt: skip
    for name, one in [("outcomes.parquet", table)] + (
        [("pairs-0.parquet", pa.table({"target": pairs[0], "prediction": pairs[1]}))] if pairs is not None else []
    ):
        written = io.BytesIO()
        pq.write_table(one, written)
        writer.put(name, written.getvalue())
    if pairs is not None:
        fields["pairs"] = dict.fromkeys(outcomes, "pairs-0.parquet")
    put_handoff(writer, fields)
    return Evaluation.from_json({**fields, "ref": writer.seal("evaluation", {}, {}).to_json()})


def scores(
    store: Store, monkeypatch: pytest.MonkeyPatch, unit: str | None = None, units: Any = UNITS, key: str = "id"
) -> SetScores:
    rows = SetRows(
        TestRows.of(np.arange(ROWS, dtype=np.uint64)),
        None if unit is None else units,
        {"old": np.array([True] * 5 + [False] * 3)},
        ROWS,
        {"old": TestRows.of(np.arange(5, dtype=np.uint64))},
    )
    monkeypatch.setattr(set_scores, "read_test_rows", lambda *_: rows)
    evaluate = {"metrics": METRICS, "slices": {"old": {"column": "age", "min": 60}}, "unit": unit}
    run = make_run(store, spec={**SPEC, "evaluate": evaluate, "promote": {}, "shards": {"split": {"key": key}}})
    dataset: Any = SimpleNamespace(columns={})
    return SetScores(run, lambda: {"": (dataset, "test")})


@pytest.fixture
def plain(store: Store, monkeypatch: pytest.MonkeyPatch) -> SetScores:
    """The scores of the test rows, without units."""
    return scores(store, monkeypatch)


def gate(metric: str = "accuracy", **more: Any) -> GateSpec:
    return GateSpec.model_validate({"metric": metric, "min_gain": 0, "confidence": 0.95, **more})


RIGHT, WRONG = [1, 1, 1, 1, 1, 1, 1, 0], [1, 0, 1, 0, 1, 0, 1, 1]


def both(store: Store, unit: str = "row", mode: str = "max") -> tuple[Evaluation, Evaluation]:
    one, other = (evaluation(store, key, {"accuracy": (unit, mode, values)}) for key, values in
                  (("mine", RIGHT), ("theirs", WRONG)))  # fmt: skip
    return one, other


@pytest.mark.parametrize(
    ("mode", "units", "counts"),
    [
        ("max", {}, (3, 1, 8)),
        ("min", {}, (1, 3, 8)),  # an error rate is better when it is smaller
        ("max", {"unit": "id", "units": np.arange(ROWS)}, (3, 1, 8)),  # units of one row each are rows
    ],
)
def test_right_and_wrong_are_counted(
    mode: str, units: dict[str, Any], counts: tuple[int, int, int], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scores(store, monkeypatch, **units).paired(gate(), *both(store, mode=mode)) == PairedCounts(*counts)


def test_right_and_wrong_are_counted_on_a_slice_and_the_other_way_round(plain: SetScores, store: Store) -> None:
    mine, theirs = both(store)
    assert plain.paired(gate(), theirs, mine) == PairedCounts(1, 3, 8)
    assert plain.paired(gate(slice="old"), mine, theirs) == PairedCounts(2, 0, 5)
    on_old = plain.on_slice(mine, "accuracy", "old")
    assert (on_old.value, on_old.rows, on_old.unit) == (1.0, 5, "row")
    assert plain.units(gate()) is None


def test_one_model_alone(plain: SetScores, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = both(store)
    assert plain.alone(gate(), mine, 1) == Proportion(7, 8)
    assert plain.alone(gate(slice="old"), mine, -1) == Proportion(5, 5, -1)
    by_unit = scores(store, monkeypatch, unit="customer").alone(gate(), mine, -1)
    assert (by_unit.gains.tolist(), by_unit.rows, by_unit.gain) == ([-2, -2, -2, -1], 8, -7 / 8)


def test_one_model_alone_by_a_metric_that_is_no_mean(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = np.array([1, 1, 1, 0, 0, 0, 1, 0])
    mine = evaluation(store, "mine", {"f1": ("dataset", "max", [0.75])}, (truth, np.array(WRONG, np.float32)))
    for sign, mode in ((1, "max"), (-1, "min")):
        alone = scores(store, monkeypatch).alone(gate("f1"), mine, sign)  # type: ignore[arg-type]
        assert (alone.mode, alone.champion, alone.rows) == (mode, None, 8)


def test_units_are_added_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scores(store, monkeypatch, unit="customer")
    mine, theirs = both(store)
    paired = found.paired(gate(), mine, theirs)
    assert (paired.gains.tolist(), paired.sizes.tolist()) == ([1, 1, 1, -1], [2, 2, 2, 2])
    assert (paired.rows, paired.gain) == (8, 0.25)
    assert found.paired(gate(slice="old"), mine, theirs).gains.tolist() == [1, 1, 0]
    assert (found.units(gate()), found.units(gate(slice="old"))) == (4, 3)


def test_numbers_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.linspace(0, 1, 8)
    mine = evaluation(store, "a", {"loss": ("row", "min", values)})
    theirs = evaluation(store, "b", {"loss": ("row", "min", values[::-1])})
    paired = scores(store, monkeypatch).paired(gate("loss"), mine, theirs)
    assert (paired.gains, paired.sizes) == (pytest.approx(values[::-1] - values), None)


def test_batches_have_no_slices_and_no_units(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = evaluation(store, "a", {"accuracy": ("batch", "max", [0.5, 1.0, 1.0, 0.5])})
    theirs = evaluation(store, "b", {"accuracy": ("batch", "max", [0.5, 0.5, 1.0, 0.0])})
    paired = scores(store, monkeypatch).paired(gate(), mine, theirs)
    assert isinstance(paired, PairedValues)
    assert (paired.gain, paired.rows) == (0.25, 8)
    with pytest.raises(UsageError, match="accuracy has one value for each batch, and slice old needs one for each row"):
        scores(store, monkeypatch).paired(gate(slice="old"), mine, theirs)
    with pytest.raises(UsageError, match="evaluate.unit needs one for each row"):
        scores(store, monkeypatch, unit="customer").paired(gate(), mine, theirs)


def test_a_metric_that_is_no_mean_is_computed_again(plain: SetScores, store: Store) -> None:
    truth = np.array(RIGHT)
    mine = evaluation(store, "a", {"f1": ("dataset", "max", [0.5])}, (truth, np.array(WRONG)))
    theirs = evaluation(store, "b", {"f1": ("dataset", "max", [0.5])}, (truth, 1 - np.array(WRONG)))
    paired = plain.paired(gate("f1"), mine, theirs)
    assert isinstance(paired, PairedScores)
    assert paired.gain == pytest.approx(2 * 4 / (7 + 5) - 2 * 3 / (7 + 3))
    assert plain.on_slice(mine, "f1", "old").value == pytest.approx(2 * 3 / (5 + 3))
    other = evaluation(store, "c", {"f1": ("dataset", "max", [0.5])}, (1 - truth, np.array(WRONG)))
    with pytest.raises(InsufficientEvidence, match="scored on other rows"):
        plain.paired(gate("f1"), mine, other)


def test_one_model_by_its_rows_and_the_other_by_its_predictions(
    plain: SetScores, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is never right has the mean over all rows, 0; the other has that over the rows that count."""
    truth, scored = np.array([1, 0, -1, 1, 1, 0, -1, 0]), np.array([0.9, 0.1, 0.9, 0.2, 0.9, 0.1, 0.1, 0.9], np.float32)
    never = evaluation(store, "a", {"right": ("row", "max", [0.0] * 8)})
    often = evaluation(store, "b", {"right": ("dataset", "max", [4 / 6])}, (truth, scored))
    assert plain.paired(gate("right"), often, never) == PairedCounts(4, 0, 6)
    assert plain.paired(gate("right"), never, often) == PairedCounts(0, 4, 6)
    assert plain.paired(gate("right", slice="old"), often, never) == PairedCounts(3, 0, 4)
    by_unit = scores(store, monkeypatch, unit="customer").paired(gate("right"), often, never)
    assert (by_unit.gains.tolist(), by_unit.sizes.tolist()) == ([2, 0, 2, 0], [2, 1, 2, 1])


def test_a_metric_that_is_not_defined_on_a_slice_or_a_set_says_why(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, scored = np.array([1] * 5 + [0] * 3), np.linspace(0, 1, 8, dtype=np.float32)
    mine = evaluation(store, "a", {"area": ("dataset", "max", [0.5])}, (truth, scored))
    nan = mine.model_copy(update={"metrics": {}, "undefined": {"area": "no row is of class 1"}})
    found, on_old = scores(store, monkeypatch), gate("area", slice="old")
    of_slice = "area on the slice old is nan: all rows are of class 1, so the gate cannot decide"
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: found.on_slice(mine, "area", "old"), of_slice),
        (lambda: found.paired(on_old, mine, mine), of_slice),
        (lambda: found.alone(on_old, mine, 1), of_slice),
        (lambda: found.alone(gate("area"), nan, 1), "area is nan: no row is of class 1"),
        (lambda: found.paired(gate("area"), mine, nan), "area is nan for the champion: no row is of class 1"),
        (lambda: found.on_slice(nan, "area", "old"), "area is nan: no row is of class 1"),
    ]
    for ask, words in refused:
        with pytest.raises(InsufficientEvidence, match=words):
            ask()


def test_a_metric_of_your_own_that_is_no_mean_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (evaluation(store, key, {"mine": ("dataset", "max", [0.5])}) for key in "ab")
    with pytest.raises(
        UsageError, match=r"evaluate.metrics.mine cannot be resampled: mine.Score is a metric of your own"
    ):
        scores(store, monkeypatch).paired(gate("mine"), one, other)


def test_other_rows_decide_nothing(plain: SetScores, store: Store) -> None:
    mine, _ = both(store)
    fewer = evaluation(store, "fewer", {"accuracy": ("row", "max", WRONG[:7])})
    without = evaluation(store, "without", {"loss": ("row", "min", WRONG)})
    with pytest.raises(InsufficientEvidence, match="accuracy of the champion was scored on other rows"):
        plain.paired(gate(), mine, fewer)
    with pytest.raises(InsufficientEvidence, match="the champion has no score for accuracy"):
        plain.paired(gate(), mine, without)


@pytest.mark.parametrize(("different", "warns"), [(8, False), (5, True)])
def test_rows_of_one_key_are_warned_of(
    different: int, warns: bool, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = scores(store, monkeypatch, key="customer")
    found._sets()[""][0].columns["customer"] = "int64"
    monkeypatch.setattr(set_scores, "num_different", lambda *_: different)
    with caplog.at_level(logging.WARNING):
        found.set_rows("")
        found.set_rows("")
    warned = [one.getMessage() for one in caplog.records if "evaluate.unit" in one.getMessage()]
    assert len(warned) == (1 if warns else 0)
    if warns:
        assert "customer, the key of shards.split, has 5 different values in 8 rows of test" in warned[0]
        assert warned[0].endswith("set evaluate.unit: customer")


def test_one_batch_is_no_evidence_and_several_are_counted(plain: SetScores, store: Store) -> None:
    one = evaluation(store, "one", {"loss": ("batch", "min", [0.5]), "accuracy": ("row", "max", RIGHT)})
    with pytest.raises(InsufficientEvidence, match="loss has one value for each batch, and its 2 rows are one batch"):
        plain.alone(gate("loss"), one, -1)
    four = evaluation(store, "four", {"loss": ("batch", "min", [0.5, 0.25, 0.5, 0.125])})
    assert (plain.batches(gate("loss"), four), plain.batches(gate(), one)) == (4, None)
