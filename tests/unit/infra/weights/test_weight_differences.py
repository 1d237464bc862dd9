"""The first tensor that differs is named, with the number of values and by how much, to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from infra import weights
from infra.weights import TensorDifference, first_difference

F = np.float32


def found(monkeypatch: pytest.MonkeyPatch, before: dict[str, Any], after: dict[str, Any]) -> TensorDifference | None:
    tensors: dict[Any, dict[str, Any]] = {"before": before, "after": after}
    monkeypatch.setattr(weights, "weights", lambda store, ref: iter(sorted(tensors[ref].items())))
    one: Any = object()
    return first_difference((one, one), ("before", "after"))  # type: ignore[arg-type]


def test_equal_weights_have_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"a": np.array([1, math.nan, -0.0], F), "b": np.zeros((0, 3), F), "c": np.array(3, np.int64)}
    assert found(monkeypatch, same, {name: one.copy() for name, one in same.items()}) is None
    assert found(monkeypatch, {}, {}) is None


# before, after -> values that differ, of how many, largest difference, the largest beside the value before
CASES: list[tuple[Any, Any, int, int, float | None, float | None]] = [
    ([1, 2, 4], [1, 2.5, 4], 1, 3, 0.5, 0.25),
    ([1, -2], [1, 2], 1, 2, 4.0, 2.0),
    ([0.0, 1], [-0.0, 1], 1, 2, 0.0, 0.0),
    ([0.0], [1.0], 1, 1, 1.0, None),
    ([1, math.nan], [1, 3], 1, 2, None, None),
    ([1, 2], [1, math.inf], 1, 2, None, None),
]


@pytest.mark.parametrize(("before", "after", "values", "of", "largest", "relative"), CASES)
def test_a_difference_is_measured(
    before: Any,
    after: Any,
    values: int,
    of: int,
    largest: float | None,
    relative: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = np.ones(4, F)
    difference = found(monkeypatch, {"a": same, "m": np.array(before, F)}, {"a": same, "m": np.array(after, F)})
    assert difference == TensorDifference("m", 1, 2, values, of, largest, relative)


ONES = np.ones(2, F)
OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"a": ONES}, {"a": np.ones((2, 1), F)}, "it is float32[2] and float32[2, 1]"),
    ({"a": ONES}, {"a": np.ones(2, np.float64)}, "it is float32[2] and float64[2]"),
    ({"b": ONES, "c": ONES}, {"a": ONES, "c": ONES}, "it is in one of the two alone"),
]


@pytest.mark.parametrize(("before", "after", "sentence"), OTHERS)
def test_tensors_of_another_shape_or_type_or_name_differ(
    before: dict[str, Any], after: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    difference = found(monkeypatch, before, after)
    assert difference.sentence == sentence
    assert (difference.tensor, difference.tensors, difference.of) == ("a", len(before), len({*before, *after}))


def test_large_tensors_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_CHUNK", 4)
    before = np.arange(1, 11, dtype=F)
    after = before.copy()
    after[[0, 9]] += F(1)
    assert found(monkeypatch, {"a": before}, {"a": after}) == TensorDifference("a", 1, 1, 2, 10, 1.0, 1.0)
