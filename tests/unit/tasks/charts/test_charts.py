"""Every chart, of ordinary, extreme and hostile input: a whole picture, or none."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.records import Bar as ThenAndNow
from data_contracts.records import GateResult
from tasks.charts.plots import (
    MOST_CLASSES,
    OTHER,
    Bar,
    Box,
    Curve,
    Gate,
    Mark,
    bars,
    calibration,
    confusion,
    confusion_counts,
    curves,
    forest,
    forest_rows,
    histogram,
    lineage,
    outcome,
    panels,
    residuals,
    then_and_now,
)
from tests.support.pictures import HOSTILE, texts_of
from tests.support.reported import GATES, SLICES, gate_results
from tests.support.tiny import SPEC

DRAW = np.random.default_rng(0)
MET = Gate("accuracy", "value at least 0.9", 0.95, 0.9, True, "met")
WIDE = Gate(HOSTILE, HOSTILE, 1e-9, 0.0, True, "insufficient evidence", (-1e9, 1e9), 0.5)
PICTURES: dict[str, Callable[[], str]] = {
    "forest": lambda: forest([MET, WIDE, Gate("f1", "gain of at least 0", None, 0.0, True, "met")]),
    "forest of equal values": lambda: forest([Gate("m", "a", 0.0, 0.0, False, "not met", (0.0, 0.0), 0.0)]),
    "forest of infinities": lambda: forest([Gate("m", "a", 1.0, 0.5, True, "met", (-math.inf, math.inf))]),
    "curves": lambda: curves([Curve("train_loss", range(5000), np.geomspace(1e3, 1e-6, 5000))], [Mark(9000, HOSTILE)]),
    "one point": lambda: curves([Curve(HOSTILE, [3], [7.0])]),
    "a constant": lambda: curves([Curve("m", [0, 1, 2], [5.0, 5.0, 5.0])]),
    "not all finite": lambda: curves([Curve("m", [0, 1, 2, 3], [1.0, math.nan, math.inf, 2.0])]),
    "ten curves": lambda: curves([Curve(f"{HOSTILE}{at}", [0, 1], [at, at + 1]) for at in range(10)]),
    "calibration": lambda: calibration([(0.1, 0.0, 3), (0.5, 0.7, 10), (math.nan, 0.5, 0)], HOSTILE),
    "bars": lambda: bars([Bar(HOSTILE, 3.0, HOSTILE), Bar("b", 9.0, "9 s", wasted=4.0), Bar("c", 0.0, "0")], HOSTILE),
    "bars of nothing": lambda: bars([Bar("a", 0.0, "0.0 s")], "t"),
    "then and now": lambda: then_and_now([ThenAndNow(label="y<&", then=0.1, now=0.4)], HOSTILE),
    "histogram": lambda: histogram([1, 0, 7], [-1.0, 0.0, 1.0, 2.0], HOSTILE, HOSTILE[:30]),
    "confusion": lambda: confusion(*confusion_counts(DRAW.integers(0, 40, 500), DRAW.integers(0, 40, 500))),
    "confusion of texts": lambda: confusion(*confusion_counts(["a", "b"], [HOSTILE, "b"])),
    "residuals": lambda: residuals(DRAW.normal(size=900), np.append(DRAW.normal(size=899), math.nan)),
    "residuals of one value": lambda: residuals(np.ones(5), np.ones(5)),
    "lineage": lambda: lineage(
        [
            Box(HOSTILE, HOSTILE, HOSTILE),
            Box("b", "", reused=True, from_below=("c", HOSTILE, "d")),
            Box("v", "", reached=False),
        ]
    ),
}
NOTHING: dict[str, Callable[[], str]] = {
    "forest": lambda: forest([]),
    "curves": lambda: curves([Curve("m", [0, 1], [math.nan, math.inf])]),
    "no curves": lambda: curves([]),
    "calibration": lambda: calibration([(0.5, 0.5, 0)], "t"),
    "bars": lambda: bars([Bar("a", math.nan, "?")], "t"),
    "histogram": lambda: histogram([0, 0], [0.0, 1.0, 2.0], "t", "x"),
    "histogram of one value": lambda: histogram([3], [1.0, 1.0], "t", "x"),
    "confusion": lambda: confusion([], np.zeros((0, 0))),
    "residuals": lambda: residuals(np.array([math.nan]), np.array([1.0])),
    "lineage": lambda: lineage([Box("a", "", reached=False)]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_whole(name: str) -> None:
    texts_of(PICTURES[name]())


@pytest.mark.parametrize("name", NOTHING)
def test_without_data_there_is_no_picture(name: str) -> None:
    assert NOTHING[name]() == ""


def test_a_forest_names_values_limits_and_outcomes() -> None:
    texts = texts_of(PICTURES["forest"]())
    assert {"accuracy", "value at least 0.9", "0.95", "met", "insufficient evidence", "no champion yet"} <= set(texts)


def test_rows_of_a_forest_say_what_was_asked() -> None:
    evaluate = {**SPEC["evaluate"], "slices": SLICES}
    spec = PipelineSpec.model_validate({**SPEC, "evaluate": evaluate, "promote": {"gates": GATES}})
    rows = forest_rows(gate_results(), spec)
    assert [(row.name, row.condition, row.limit, row.good_above, row.outcome) for row in rows] == [
        ("accuracy", "value at least 0.9", 0.9, True, "met"),
        ("accuracy", "gain above 0, 95 % confidence", 0.0, True, "insufficient evidence"),
        ("accuracy · weekend", "loss of at most 0.01, 95 % confidence", -0.01, True, "not met"),
        ("accuracy", "gap between slices at most 0.05", 0.05, False, "met"),
    ]
    assert [row.interval for row in rows[1:3]] == [(-0.015, 0.055), (-0.12, -0.02)]


def test_a_gain_is_in_the_direction_in_which_the_metric_is_better() -> None:
    gate = GateResult(metric="loss", met=True, value=0.4, bound=0.0, champion_value=0.5, sentence="s")
    metrics = {"loss": {"logged": "loss", "mode": "min"}}
    spec = {**SPEC, "evaluate": {"metrics": metrics}, "promote": {"gates": [{"metric": "loss", "min_gain": 0}]}}
    [row] = forest_rows([gate], PipelineSpec.model_validate(spec))
    assert row.value == pytest.approx(0.1)
    assert outcome(gate) == "met"


def test_results_of_other_gates_than_the_specs_are_shown_by_what_they_say() -> None:
    missed = GateResult(metric="accuracy", met=False, value=0.7, bound=0.8, sentence="s")
    [row] = forest_rows([missed], PipelineSpec.model_validate(SPEC))
    assert (row.condition, row.good_above, row.outcome) == ("value at least 0.8", True, "not met")


def test_curves_of_one_quantity_share_a_panel_and_the_loss_comes_first() -> None:
    history = [
        {"step": at, "epoch": 0, "train_loss": 1 / (at + 1), "val_loss": 2 / (at + 1), "accuracy": 0.5, "note": "x"}
        for at in range(4)
    ]
    drawn = panels(history)
    assert [name for name, _ in drawn] == ["loss", "accuracy"]
    assert {"train_loss", "val_loss"} <= set(texts_of(drawn[0][1]))
    sides = panels([{"step": 1, "train_loss (after)": 1.0}, {"step": 1, "train_loss (before)": 2.0}])
    assert [name for name, _ in sides] == ["loss"], "two sides share a panel"


def test_a_bar_that_was_all_wasted_has_no_good_part() -> None:
    picture = bars([Bar("start", 2.0, "2 h", "green", wasted=2.0), Bar("end", 1e-9, "0 h", "green", wasted=1e-9)], "t")
    assert "green" not in picture
    assert picture.count("--bad") == 2


def test_confusion_counts_every_row_and_puts_rare_classes_together() -> None:
    truth, prediction = DRAW.integers(0, 40, 3000), DRAW.integers(0, 40, 3000)
    names, counts = confusion_counts(truth, prediction)
    assert (len(names), names[-1], int(counts.sum())) == (MOST_CLASSES, OTHER, 3000)
    names, counts = confusion_counts(["a", "b", "b"], ["a", "a", "b"])
    assert (names, counts.tolist()) == (["a", "b"], [[1, 0], [1, 1]])


def test_a_sealed_gate_and_one_that_was_not_asked_show_no_figure() -> None:
    results = [
        GateResult(metric="accuracy", met=False, value=0.0, bound=0.0, sealed=True, sentence="s"),
        GateResult(metric="accuracy", met=False, value=0.0, bound=0.0, skipped=True, sentence="s"),
    ]
    asked = [{"metric": "accuracy", "min_gain": 0.0, "confidence": 0.95}] * 2
    rows = forest_rows(results, PipelineSpec.model_validate({**SPEC, "promote": {"gates": asked}}))
    assert [(row.value, row.outcome, row.missing[0]) for row in rows] == [
        (None, "not met", "sealed set"),
        (None, "not compared", "not compared"),
    ]
    assert "no champion yet" not in texts_of(forest(rows))
