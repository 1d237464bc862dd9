"""`evaluate.unit` and `evaluate.slices`, and the names that gates use: read, refused, and no part of a result's key."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.pipeline_spec import EvaluateSpec, GateSpec, SliceSpec
from data_contracts.pipeline_spec.base import FieldError
from data_contracts.pipeline_spec.gate_names import check_gates

METRICS: dict[str, Any] = {"accuracy": {"logged": "acc", "mode": "max"}}
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
        ({"where": "a > 1", "min": 1}, "where: excludes min, max and values"),
        ({"where": "a >"}, "where: cannot be read at character 4"),
        ({"where": "open('x') == 1"}, "is not permitted"),
        ({"column": "a", "values": []}, "at least 1 item"),
    ],
)
def test_a_slice_that_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        SliceSpec(**given)
    assert sentence in str(refused.value)


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
        ({"metric": "new/accuracy", "min": 0}, "metric: 'new' is not a set of evaluate.sets; it has none"),
        (
            {"metric": "accuracy", "min": 0, "slice": "odl"},
            "slice: 'odl' is not a slice of evaluate.slices; it has old, young; did you mean old?",
        ),
    ],
)
def test_the_names_in_a_gate(gate: dict[str, Any], sentence: str) -> None:
    evaluate = EvaluateSpec(metrics=METRICS, slices=SLICES)
    if not sentence:
        check_gates([GateSpec(**gate)], evaluate)
        return
    with pytest.raises(FieldError) as refused:
        check_gates([GateSpec(metric="accuracy", min=0), GateSpec(**gate)], evaluate)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("promote.gates.1.")


def test_a_gap_needs_slices() -> None:
    with pytest.raises(FieldError, match="max_gap: compares slices, and evaluate.slices has none"):
        check_gates([GateSpec(metric="accuracy", max_gap=0.1)], EvaluateSpec(metrics=METRICS))
