"""What the store costs as rows of FOCUS: requests and egress when they happened, and storage of what was written.

Written bytes are charged from then on, as if they stayed: no record says when they were deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from data_contracts.costs import NOTHING
from data_contracts.executions import ExecutionUsage
from data_contracts.resolved import StoreRates
from data_contracts.times import month_of
from tasks.costs.charges import DAY_US, Charged, by_day, charges
from tasks.costs.focus import ALWAYS, US, Row, Version, columns, in_period, number, of_run, priced
from tasks.costs.resource_shares import MICRO

_GB = Decimal(10**9)
# A service has one category, so the store is a service of its own.
STORE = f"{US} Store"


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


def request_rows(found: Sequence[Charged], version: Version, so_far: set[str]) -> list[Row]:
    """Rows for requests and egress, one for each day, execution, stage and price; none where a price is unknown.

    Args:
        found: charges; so_far: ids of runs that have not ended.
    """
    groups: dict[tuple[object, ...], list[Charged]] = {}
    for one, charge in _by_day(found):
        key = (charge.began_us // DAY_US, one.run_id, one.execution, charge.stage, charge.price.region)
        groups.setdefault(key, []).append((one, charge))
    made = [row for group in groups.values() for row in _of_requests(group, so_far)]
    return _with_columns(made, version)


def storage_rows(
    executions: Iterable[ExecutionUsage], span_s: tuple[float, float], version: Version, so_far: set[str]
) -> list[Row]:
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
                    when = in_period(max(period.start_us, since), min(period.end_us, until))
                    made.append(_row(one, stage, _KEPT, (quantity, quantity, rates.per_gb_month), rates, when, so_far))
    return _with_columns(made, version)


@dataclass(frozen=True)
class _Period:
    """A calendar month (UTC), in microseconds since the epoch."""

    start_us: int
    end_us: int


def _kept(one: ExecutionUsage, since: int, until: int) -> dict[str, dict[_Period, int]]:
    """Byte-microseconds of what an execution wrote, by stage and month, between two moments."""
    found: dict[str, dict[_Period, int]] = {}
    for charge in charges(one):
        written, at = charge.used.written_bytes, max(charge.ended_us, since)
        while written and at < until:
            period = _month(at)
            ended = min(period.end_us, until)
            months = found.setdefault(charge.stage, {})
            months[period] = months.get(period, 0) + written * (ended - at)
            at = ended
    return found


def _month(at_us: int) -> _Period:
    start, end = month_of(datetime.fromtimestamp(at_us // MICRO, UTC))
    return _Period(round(start.timestamp()) * MICRO, round(end.timestamp()) * MICRO)


def _by_day(found: Iterable[Charged]) -> Iterator[Charged]:
    """Charges of executions whose store has prices, cut at midnight (UTC); one without a length stays as it is."""
    for one, charge in found:
        if one.rates is not None:
            yield from ((one, part) for part in by_day(charge))


def _of_requests(group: list[Charged], so_far: set[str]) -> Iterator[Row]:
    one, first = group[0]
    rates = one.rates
    assert rates is not None
    used = sum((charge.used for _, charge in group), NOTHING)
    when = in_period(min(charge.began_us for _, charge in group), max(charge.ended_us for _, charge in group))
    region = first.price.region
    away = bool(region and rates.region) and region != rates.region
    for meter, count, unit, price in (
        (_PUT, used.put_requests, Decimal(1000), rates.put_per_1000),
        (_GET, used.get_requests, Decimal(1000), rates.get_per_1000),
        (_EGRESS, used.read_bytes if away else 0, _GB, rates.egress_per_gb),
    ):
        if count and price is not None:
            consumed = Decimal(count) if unit != _GB else count / _GB
            yield _row(one, first.stage, meter, (consumed, count / unit, price), rates, when, so_far)


def _row(
    one: ExecutionUsage,
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
        **ALWAYS,
        **of_run(one, stage, so_far),
        **when,
        **priced(quantity, Decimal(repr(price)), rates.currency),
        "ChargeDescription": f"{stage} of pipeline {one.pipeline}: {meter.name} of the store, {kept}estimated",
        "ConsumedQuantity": number(consumed),
        "ConsumedUnit": meter.consumed_unit,
        "PricingCategory": "Standard",
        "PricingUnit": meter.pricing_unit,
        "RegionId": rates.region or None,
        "RegionName": rates.region or None,
        "ServiceCategory": "Storage",
        "ServiceName": STORE,
        "ServiceSubcategory": "Other (Storage)",
        "SkuId": meter.sku,
        "SkuMeter": meter.name,
        "SkuPriceId": "/".join([meter.sku, rates.region or "any"]),
        "x_Cause": None,
        "x_GpuHours": "0",
        "x_PriceDate": rates.price_date,
    }


def _with_columns(made: Iterable[Row], version: Version) -> list[Row]:
    wanted = columns(version)
    return [{name: row[name] for name in wanted} for row in made]
