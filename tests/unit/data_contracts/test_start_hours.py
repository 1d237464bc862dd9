"""The best hour to start: lowest price, then lowest carbon intensity, then the earliest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.load import problems
from data_contracts.price_book import HoursEntry, PriceBook, best_start, cost_at, hours_of

NIGHT = {"date": "2026-11-01", "hours": "22-06", "price": 0.7}
WINDY = {"date": "2026-11-01", "hours": "00-03", "g_per_kwh": 200.0}
SUN = {"date": "2026-11-01", "hours": "10-15", "g_per_kwh": 90.0}


def entries(*values: dict[str, Any]) -> list[HoursEntry]:
    return [HoursEntry.model_validate(value) for value in values]


def at(hour: int, minute: int = 0, day: int = 25) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


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
    ("known", "now", "within_h", "start"),
    [
        ([], at(20, 17), 6, at(20, 17)),  # nothing varies: at once
        ([NIGHT], at(20, 17), 6, at(22)),
        ([NIGHT], at(20, 17), 1, at(20, 17)),  # the night is too far away
        ([NIGHT], at(22, 59), 6, at(22, 59)),  # it is night already
        ([NIGHT], at(5, 59), 30, at(5, 59)),
        ([NIGHT], at(6), 30, at(22)),
        ([SUN], at(3), 8, at(10)),
        ([SUN, NIGHT], at(3), 24, at(3)),  # the price comes first
        ([{**NIGHT, "g_per_kwh": 400.0}, WINDY], at(21), 9, at(22)),  # two figures for an hour: the first counts
        ([{**NIGHT, "region": "eu"}], at(20), 6, at(20)),  # another region's
        ([{**NIGHT, "date": "2026-11-26"}], at(20), 12, at(0, day=26)),  # from tomorrow on
        ([NIGHT, {"date": "2026-11-20", "hours": "12-13", "price": 0.9}], at(9), 24, at(12)),  # a later day replaces it
        ([NIGHT], at(20), -3, at(20)),  # the span is over
    ],
)  # fmt: skip
def test_the_best_hour(known: list[dict[str, Any]], now: datetime, within_h: int, start: datetime) -> None:
    found = best_start(entries(*known), "", now, now + timedelta(hours=within_h))
    assert found == start
    if within_h > 0:  # executed again at that hour, it starts
        assert best_start(entries(*known), "", found, now + timedelta(hours=within_h)) == found


def test_a_regions_own_hours_come_first_and_hours_are_utc() -> None:
    known = entries(NIGHT, {**NIGHT, "region": "eu", "hours": "01-02", "price": 0.0})
    assert cost_at(known, "eu", at(23))[0] == 1.0
    assert cost_at(known, "us", at(23))[0] == 0.7
    assert cost_at(known, "eu", datetime(2026, 11, 25, 3, tzinfo=timezone(timedelta(hours=2)))) == (0.0, float("inf"))


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
