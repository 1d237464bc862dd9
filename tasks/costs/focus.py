"""Charges as rows of the Cost and Usage dataset of FOCUS, the FinOps Open Cost and Usage Specification.

Written after the specification's text of 1.2: mandatory columns are there, and those that may not be null have values.
Our own columns are named `x_…`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from data_contracts.canonical import month_of
from data_contracts.executions import ExecutionUsage
from tasks.costs.charges import DAY_US, MICRO, Charged, by_day

Row = dict[str, str | None]
_US_PER_HOUR = 3600 * MICRO
_US = "Trainwright"
# What every row has, if it does not say otherwise.
_ALWAYS: Row = {
    **dict.fromkeys(("ProviderName", "PublisherName", "InvoiceIssuerName"), _US),
    "BillingAccountId": "trainwright-estimate",
    "BillingAccountName": "Estimates by Trainwright",
    "ChargeCategory": "Usage",
    "ChargeClass": None,
    "ChargeFrequency": "Usage-Based",
    "ConsumedUnit": "Hours",
    # An estimate is on no invoice.
    "InvoiceId": None,
    "PricingUnit": "Hours",
    "ResourceType": "Pipeline run",
    "ServiceCategory": "AI and Machine Learning",
    "ServiceName": _US,
    "ServiceSubcategory": "Machine Learning",
    "SkuMeter": "Node Hours",
    "SkuPriceDetails": None,
    "x_Estimate": "true",
}


def columns() -> list[str]:
    """The columns in their order: those of FOCUS, then our own."""
    named = [
        "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
        "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
        "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost",
        "ContractedUnitPrice", "EffectiveCost", "InvoiceId", "InvoiceIssuerName", "ListCost", "ListUnitPrice",
        "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName",
        "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId",
        "SkuMeter", "SkuPriceDetails", "SkuPriceId", "Tags",
    ]  # fmt: skip
    own = [
        "x_Cause", "x_Estimate", "x_Execution", "x_GpuHours", "x_Pipeline", "x_PriceDate", "x_RunId", "x_SoFar",
        "x_Stage",
    ]  # fmt: skip
    return [*sorted(named), *own]


def rows(charged: Sequence[Charged], so_far: set[str]) -> list[Row]:
    """One row for each day, execution, stage, price and cause, in part or in full.

    Charges without a known price have none.

    Args:
        so_far: ids of runs that have not ended.
    """
    groups: dict[tuple[object, ...], list[Charged]] = {}
    for usage, charge in _by_day(charged):
        price = charge.price
        payer = (usage.run_id, usage.execution, charge.stage, charge.cause, charge.share < 1)
        key = (charge.began_us // DAY_US, *payer, price.to_json())
        groups.setdefault(tuple(map(str, key)), []).append((usage, charge))
    wanted = columns()
    return [{name: row[name] for name in wanted} for row in (_row(group, so_far) for group in groups.values())]


def left_out_s(charged: Iterable[Charged]) -> float:
    """Node-seconds that have no row, because their price is unknown: BilledCost must not be null, and is not 0."""
    return sum(charge.node_seconds for _, charge in charged if charge.amount is None)


def _by_day(charged: Sequence[Charged]) -> Iterator[Charged]:
    """Charges with a known price, cut at midnight (UTC), so that none crosses a billing period."""
    for usage, charge in charged:
        if charge.amount is not None and charge.ended_us > charge.began_us:
            yield from ((usage, part) for part in by_day(charge))


def _row(group: list[Charged], so_far: set[str]) -> Row:
    one, first = group[0]
    price = first.price
    used_us = sum((charge.ended_us - charge.began_us) * Decimal(charge.share) for _, charge in group)
    began, ended = min(each.began_us for _, each in group), max(each.ended_us for _, each in group)
    hours = (Decimal(used_us) / _US_PER_HOUR).quantize(Decimal("1e-12"))
    sku = price.machine or "node"
    return {
        **_ALWAYS,
        **_of_run(one, first.stage, so_far),
        **_in_period(began, ended),
        **_priced(hours, Decimal(repr(price.per_hour)), price.currency),
        "ChargeDescription": f"{first.stage} of pipeline {one.pipeline}, {first.cause}: node hours on {sku}, estimated",
        "ConsumedQuantity": _number(hours),
        "PricingCategory": "Dynamic" if price.term == "spot" else "Standard",
        "RegionId": price.region or None,
        "RegionName": price.region or None,
        "SkuId": sku,
        "SkuPriceId": "/".join([sku, price.region or "any", price.term]),
        "x_Cause": first.cause,
        "x_GpuHours": _number(hours * price.devices),
        "x_PriceDate": price.price_date,
    }


def _of_run(usage: ExecutionUsage, stage: str, so_far: set[str]) -> Row:
    """What a row says of the run that pays."""
    return {
        "ResourceId": f"{usage.run_id}/{stage}",
        "ResourceName": usage.pipeline,
        "Tags": json.dumps(usage.tags, sort_keys=True, ensure_ascii=False),
        "x_Execution": usage.execution,
        "x_Pipeline": usage.pipeline,
        "x_RunId": usage.run_id,
        "x_SoFar": str(usage.run_id in so_far).lower(),
        "x_Stage": stage,
    }


def _in_period(began_us: int, ended_us: int) -> Row:
    """The columns of a charge's time, in whole seconds, and of the calendar month in which it lies."""
    start, end = (round(one.timestamp()) for one in month_of(datetime.fromtimestamp(began_us // MICRO, UTC)))
    return {
        "BillingPeriodStart": _moment(start),
        "BillingPeriodEnd": _moment(end),
        "ChargePeriodStart": _moment(began_us // MICRO),
        "ChargePeriodEnd": _moment(max(-(-ended_us // MICRO), began_us // MICRO + 1)),
    }


def _priced(quantity: Decimal, unit_price: Decimal, currency: str) -> Row:
    """The columns of a quantity and its price, whose product is every cost of the row."""
    costs = dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), _number(quantity * unit_price))
    unit_prices = dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), _number(unit_price))
    return {**costs, **unit_prices, "BillingCurrency": currency, "PricingQuantity": _number(quantity)}


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _number(value: Decimal) -> str:
    """A decimal number without an exponent and without zeros at its end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
