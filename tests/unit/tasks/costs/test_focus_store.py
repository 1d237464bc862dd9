"""Rows of FOCUS for the store: requests and egress by day, storage by month from the moment of writing."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from data_contracts.costs import Resources
from data_contracts.executions import ExecutionUsage, StageUsage
from data_contracts.resolved import StoreRates
from tasks.costs.charges import charges
from tasks.costs.focus import request_rows, rows, storage_rows
from tasks.costs.sums import ResourceCosts
from tests.unit.tasks.costs.test_charges import HERE, execution
from tests.unit.tasks.costs.test_focus import check_prices, check_row

RATES = StoreRates(
    price_date="2026-01-01",
    currency="EUR",
    region="eu",
    per_gb_month=0.31,
    put_per_1000=0.005,
    get_per_1000=0.0004,
    egress_per_gb=0.09,
)
USED = Resources(put_requests=1500, get_requests=777, written_bytes=4 * 10**9, read_bytes=1_234_567_891)


def at(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


def run(began: str = "2026-01-16T00:00:00", seconds: float = 0.0, **changes: Any) -> ExecutionUsage:
    start = at(began)
    here = HERE.model_copy(update={"region": "us"})
    known = {"began": start, "ended": start + seconds, "used": USED, "rates": RATES, "prices": {"here": here}}
    return execution(**{**known, **changes})


def requests(one: ExecutionUsage) -> list[dict[str, Any]]:
    return request_rows([(one, charge) for charge in charges(one)], set())


def stored(one: ExecutionUsage, since: str, until: str) -> list[dict[str, Any]]:
    return storage_rows([one], (at(since), at(until)), set())


@pytest.mark.parametrize("seconds", [0.0, 0.25, 100.0, 90_000.0])
def test_each_row_is_what_the_rules_allow(seconds: float) -> None:
    one = run(seconds=seconds)
    made = [
        *rows([(one, charge) for charge in charges(one)], set()),
        *requests(one),
        *stored(one, "2026-01-01T00:00:00", "2026-03-10T12:00:00"),
    ]
    assert {row["SkuMeter"] for row in made} - {"Node Hours"} == {
        "PUT Requests", "GET Requests", "Data Transfer", "Storage",
    }  # fmt: skip
    for row in made:
        check_row(row)
    check_prices(made)


def test_requests_and_egress_add_up_to_what_cost_tells() -> None:
    sharded = {"began": at("2026-01-16T01:00:00"), "ended": at("2026-01-16T02:00:00"), "status": "ran"}
    stage = StageUsage(name="shard", used=Resources(put_requests=3), **sharded)
    one = run(seconds=90_000, stages=[stage])
    made = requests(one)
    assert len({row["ChargePeriodStart"][:10] for row in made}) == 2, "a row for each day"
    beside = ResourceCosts()
    for charge in charges(one):
        beside.add(charge, RATES)
    assert float(sum(Decimal(row["BilledCost"]) for row in made)) == pytest.approx(beside.amounts["EUR"])
    puts = [row for row in made if row["SkuMeter"] == "PUT Requests"]
    assert sum(int(row["ConsumedQuantity"]) for row in puts) == USED.put_requests


def test_storage_counts_from_the_writing_on_by_each_months_own_length() -> None:
    made = stored(run(), "2026-01-01T00:00:00", "2026-03-01T00:00:00")
    months = [(row["BillingPeriodStart"][:7], Decimal(row["PricingQuantity"])) for row in made]
    # From the 16th of 31 days 16 are left; February is whole.
    assert months == [("2026-01", pytest.approx(Decimal(4) * 16 / 31)), ("2026-02", Decimal(4))]
    assert float(made[1]["BilledCost"]) == pytest.approx(4 * 0.31)
    assert "as if all that was written stayed" in made[0]["ChargeDescription"]
    later = stored(run(), "2026-02-10T00:00:00", "2026-02-24T00:00:00")
    assert [float(row["PricingQuantity"]) for row in later] == [2.0], "what was written before is stored, too"
    assert stored(run(), "2026-01-01T00:00:00", "2026-01-16T00:00:00") == [], "it was not there yet"


@pytest.mark.parametrize(
    ("rates", "meters"),
    [
        (None, []),
        (StoreRates(price_date="2026-01-01", currency="USD"), []),
        (RATES.model_copy(update={"region": ""}), ["PUT Requests", "GET Requests", "Storage"]),
        (RATES.model_copy(update={"region": "us"}), ["PUT Requests", "GET Requests", "Storage"]),
        (RATES.model_copy(update={"put_per_1000": None}), ["GET Requests", "Data Transfer", "Storage"]),
    ],
)
def test_what_has_no_known_price_or_is_no_egress_has_no_row(rates: StoreRates | None, meters: list[str]) -> None:
    one = run(rates=rates)
    made = [*requests(one), *stored(one, "2026-01-01T00:00:00", "2026-02-01T00:00:00")]
    assert [row["SkuMeter"] for row in made] == meters
