"""Cost: node-seconds from launch to release times the catalogue's dated price."""

from __future__ import annotations

from data_contracts.resolved import Price
from data_contracts.run_report import Cost
from infra.machines import Machine


def cost(node_seconds: float, machine: Machine | Price) -> Cost:
    """The cost of `node_seconds` on `machine`, at its price when the run was resolved (USD, not rounded)."""
    return Cost(
        node_seconds=node_seconds,
        usd=node_seconds / 3600 * machine.usd_per_hour,
        machine=machine.name if isinstance(machine, Machine) else machine.machine,
        usd_per_hour=machine.usd_per_hour,
        price_date=machine.price_date,
    )
