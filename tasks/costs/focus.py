"""Charges as rows of the Cost and Usage dataset of FOCUS, the FinOps Open Cost and Usage Specification.

Written after the specification's text of 1.2 and its columns introduced in 1.3 and 1.4: mandatory columns are there,
those that may not be null have values, and those that a version removes are absent. Our own columns are named `x_…`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

from data_contracts.executions import ExecutionUsage
from data_contracts.times import month_of
from tasks.costs.charges import DAY_US, Charge, by_day
from tasks.costs.resource_shares import MICRO

Version = Literal["1.2", "1.3", "1.4"]
VERSIONS: tuple[Version, ...] = ("1.2", "1.3", "1.4")
Row = dict[str, str | None]
_US_PER_HOUR = 3600 * MICRO
US = "Trainwright"
# The method by which a machine's time is divided among its runs; docs/cost.md explains it under this name.
EQUAL_SHARES = "equal-shares-of-runs"
# The columns of split cost allocation, in a row that is not part of one.
NOT_ALLOCATED: Row = dict.fromkeys(
    ("AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags")
)


# What every row has, if it does not say otherwise.
ALWAYS: Row = {
    **NOT_ALLOCATED,
    **dict.fromkeys(("ProviderName", "PublisherName", "InvoiceIssuerName", "ServiceProviderName"), US),
    # The specification allows this where the provider of the machine is not known.
    "HostProviderName": US,
    "BillingAccountId": "trainwright-estimate",
    "BillingAccountName": "Estimates by Trainwright",
    "ChargeCategory": "Usage",
    "ChargeClass": None,
    "ChargeFrequency": "Usage-Based",
    "ConsumedUnit": "Hours",
    # An estimate is on no invoice.
    "InvoiceId": None,
    "InvoiceDetailId": None,
    "PricingUnit": "Hours",
    "ResourceType": "Pipeline run",
    "ServiceCategory": "AI and Machine Learning",
    "ServiceName": US,
    "ServiceSubcategory": "Machine Learning",
    "SkuMeter": "Node Hours",
    "SkuPriceDetails": None,
    "x_Estimate": "true",
}


def columns(version: Version) -> list[str]:
    """The columns of a version, in their order: those of FOCUS, then our own."""
    named = [
        "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
        "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
        "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost",
        "ContractedUnitPrice", "EffectiveCost", "InvoiceId", "InvoiceIssuerName", "ListCost", "ListUnitPrice",
        "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName",
        "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId",
        "SkuMeter", "SkuPriceDetails", "SkuPriceId", "Tags",
    ]  # fmt: skip
    if version != "1.2":
        named += ["HostProviderName", "ServiceProviderName", *NOT_ALLOCATED]
    if version == "1.4":
        named = [name for name in named if name not in ("ProviderName", "PublisherName")] + ["InvoiceDetailId"]
    own = [
        "x_Cause", "x_Estimate", "x_Execution", "x_GpuHours", "x_Pipeline", "x_PriceDate", "x_RunId", "x_SoFar",
        "x_Stage",
    ]  # fmt: skip
    return [*sorted(named), *own]


def rows(found: Sequence[tuple[ExecutionUsage, Charge]], version: Version, so_far: set[str]) -> list[Row]:
    """One row for each day, execution, stage, price and cause, in part or in full.

    Charges without a known price have none.
    From 1.3 on, a part of what a machine cost that several runs shared is a row of the machine, allocated to a run.

    Args:
        so_far: ids of runs that have not ended.
    """
    groups: dict[tuple[object, ...], list[tuple[ExecutionUsage, Charge]]] = {}
    for one, charge in _by_day(found):
        price = charge.price
        payer = (one.run_id, one.execution, charge.stage, charge.cause, charge.share < 1)
        key = (charge.began_us // DAY_US, *payer, price.to_json())
        groups.setdefault(tuple(map(str, key)), []).append((one, charge))
    wanted = columns(version)
    made = [(_row(group, so_far), group[0]) for group in groups.values()]
    if version != "1.2":
        _allocate([(row, *first) for row, first in made if first[1].share < 1])
    return [{name: row[name] for name in wanted} for row, _ in made]


def left_out_s(found: Iterable[tuple[ExecutionUsage, Charge]]) -> float:
    """Node-seconds that have no row, because their price is unknown: BilledCost must not be null, and is not 0."""
    return sum(charge.node_seconds for _, charge in found if charge.amount is None)


def _by_day(found: Sequence[tuple[ExecutionUsage, Charge]]) -> Iterator[tuple[ExecutionUsage, Charge]]:
    """Charges with a known price, cut at midnight (UTC), so that none crosses a billing period."""
    for one, charge in found:
        if charge.amount is not None and charge.ended_us > charge.began_us:
            yield from ((one, part) for part in by_day(charge))


def _row(group: list[tuple[ExecutionUsage, Charge]], so_far: set[str]) -> Row:
    one, first = group[0]
    price = first.price
    used_us = sum((charge.ended_us - charge.began_us) * Decimal(charge.share) for _, charge in group)
    began, ended = min(each.began_us for _, each in group), max(each.ended_us for _, each in group)
    hours = (Decimal(used_us) / _US_PER_HOUR).quantize(Decimal("1e-12"))
    sku = price.machine or "node"
    return {
        **ALWAYS,
        **of_run(one, first.stage, so_far),
        **in_period(began, ended),
        **priced(hours, Decimal(repr(price.per_hour)), price.currency),
        "ChargeDescription": f"{first.stage} of pipeline {one.pipeline}, {first.cause}: node hours on {sku}, estimated",
        "ConsumedQuantity": number(hours),
        "PricingCategory": "Dynamic" if price.term == "spot" else "Standard",
        "RegionId": price.region or None,
        "RegionName": price.region or None,
        "SkuId": sku,
        "SkuPriceId": "/".join([sku, price.region or "any", price.term]),
        "x_Cause": first.cause,
        "x_GpuHours": number(hours * price.devices),
        "x_PriceDate": price.price_date,
    }


def _allocate(made: list[tuple[Row, ExecutionUsage, Charge]]) -> None:
    """Make rows the allocated charges of what their machine cost on that day while runs shared it."""
    hours: dict[tuple[object, ...], Decimal] = {}
    for row, _, charge in made:
        hours[_origin(charge)] = hours.get(_origin(charge), Decimal(0)) + Decimal(row["ConsumedQuantity"] or 0)
    for row, _, charge in made:
        used, whole = Decimal(row["ConsumedQuantity"] or 0), hours[_origin(charge)]
        part = {
            "AllocatedRatio": float(used / whole) if whole else 0,
            "UsageUnit": "Hours",
            "UsageQuantity": float(used),
        }
        row |= {
            "AllocatedMethodDetails": json.dumps({"Elements": [part]}),
            "AllocatedMethodId": EQUAL_SHARES,
            "AllocatedResourceId": row["ResourceId"],
            "AllocatedResourceName": row["ResourceName"],
            "AllocatedTags": row["Tags"],
            "ResourceId": charge.machine,
            "ResourceName": charge.price.machine or "node",
            "ResourceType": "Machine",
            "Tags": "{}",
        }


def _origin(charge: Charge) -> tuple[object, ...]:
    return charge.machine, charge.price, charge.began_us // DAY_US


def of_run(one: ExecutionUsage, stage: str, so_far: set[str]) -> Row:
    """What a row says of the run that pays."""
    return {
        "ResourceId": f"{one.run_id}/{stage}",
        "ResourceName": one.pipeline,
        "Tags": json.dumps(one.tags, sort_keys=True, ensure_ascii=False),
        "x_Execution": one.execution,
        "x_Pipeline": one.pipeline,
        "x_RunId": one.run_id,
        "x_SoFar": str(one.run_id in so_far).lower(),
        "x_Stage": stage,
    }


def in_period(began_us: int, ended_us: int) -> Row:
    """The columns of a charge's time, in whole seconds, and of the calendar month in which it lies."""
    start, end = (round(one.timestamp()) for one in month_of(datetime.fromtimestamp(began_us // MICRO, UTC)))
    return {
        "BillingPeriodStart": _moment(start),
        "BillingPeriodEnd": _moment(end),
        "ChargePeriodStart": _moment(began_us // MICRO),
        "ChargePeriodEnd": _moment(max(-(-ended_us // MICRO), began_us // MICRO + 1)),
    }


def priced(quantity: Decimal, unit_price: Decimal, currency: str) -> Row:
    """The columns of a quantity and its price, whose product is every cost of the row."""
    costs = dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), number(quantity * unit_price))
    unit_prices = dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), number(unit_price))
    return {**costs, **unit_prices, "BillingCurrency": currency, "PricingQuantity": number(quantity)}


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def number(value: Decimal) -> str:
    """A decimal number without an exponent and without zeros at its end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
