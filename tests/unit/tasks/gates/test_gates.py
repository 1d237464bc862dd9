"""The gate is a pure function: spec × values × what must hold, and the sentence says by how much."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.handoffs import Evaluation, MetricValue, Ref
from data_contracts.pipeline_spec import GateSpec
from tasks.gates.gates import judge

REF = Ref(uri="evaluations/a-0", id="0" * 64, seal="1" * 64)


def evaluation(value: float, mode: str = "max", rows: int = 360) -> Evaluation:
    metric = MetricValue(value=value, mode=mode, rows=rows, unit="row")
    return Evaluation(ref=REF, key="k", checkpoint_id="c", dataset_ids={}, metrics={"score": metric})


@pytest.mark.parametrize(
    ("gate", "mode", "candidate", "champion", "met", "words"),
    [
        # gate, mode, candidate, champion, met, words in the sentence
        ({"min": 0.95}, "max", 0.95, None, True, "at least the 0.95"),
        ({"min": 0.95}, "max", 0.9, None, False, "0.0500 below the 0.95"),
        ({"max": 2.0}, "min", 2.0, None, True, "at most the 2"),
        ({"max": 2.0}, "min", 2.5, None, False, "0.5000 above the 2"),
        ({"min_gain": 0.0}, "max", 0.9, None, True, "no champion yet"),
        ({"min_gain": 0.0}, "max", 0.9, 0.9, True, "on the same 360 rows"),
        ({"min_gain": 0.0}, "max", 0.8, 0.9, False, "loses 0.1000, and may lose nothing"),
        ({"min_gain": -0.05}, "max", 0.8, 0.9, False, "loses 0.1000, and may lose 0.05 at most"),
        ({"min_gain": 0.0}, "min", 0.8, 0.9, True, "gains 0.1000"),
        ({"min_gain": 0.0}, "min", 0.9, 0.8, False, "loses 0.1000"),
        ({"min_gain": 0.05}, "max", 0.92, 0.9, False, "+0.05 was asked for"),
        ({"min_gain": -0.05}, "max", 0.88, 0.9, True, "loses 0.0200"),
        # A refusal shows what it is refused for.
        ({"min_gain": 0.01}, "max", 0.909999, 0.9, False, "it gains 0.009999, +0.01 was asked for"),
        ({"min_gain": 0.0}, "max", 0.899999, 0.9, False, "is 0.899999 against the champion's 0.900000 on the same 360"),
        ({"min": 0.95}, "max", 0.9499999 - 1e-6, None, False, "is 0.949999, 0.000001 below the 0.95"),
        ({"min_gain": 0.012345678}, "max", 0.9, 0.9, False, "+0.012345678 was asked for"),
    ],
)
def test_gate(gate: dict, mode: str, candidate: float, champion: float | None, met: bool, words: str) -> None:
    theirs = None if champion is None else evaluation(champion, mode)
    [result] = judge([GateSpec(metric="score", **gate)], evaluation(candidate, mode), theirs)
    assert result.met is met
    assert words in result.sentence


def test_a_gate_on_a_metric_that_was_not_scored_names_those_that_were() -> None:
    with pytest.raises(UsageError, match="no metric f1; it has score"):
        judge([GateSpec(metric="f1", min=0)], evaluation(1.0), None)


def test_every_gate_is_judged_in_order() -> None:
    gates = [GateSpec(metric="score", min=0.5), GateSpec(metric="score", min=0.99)]
    assert [result.met for result in judge(gates, evaluation(0.9), None)] == [True, False]


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("by", [-1e-8, 0.0, 1e-8])
def test_a_gain_that_is_asked_for_is_never_met_by_none(mode: str, by: float) -> None:
    theirs, mine = evaluation(0.6931471824645996, mode), evaluation(0.6931471824645996 + by, mode)
    [result] = judge([GateSpec(metric="score", min_gain=5e-8)], mine, theirs)
    assert result.met is (by * (1 if mode == "max" else -1) > 0), result.sentence


@pytest.mark.parametrize(
    ("gate", "candidate", "champion", "words"),
    [
        ({"min_gain": 0.0}, (0.0, 0), (0.0, 0), "score was scored on no rows"),
        ({"min": 0.0}, (0.0, 0), None, "score was scored on no rows"),
        ({"max": 1.0}, (0.0, 0), (0.5, 10), "score was scored on no rows"),
        ({"min_gain": 0.0}, (1.0, 3), (0.9, 10_000), "score was scored on 3 rows and the champion's on 10,000"),
        ({"min_gain": 0.0}, (1.0, 3), (0.0, 0), "no rows for the champion"),
        ({"min": 0.0}, (math.nan, 3), None, "score is nan"),
        ({"max": 0.0}, (-math.inf, 3), None, "score is -inf"),
        ({"min_gain": 0.0}, (1.0, 3), (math.nan, 3), "score is nan for the champion"),
    ],
)
def test_what_decides_nothing(
    gate: dict, candidate: tuple[float, int], champion: tuple[float, int] | None, words: str
) -> None:
    theirs = None if champion is None else evaluation(champion[0], rows=champion[1])
    with pytest.raises(InsufficientEvidence, match=words):
        judge([GateSpec(metric="score", **gate)], evaluation(candidate[0], rows=candidate[1]), theirs)


@pytest.mark.parametrize("gate", [{"max": 0.5}, {"min": 0}, {"min_gain": 0}, {"max": 0.5, "slice": "old"}])
def test_a_metric_that_is_not_defined_decides_nothing(gate: dict) -> None:
    scored, reason = evaluation(0.9), {"score": "no row is of class 1"}
    nan = scored.model_copy(update={"metrics": {}, "undefined": reason})
    with pytest.raises(InsufficientEvidence, match="score is nan: no row is of class 1, so the gate cannot decide"):
        judge([GateSpec(metric="score", **gate)], nan, scored)
    with pytest.raises(InsufficientEvidence, match="score is nan for the champion: no row is of class 1"):
        judge([GateSpec(metric="score", min_gain=0)], scored, nan)
    with pytest.raises(InsufficientEvidence, match="score is nan: no row is of class 1"):
        judge([GateSpec(expression="1 - score", max=1)], nan, None)
    other = scored.model_copy(update={"undefined": {"other": "no row is of class 1"}})
    assert judge([GateSpec(expression="1 - score", max=1)], other, None)[0].met


def test_another_dataset_decides_nothing() -> None:
    theirs = evaluation(0.5).model_copy(update={"dataset_ids": {"": "d"}})
    with pytest.raises(InsufficientEvidence, match="on another dataset than the champion's"):
        judge([GateSpec(metric="score", min_gain=0)], evaluation(0.9), theirs)
    assert judge([GateSpec(metric="score", min=0)], evaluation(0.9), theirs)[0].met, "the champion is not looked at"


@pytest.mark.parametrize("field", ["min", "max", "min_gain"])
@pytest.mark.parametrize("bound", [math.nan, math.inf, -math.inf])
def test_a_bound_is_a_number(field: str, bound: float) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        GateSpec.model_validate({"metric": "score", field: bound})
