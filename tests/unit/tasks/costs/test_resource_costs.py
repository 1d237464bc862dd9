"""Energy, carbon and the store's prices: what is measured, estimated or unknown is told apart, and unknown is not 0."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.costs import MonthLine, Resources
from data_contracts.resolved import Price, StoreRates
from tasks.costs.charges import charges
from tasks.costs.sums import ResourceCosts, store_amounts
from tests.unit.tasks.costs.test_charges import BEGAN, GPU, execution, gang, node

RATES = StoreRates(
    price_date="2026-01-01", currency="EUR", region="eu", per_gb_month=0.02, put_per_1000=5.0, get_per_1000=1.0,
    egress_per_gb=0.1,
)  # fmt: skip
USED = Resources(put_requests=2000, get_requests=3000, written_bytes=10**9, read_bytes=2 * 10**9)


@pytest.mark.parametrize(
    ("rates", "region", "expected"),
    [
        (None, "eu", {"requests": None, "egress": None, "storage": None}),
        (RATES, "eu", {"requests": 13.0, "egress": 0.0, "storage": 0.02}),
        (RATES, "us", {"requests": 13.0, "egress": 0.2, "storage": 0.02}),
        (RATES, "", {"requests": 13.0, "egress": None, "storage": 0.02}),
        (RATES.model_copy(update={"egress_per_gb": 0.0}), "", {"requests": 13.0, "egress": 0.0, "storage": 0.02}),
        (RATES.model_copy(update={"get_per_1000": None}), "eu", {"requests": None, "egress": 0.0, "storage": 0.02}),
    ],
)
def test_what_has_no_price_is_unknown(rates: StoreRates | None, region: str, expected: dict[str, Any]) -> None:
    assert store_amounts(USED, rates, region) == expected
    assert set(store_amounts(Resources(), rates, region).values()) == {0.0}, "nothing used costs nothing"


def summed(**changes: Any) -> ResourceCosts:
    found = ResourceCosts()
    for one in charges(execution(**changes)):
        found.add(one, RATES)
    return found


def priced(watts: float | None, g_per_kwh: float | None = None) -> dict[str, Price]:
    gpu = GPU.model_copy(update={"watts": watts, "g_per_kwh": g_per_kwh, "region": "eu"})
    return {"train": gpu, "here": Price(machine="here", per_hour=3.6, price_date="2026-01-01", region="eu")}


def test_measured_energy_counts_before_estimates() -> None:
    trained = {"met": BEGAN}
    measured = node(0, 0, 0, 0, 10, 10, used=Resources(millijoules=36_000_000))
    found = summed(prices=priced(1000.0, 100.0), gangs=[gang(0, measured, **trained)])
    assert (found.joules, found.estimated_joules, found.unmetered_s) == (36_000.0, 0.0, 100.0)
    assert found.grams == pytest.approx(1.0)
    assert (found.energy, found.carbon) == ("at least 0.01 kWh", "at least 0.001 kg")
    estimated = summed(prices=priced(1000.0), gangs=[gang(0, node(0, 0, 0, 0, 10, 10), **trained)])
    assert (estimated.joules, estimated.estimated_joules, estimated.to_json()["grams_co2e"]) == (1e4, 1e4, None)
    unknown = summed(prices=priced(None), gangs=[gang(0, node(0, 0, 0, 0, 10, 10), **trained)])
    assert (unknown.to_json()["joules"], unknown.energy, unknown.carbon) == (None, "unknown", "unknown")


def test_nodes_of_a_machine_that_is_measured_or_measured_elsewhere_are_not_estimated_beside_it() -> None:
    local = gang(0, node(0, 0, 0, 0, 10, 10), met=BEGAN, local=True)
    whole = summed(prices=priced(1000.0), gangs=[local], used=Resources(millijoules=5000))
    assert (whole.joules, whole.estimated_joules) == (5.0, 0.0)
    elsewhere = summed(prices=priced(1000.0), gangs=[local], used=Resources(elsewhere=True, put_requests=1))
    assert elsewhere.joules == 0.0
    assert summed(prices=priced(1000.0), gangs=[local], used=Resources(put_requests=1)).estimated_joules == 1e4


def test_amounts_of_the_store_are_in_its_currency() -> None:
    found = summed(prices=priced(None), used=USED)
    value = found.to_json()
    assert (value["store_amounts"], value["storage_per_month"]) == ({"EUR": 13.0}, {"EUR": 0.02})
    assert (value["put_requests"], value["read_bytes"]) == (2000, 2 * 10**9)


def test_a_month_whose_energy_was_all_measured_has_no_estimate() -> None:
    """0.1 J and 0.2 J are not 0.3 J as floats."""
    line = MonthLine(
        run_id="r", pipeline="p", model="m", tags={}, stage="train", cause="work", machine="m", node_seconds=9.0,
        gpu_seconds=0.0, joules=0.1 + 0.2, used=Resources(millijoules=300),
    )  # fmt: skip
    found = ResourceCosts()
    found.add_line(line)
    assert (found.energy, found.estimated_joules) == ("8.33e-08 kWh", 0.0)
