"""Cost: node-seconds from launch to release times the price book's dated price."""

from __future__ import annotations

from collections.abc import Sequence

from data_contracts.resolved import Price
from data_contracts.run_report import Cost


def cost(node_seconds: float, price: Price) -> Cost:
    """The cost of `node_seconds` at a price of the start of the run, not rounded; unknown if the price is."""
    amount = None if price.per_hour is None else node_seconds / 3600 * price.per_hour
    in_usd = price.currency == "USD"
    return Cost(
        node_seconds=node_seconds,
        usd=amount if in_usd else None,
        machine=price.place,
        usd_per_hour=price.per_hour if in_usd else None,
        price_date=price.price_date,
        amounts={} if in_usd or amount is None else {price.currency: amount},
        unpriced_s=node_seconds if amount is None else 0.0,
    )


def total(costs: Sequence[Cost], price: Price) -> Cost:
    """The sum of costs, rounded; unknown if any of them is.

    Args:
        price: of a node that trains, which the sum names.
    """
    amounts: dict[str, float] = {}
    for one in costs:
        for currency, amount in (one.amounts or ({} if one.usd is None else {"USD": one.usd})).items():
            amounts[currency] = amounts.get(currency, 0.0) + amount
    unpriced_s = sum(one.unpriced_s for one in costs)
    amounts = {currency: round(amount, 6) for currency, amount in amounts.items()}
    # Nothing that costs nothing is known to be 0 only where the price is.
    if not any(one.node_seconds for one in costs) and price.per_hour is not None and price.currency == "USD":
        amounts = {"USD": 0.0}
    whole = not unpriced_s and set(amounts) == {"USD"}
    in_usd = price.currency == "USD"
    return Cost(
        node_seconds=round(sum(one.node_seconds for one in costs), 3),
        usd=amounts["USD"] if whole else None,
        machine=price.place,
        usd_per_hour=price.per_hour if in_usd else None,
        price_date=price.price_date,
        amounts={} if whole else amounts,
        unpriced_s=round(unpriced_s, 3),
    )
