"""The price of a day is the newest one before it, of the region and the term."""

from __future__ import annotations

import pytest

from data_contracts.price_book import MachinePrice, PriceBook, price_on


def price(date: str, per_hour: float, region: str = "", term: str = "on-demand") -> MachinePrice:
    return MachinePrice.model_validate(
        {"date": date, "currency": "USD", "per_hour": per_hour, "region": region, "term": term}
    )


PRICES = [
    price("2026-06-01", 4.0),
    price("2026-01-01", 5.0),
    price("2026-01-01", 7.0, region="eu"),
    price("2026-03-01", 1.0, term="spot"),
]


@pytest.mark.parametrize(
    ("day", "region", "term", "per_hour"),
    [
        ("2025-12-31", "", "on-demand", None),
        ("2026-01-01", "", "on-demand", 5.0),
        ("2026-05-31", "", "on-demand", 5.0),
        ("2026-06-01", "", "on-demand", 4.0),
        ("2026-06-01", "eu", "on-demand", 7.0),
        ("2026-06-01", "us", "on-demand", 4.0),
        ("2026-06-01", "", "spot", 1.0),
        ("2026-02-01", "", "spot", None),
    ],
)
def test_the_newest_price_before_the_day_holds(day: str, region: str, term: str, per_hour: float | None) -> None:
    found = price_on(PRICES, day, region, term)  # type: ignore[arg-type]
    assert (found and found.per_hour) == per_hour


def test_prices_of_one_region_need_no_region() -> None:
    assert price_on([price("2026-01-01", 7.0, region="eu")], "2026-02-01") is not None
    two = [price("2026-01-01", 7.0, region="eu"), price("2026-01-01", 7.0, region="us")]
    assert price_on(two, "2026-02-01") is None, "which of them holds is not known"


def test_what_was_dropped_is_still_accepted() -> None:
    hours = [{"date": "2026-11-01", "hours": "22-6"}]
    book = PriceBook.model_validate({"version": 1, "hours": hours, "stores": {}, "carbon": [1]})
    assert (book.machines, book.pools) == ({}, {})
