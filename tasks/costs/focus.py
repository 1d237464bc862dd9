"""Charges as rows of the Cost and Usage dataset of FOCUS, the FinOps Open Cost and Usage Specification.

Written after the specification's text of 1.2: mandatory columns are there, and those that may not be null have values.
Our own columns are named `x_…`.

The store has rows, too: requests and egress when they happened, and storage of what was written. Written bytes are
charged from then on, as if they stayed: no record says when they were deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from data_contracts.canonical import month_of
from data_contracts.costs import NOTHING
from data_contracts.executions import ExecutionUsage
from data_contracts.resolved import StoreRates
from tasks.costs.charges import DAY_US, MICRO, Charged, by_day, charges

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
_GB = Decimal(10**9)
# A service has one category, so the store is a service of its own.
_STORE = f"{_US} Store"


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
    return _with_columns(_row(group, so_far) for group in groups.values())


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


@dataclass(frozen=True)
class _Meter:
    """What is counted, as the columns name it."""

    name: str
    sku: str
    consumed_unit: str
    pricing_unit: str


_PUT = _Meter("PUT Requests", "store/put", "Requests", "1000 Requests")
_GET = _Meter("GET Requests", "store/get", "Requests", "1000 Requests")
_EGRESS = _Meter("Data Transfer", "store/egress", "GB", "GB")
_KEPT = _Meter("Storage", "store/storage", "GB-Months", "GB-Months")


def request_rows(charged: Sequence[Charged], so_far: set[str]) -> list[Row]:
    """Rows for requests and egress, one for each day, execution, stage and price; none where a price is unknown.

    Args:
        charged: charges; so_far: ids of runs that have not ended.
    """
    groups: dict[tuple[object, ...], list[Charged]] = {}
    for usage, charge in _requests_by_day(charged):
        key = (charge.began_us // DAY_US, usage.run_id, usage.execution, charge.stage, charge.price.region)
        groups.setdefault(key, []).append((usage, charge))
    made = [row for group in groups.values() for row in _of_requests(group, so_far)]
    return _with_columns(made)


def storage_rows(executions: Iterable[ExecutionUsage], span_s: tuple[float, float], so_far: set[str]) -> list[Row]:
    """Rows for the storage of what executions wrote, one for each month, execution and stage of a span of time.

    Args:
        executions: all that began before its end, because what was written before its start is stored, too.
    """
    since, until = (round(one * MICRO) for one in span_s)
    made = []
    for one in executions:
        rates = one.rates
        if rates is None or rates.per_gb_month is None:
            continue
        for stage, months in _kept(one, since, until).items():
            for period, byte_us in months.items():
                quantity = (Decimal(byte_us) / (period.end_us - period.start_us) / _GB).quantize(Decimal("1e-12"))
                if quantity:
                    when = _in_period(max(period.start_us, since), min(period.end_us, until))
                    made.append(
                        _store_row(one, stage, _KEPT, (quantity, quantity, rates.per_gb_month), rates, when, so_far)
                    )
    return _with_columns(made)


@dataclass(frozen=True)
class _Period:
    """A calendar month (UTC), in microseconds since the epoch."""

    start_us: int
    end_us: int


def _kept(usage: ExecutionUsage, since: int, until: int) -> dict[str, dict[_Period, int]]:
    """Byte-microseconds of what an execution wrote, by stage and month, between two moments."""
    by_stage: dict[str, dict[_Period, int]] = {}
    for charge in charges(usage):
        written, at = charge.used.written_bytes, max(charge.ended_us, since)
        while written and at < until:
            period = _month(at)
            ended = min(period.end_us, until)
            months = by_stage.setdefault(charge.stage, {})
            months[period] = months.get(period, 0) + written * (ended - at)
            at = ended
    return by_stage


def _month(at_us: int) -> _Period:
    start, end = month_of(datetime.fromtimestamp(at_us // MICRO, UTC))
    return _Period(round(start.timestamp()) * MICRO, round(end.timestamp()) * MICRO)


def _requests_by_day(charged: Iterable[Charged]) -> Iterator[Charged]:
    """Charges of executions whose store has prices, cut at midnight (UTC); one without a length stays as it is."""
    for usage, charge in charged:
        if usage.rates is not None:
            yield from ((usage, part) for part in by_day(charge))


def _of_requests(group: list[Charged], so_far: set[str]) -> Iterator[Row]:
    one, first = group[0]
    rates = one.rates
    assert rates is not None
    used = sum((charge.used for _, charge in group), NOTHING)
    when = _in_period(min(charge.began_us for _, charge in group), max(charge.ended_us for _, charge in group))
    region = first.price.region
    away = bool(region and rates.region) and region != rates.region
    for meter, count, unit, price in (
        (_PUT, used.put_requests, Decimal(1000), rates.put_per_1000),
        (_GET, used.get_requests, Decimal(1000), rates.get_per_1000),
        (_EGRESS, used.read_bytes if away else 0, _GB, rates.egress_per_gb),
    ):
        if count and price is not None:
            consumed = Decimal(count) if unit != _GB else count / _GB
            yield _store_row(one, first.stage, meter, (consumed, count / unit, price), rates, when, so_far)


def _store_row(
    usage: ExecutionUsage,
    stage: str,
    meter: _Meter,
    amounts: tuple[Decimal, Decimal, float],
    rates: StoreRates,
    when: Row,
    so_far: set[str],
) -> Row:
    """A row; `amounts`: what was consumed, the quantity that is priced, and the price of one."""
    consumed, quantity, price = amounts
    kept = "as if all that was written stayed, " if meter is _KEPT else ""
    return {
        **_ALWAYS,
        **_of_run(usage, stage, so_far),
        **when,
        **_priced(quantity, Decimal(repr(price)), rates.currency),
        "ChargeDescription": f"{stage} of pipeline {usage.pipeline}: {meter.name} of the store, {kept}estimated",
        "ConsumedQuantity": _number(consumed),
        "ConsumedUnit": meter.consumed_unit,
        "PricingCategory": "Standard",
        "PricingUnit": meter.pricing_unit,
        "RegionId": rates.region or None,
        "RegionName": rates.region or None,
        "ServiceCategory": "Storage",
        "ServiceName": _STORE,
        "ServiceSubcategory": "Other (Storage)",
        "SkuId": meter.sku,
        "SkuMeter": meter.name,
        "SkuPriceId": "/".join([meter.sku, rates.region or "any"]),
        "x_Cause": None,
        "x_GpuHours": "0",
        "x_PriceDate": rates.price_date,
    }


def _with_columns(made: Iterable[Row]) -> list[Row]:
    wanted = columns()
    return [{name: row[name] for name in wanted} for row in made]
