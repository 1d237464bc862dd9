"""The hours of a price book, which earlier versions chose a run's start by: they are still read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.load import problems
from data_contracts.price_book import PriceBook, hours_of

NIGHT = {"date": "2026-11-01", "hours": "22-06", "price": 0.7}
WINDY = {"date": "2026-11-01", "hours": "00-03", "g_per_kwh": 200.0}
SUN = {"date": "2026-11-01", "hours": "10-15", "g_per_kwh": 90.0}


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("22-02", [22, 23, 0, 1]),
        ("00-24", list(range(24))),
        ("05-06", [5]),
        ("23-24", [23]),
        ("23-00", [23]),
    ],
)
def test_ranges_of_hours(text: str, hours: list[int]) -> None:
    assert hours_of(text) == hours


@pytest.mark.parametrize("text", ["22", "22-6", "24-02", "02-02", "02-25", "-1-05", "aa-bb", "२२-०६", ""])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of hours"):
        hours_of(text)


@pytest.mark.parametrize(
    ("hours", "field", "sentence"),
    [
        ([NIGHT, {**NIGHT, "hours": "05-07"}], ("hours", 1), "2026-11-01 has two values of price for the hour 05"),
        ([{"date": "2026-11-01", "hours": "22-06"}], ("hours", 0, "price"), "is missing, and so is g_per_kwh"),
        ([{**NIGHT, "date": "tonight"}], ("hours", 0, "date"), "'tonight' is not a day"),
        ([{"hours": "22-06", "price": 0.7}], ("hours", 0, "date"), "is missing"),
        ([{**NIGHT, "hours": "22-6"}], ("hours", 0, "hours"), "'22-6' is not a range of hours"),
        ([{**NIGHT, "price": -0.1}], ("hours", 0, "price"), "must be at least 0"),
        ([{**NIGHT, "price": float("nan")}], ("hours", 0, "price"), "finite"),
    ],
)  # fmt: skip
def test_hours_that_are_wrong_are_refused_by_name(hours: Any, field: tuple[str | int, ...], sentence: str) -> None:
    value = {"version": 1, "hours": hours}
    with pytest.raises(ValidationError) as caught:
        PriceBook.model_validate(value)
    problem = problems(caught.value, PriceBook, value)[0]
    assert problem.field == field
    assert sentence in problem.sentence


def test_two_figures_of_two_kinds_fit_in_one_hour() -> None:
    book = PriceBook.model_validate(
        {"version": 1, "hours": [NIGHT, {**SUN, "hours": "00-24"}, {**NIGHT, "region": "eu"}]}
    )
    assert len(book.hours) == 3
