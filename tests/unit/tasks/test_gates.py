"""The gate is a pure function: spec × values × what must hold, and the sentence says by how much."""

from __future__ import annotations

import pytest

from data_contracts.errors import UsageError
from data_contracts.handoffs import Evaluation, MetricValue, Ref
from data_contracts.spec import GateSpec
from tasks.gates import judge

REF = Ref(uri="evaluations/a-0", id="0" * 64, seal="1" * 64)


def evaluation(value: float, mode: str = "max") -> Evaluation:
    metric = MetricValue(value=value, mode=mode, rows=360, unit="row")
    return Evaluation(ref=REF, key="k", checkpoint_id="c", dataset_ids={}, metrics={"score": metric})


CASES = [
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
]


@pytest.mark.parametrize(("gate", "mode", "candidate", "champion", "met", "words"), CASES)
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
