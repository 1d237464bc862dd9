"""Cost is node-seconds times the dated price."""

from __future__ import annotations

import pytest

from data_contracts.resolved import Price
from infra.cost import cost
from infra.machines import Machine

MACHINE = Machine(name="big", devices=8, memory_bytes=1, usd_per_hour=36.0, price_date="2026-11-09")


@pytest.mark.parametrize(("node_seconds", "usd"), [(0, 0), (1, 0.01), (3600, 36), (90.5, 0.905)])
@pytest.mark.parametrize("machine", [MACHINE, Price(machine="big", usd_per_hour=36.0, price_date="2026-11-09")])
def test_node_seconds_times_price(node_seconds: float, usd: float, machine: Machine | Price) -> None:
    found = cost(node_seconds, machine)
    assert found.usd == pytest.approx(usd)
    assert (found.node_seconds, found.machine) == (node_seconds, "big")
    assert (found.usd_per_hour, found.price_date) == (36.0, "2026-11-09")
