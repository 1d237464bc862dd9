"""`evaluate.unit` and `evaluate.slices`, and the names that gates use: read, refused, and no part of a result's key."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.pipeline_spec import EvaluateSpec, GateSpec, PipelineSpec, SliceSpec
from data_contracts.pipeline_spec.base import FieldError
from data_contracts.pipeline_spec.evaluate import SetSpec
from data_contracts.pipeline_spec.promote import check_gates
from tests.support.refusals import refusal
from tests.support.tiny import SPEC

METRICS: dict[str, Any] = {"accuracy": {"logged": "acc", "mode": "max"}}
SEALED = {"held": {"source": ["held.parquet"], "sealed": True}, "open": {"source": ["open.parquet"]}}
SLICES: dict[str, Any] = {"old": {"column": "age", "min": 60}, "young": {"column": "age", "max": 30}}


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ({"column": "age", "min": 18, "max": 30.5}, "col('age') >= 18 and col('age') < 30.5"),
        ({"column": "it's", "max": -1}, 'col("it\'s") < -1'),
        ({"column": "day", "min": "2026-01-01"}, "col('day') >= '2026-01-01'"),
        ({"column": "country", "values": ["DE", "AT"]}, "col('country') in ['DE', 'AT']"),
        ({"column": "flag", "values": [True]}, "col('flag') in [True]"),
        ({"where": "age > 60 and country == 'DE'"}, "age > 60 and country == 'DE'"),
    ],
)
def test_what_a_slice_means(given: dict[str, Any], condition: str) -> None:
    assert SliceSpec(**given).condition.text == condition


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "give either column or where"),
        ({"column": "a", "where": "a > 1"}, "give either column or where"),
        ({"column": "a"}, "column: needs min or max, or else values"),
        ({"column": "a", "min": 1, "values": [1]}, "column: needs min or max, or else values"),
        ({"column": "a", "min": 2, "max": 2}, "max: must be above min (2)"),
        ({"column": "a", "min": 30, "max": 18.5}, "max: must be above min (30)"),
        ({"where": "a > 1", "min": 1}, "where: excludes min, max and values"),
        ({"where": "a >"}, "where: cannot be read at character 4"),
        ({"where": "open('x') == 1"}, "is not permitted"),
        ({"column": "a", "values": []}, "at least 1 item"),
    ],
)
def test_a_slice_that_is_refused(given: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(ValidationError, SliceSpec, **given)


def test_they_are_no_part_of_the_result_and_absent_unless_given() -> None:
    plain = EvaluateSpec(metrics=METRICS)
    asked = EvaluateSpec(metrics=METRICS, unit="customer", slices=SLICES)
    assert asked.result == plain.result
    assert not {"unit", "slices"} & plain.model_dump(mode="json").keys()
    assert EvaluateSpec.model_validate(asked.model_dump(mode="json")) == asked


@pytest.mark.parametrize(
    ("gate", "sentence"),
    [
        ({"metric": "accuracy", "min": 0}, ""),
        ({"metric": "latency_ms", "max": 5}, ""),
        ({"metric": "size_bytes", "max": 5}, ""),
        ({"expression": "accuracy - latency_ms", "min": 0}, ""),
        ({"metric": "accuracy", "min": 0, "slice": "old"}, ""),
        ({"metric": "accuracy", "max_gap": 0.1}, ""),
        (
            {"metric": "acuracy", "min": 0},
            "metric: 'acuracy' is not a metric of evaluate; it has accuracy; did you mean accuracy?",
        ),
        ({"metric": "latency", "max": 5}, "did you mean latency_ms?"),
        ({"metric": "new/accuracy", "min": 0}, "metric: 'new' is not a set of evaluate.sets; it has held, open"),
        (
            {"metric": "accuracy", "min": 0, "slice": "odl"},
            "slice: 'odl' is not a slice of evaluate.slices; it has old, young; did you mean old?",
        ),
        ({"metric": "held/accuracy", "margin": 0.01, "confidence": 0.95}, ""),
        ({"metric": "held/accuracy", "min": 0.9, "confidence": 0.95}, ""),
        ({"expression": "accuracy - open/accuracy", "max": 0.1}, ""),
        ({"metric": "held/accuracy", "min": 0.9}, "'held' is a sealed set, and only a gate with confidence may be"),
        ({"metric": "held/accuracy", "max_gap": 0.1}, "'held' is a sealed set"),
        ({"expression": "accuracy - held/accuracy", "max": 0.1}, "expression: 'held' is a sealed set, and only a gate"),
        ({"metric": "latency_ms", "max": 9, "confidence": 0.95}, "latency_ms is measured of the whole model"),
        ({"metric": "size_bytes", "max": 9, "slice": "old"}, "size_bytes is measured of the whole model"),
    ],
)
def test_what_a_gate_names_is_there_and_can_decide(gate: dict[str, Any], sentence: str) -> None:
    sets = {name: SetSpec(**one) for name, one in SEALED.items()}
    evaluate = EvaluateSpec(metrics=METRICS, slices=SLICES, sets=sets)
    said = refusal(FieldError, check_gates, [GateSpec(metric="accuracy", min=0), GateSpec(**gate)], evaluate)
    assert sentence in said
    assert bool(said) is bool(sentence)
    assert said.startswith("promote.gates.1.") is bool(sentence)


@pytest.mark.parametrize(
    ("gate", "sentence"),
    [
        ({"min": 0.9, "confidence": 0.95}, ""),
        ({"max": 0.9, "confidence": 0.95, "slice": "old"}, ""),
        ({"margin": 0, "confidence": 0.95}, ""),
        ({"margin": 0.01}, "margin: needs confidence; give one, such as confidence: 0.95, or use min_gain"),
        ({"margin": -0.01, "confidence": 0.95}, "margin\n  Input should be greater than or equal to 0"),
        ({"max_gap": 0.1, "confidence": 0.95}, "confidence: does not go with max_gap"),
        ({"max_gap": 0.1, "slice": "old"}, "slice: does not go with max_gap, which compares all slices"),
        ({"max_gap": -0.1}, "max_gap\n  Input should be greater than or equal to 0"),
        ({"min_gain": 0, "confidence": 0.5}, "confidence\n  Input should be greater than 0.5"),
        ({"min_gain": 0, "confidence": 1}, "confidence\n  Input should be less than or equal to 0.9999"),
        ({"metric": None, "expression": "accuracy", "min_gain": 0}, "min_gain: needs a metric: whether a larger"),
        ({"min_gain": 0, "margin": 0, "confidence": 0.9}, "give exactly one of min, max, min_gain, margin and max_gap"),
        ({"expression": "accuracy", "min": 0}, "give either metric or expression, and not both"),
        ({"metric": None, "min": 0}, "give either metric or expression, and not both"),
        (
            {"metric": None, "expression": "accuracy", "min_gain": 0, "confidence": 0.9},
            "expression: can have min or max, without confidence, slice and max_gap",
        ),
    ],
)
def test_what_a_gate_may_ask_for(gate: dict[str, Any], sentence: str) -> None:
    given = {"metric": "accuracy", **gate}
    if sentence:
        assert sentence in refusal(ValidationError, GateSpec, **given)
    else:
        assert GateSpec.model_validate(GateSpec(**given).model_dump(mode="json")) == GateSpec(**given)


def test_a_gap_needs_slices() -> None:
    with pytest.raises(FieldError, match="max_gap: compares slices, and evaluate.slices has none"):
        check_gates([GateSpec(metric="accuracy", max_gap=0.1)], EvaluateSpec(metrics=METRICS))


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        ({"held": {"split": "test", "sealed": True}}, "its rows are scored under another name, too ('test')"),
        (
            {"held": {"split": "val", "sealed": True}, "open": {"split": "val"}},
            "its rows are scored under another name, too ('val')",
        ),
        ({"held": {"source": "./rows.csv", "sealed": True}}, "its rows are also read under another name (./rows.csv)"),
        (
            {"held": {"source": "h.csv", "sealed": True}, "open": {"source": ["o.csv", "h.csv"]}},
            "its rows are also read under another name (h.csv)",
        ),
        ({"held": {"source": "h.csv", "sealed": True}, "open": {"source": "o.csv"}}, ""),
        ({"open": {"source": "h.csv"}, "other": {"source": "h.csv"}}, ""),
    ],
)
def test_rows_of_a_sealed_set_are_scored_under_no_other_name(sets: dict[str, Any], sentence: str) -> None:
    spec = {**SPEC, "evaluate": {**SPEC["evaluate"], "sets": sets}}
    said = refusal(ValidationError, PipelineSpec.model_validate, spec)
    assert sentence in said
    assert bool(said) is bool(sentence)
    assert ("evaluate.sets.held.sealed" in said) is bool(sentence)
