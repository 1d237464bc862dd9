"""Errors of pydantic's that no field of the spec gives rise to today; the others are in test_load."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError

from data_contracts.load import problems
from data_contracts.pipeline_spec.base import Section


class Inner(Section):
    deep: bool = False


class Example(Section):
    share: float = Field(default=0, lt=1)
    percent: int = Field(default=0, le=100)
    few: list[int] = Field(default=[], max_length=1)
    nested: list[dict[str, Inner]] = Field(default=[])


@pytest.mark.parametrize(
    ("value", "field", "sentence"),
    [
        ({"share": 1.5}, ("share",), "must be less than 1, got 1.5"),
        ({"percent": 101}, ("percent",), "must be at most 100, got 101"),
        ({"few": [1, 2]}, ("few",), "list should have at most 1 item after validation, not 2, got a list"),
        ({"nested": [{"a": {"depe": 1}}]}, ("nested", 0, "a", "depe"), "unknown key; did you mean deep?"),
        ({"nested": [{}, {"a": {"deep": 1}}]}, ("nested", 1, "a", "deep"), "must be true or false, got 1"),
        ({"nested": [{"a": 3}]}, ("nested", 0, "a"), "must be a mapping, got 3"),
    ],
)
def test_a_sentence(value: dict[str, Any], field: tuple[str | int, ...], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Example.model_validate(value)
    assert [(one.field, one.sentence) for one in problems(caught.value, Example, value)] == [(field, sentence)]
