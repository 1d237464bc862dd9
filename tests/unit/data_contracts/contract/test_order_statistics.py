"""Counts beyond the bounds of a median or quantile show that it holds, whatever the interpolation is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_contracts.contract.questions import ScanQuestion, is_bounded, is_interpolation, median, neighbours, quantiles
from data_contracts.contract.suites import INTERPOLATIONS

BOUNDS = {"quantiles": [0.5], "value_ranges": [[0, 1]]}


def shows(question: ScanQuestion | None, values: list[float]) -> bool:
    """Whether the counts of these values show that the expectation holds."""
    seen = np.array(values, float)
    counts = [len(seen)]
    for one in question.measures[1:]:
        sign = next(sign for sign in (">=", "<=", ">", "<") if f" {sign} " in one.sql)
        inside = {">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less}[sign](seen, one.values[0])
        counts.append(int((~inside).sum()))
    return question.holds(*counts)


@pytest.mark.parametrize("how", INTERPOLATIONS)
def test_a_quantile_lies_between_its_neighbours(how: Any) -> None:
    for count in (*range(1, 40), 1_000, 99_999):
        values = np.arange(count, dtype=float)
        for share in (*np.linspace(0, 1, 21), 1 / 3, 0.999, 1e-9):
            first, last = neighbours(share, count, exact=False)
            assert 0 <= first <= np.quantile(values, share, method=how) <= last < count
            assert last - first <= 2


@pytest.mark.parametrize(
    ("values", "bounds", "certain"),
    [
        ([1, 2, 3], {"min_value": 2, "max_value": 2}, True),
        ([1, 2, 3], {"min_value": 2, "strict_min": True}, False),
        ([1, 3], {"min_value": 1, "max_value": 3}, True),
        ([1, 3], {"min_value": 2, "max_value": 2}, False),  # it holds, which Great Expectations finds
        ([1, 3], {"max_value": 3, "strict_max": True}, False),
        ([1, 1, 9], {"max_value": 1}, True),
        ([1, 9, 9], {"max_value": 1}, False),
        ([2.0**60], {"min_value": 0}, False),
        ([], {"min_value": 0}, False),
    ],
)
def test_a_median_is_decided_where_both_middle_values_keep_the_bounds(
    values: list[float], bounds: dict[str, Any], certain: bool
) -> None:
    assert shows(median({"column": "x", **bounds}, "real"), values) is certain


def test_all_quantiles_must_keep_their_ranges() -> None:
    asked = {"quantiles": [0.1, 0.9], "value_ranges": [[0, 20], [80, None]]}
    question = quantiles({"column": "x", "quantile_ranges": asked}, "real")
    assert shows(question, [*range(101)])
    assert not shows(question, [*range(50)])
    assert not shows(question, [])


@pytest.mark.parametrize(
    "value",
    [
        None, {}, {"quantiles": [0.5]}, {**BOUNDS, "quantiles": []}, {**BOUNDS, "quantiles": [0.5, 0.6]},
        {**BOUNDS, "quantiles": [1.5]}, {**BOUNDS, "quantiles": [True]}, {**BOUNDS, "value_ranges": [[1, 0]]},
        {**BOUNDS, "value_ranges": [[0]]}, {**BOUNDS, "value_ranges": [[0, 2**53]]}, {**BOUNDS, "more": 1},
        {**BOUNDS, "value_ranges": [[0, float("nan")]]},
    ],
)  # fmt: skip
def test_other_ranges_are_left_to_great_expectations(value: Any) -> None:
    assert is_bounded(BOUNDS)
    assert not is_bounded(value)


def test_an_interpolation_is_one_of_pandas() -> None:
    assert [is_interpolation(value) for value in (False, "linear", "nearest", 0, True, None, "cubic")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip
    assert median({"column": "x", "min_value": 2**53}, "whole") is None
