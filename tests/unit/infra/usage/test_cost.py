"""Cost is node-seconds times the dated price; of an unknown price it is unknown, not 0."""

from __future__ import annotations

import pytest

from data_contracts.resolved import Price
from data_contracts.run_report import Cost
from infra.usage import cost, total

BIG = Price(machine="big", per_hour=36.0, price_date="2026-11-09", devices=8)
EUROS = Price(machine="eu", per_hour=36.0, price_date="2026-11-09", currency="EUR")
UNKNOWN = Price(machine="", per_hour=None, price_date="", pool="gpu")


@pytest.mark.parametrize(("node_seconds", "usd"), [(0, 0), (1, 0.01), (3600, 36), (90.5, 0.905)])
def test_node_seconds_times_price(node_seconds: float, usd: float) -> None:
    found = cost(node_seconds, BIG)
    assert found.usd == pytest.approx(usd)
    assert (found.node_seconds, found.machine) == (node_seconds, "big")
    assert (found.usd_per_hour, found.price_date) == (36.0, "2026-11-09")


def test_an_unknown_price_is_unknown_and_so_is_a_sum_with_it_which_tells_the_rest() -> None:
    found = cost(60, UNKNOWN)
    assert (found.usd, found.unpriced_s, found.money) == (None, 60, "unknown")
    assert found.machine == "the pool gpu, which the price book does not have"
    assert found.to_json()["usd"] is None
    assert total([], UNKNOWN).usd is None
    both = total([cost(3600, BIG), cost(60, UNKNOWN)], BIG)
    assert (both.usd, both.amounts, both.unpriced_s, both.node_seconds) == (None, {"USD": 36.0}, 60, 3660)
    assert both.money == "at least 36.0000 USD"
    assert total([both, cost(3600, BIG)], BIG).amounts == {"USD": 72.0}, "an earlier attempt's sum is added"


def test_currencies_are_not_added_to_each_other() -> None:
    both = total([cost(3600, BIG), cost(3600, EUROS)], EUROS)
    assert (both.usd, both.money) == (None, "36.0000 EUR + 36.0000 USD")
    assert total([cost(3600, BIG)], BIG).usd == 36.0
    assert total([], BIG).usd == 0.0


def test_a_cost_of_an_earlier_run_without_a_price_is_unknown() -> None:
    earlier = {"node_seconds": 5.0, "usd": 0.0, "machine": "local", "usd_per_hour": 0.0, "price_date": ""}
    assert (Cost.model_validate(earlier).usd, Cost.model_validate(earlier).unpriced_s) == (None, 5.0)
    priced = Cost.model_validate({**earlier, "usd": 0.5, "usd_per_hour": 3.0, "price_date": "2026-01-01"})
    assert (priced.usd, priced.unpriced_s) == (0.5, 0)
    assert Price.model_validate({"machine": "m", "usd_per_hour": 3.0, "price_date": "2026-01-01"}).per_hour == 3.0
    assert Price.model_validate({"machine": "m", "usd_per_hour": 0.0, "price_date": ""}).per_hour is None
