"""A calendar month's figures: summed from the runs' records while they exist, and kept in the store once it is over.

The record of a month is created once, so it stays when `gc` deletes the runs. It is not made while a run of the month
may still add to it. It includes what machines cost that a pool keeps running and that no run uses. What runs used is
read from their executions' records, also of processes that were killed or still work.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from data_contracts.canonical import is_name, iso_month, month_of
from data_contracts.costs import NOTHING, MonthCosts, MonthLine
from data_contracts.errors import CorruptError, UsageError
from data_contracts.resolved import Price
from infra import prices
from infra.store import Store, layout
from infra.store.seal import pass_over
from infra.store.store import read_several
from tasks.costs.charges import MICRO, Charge, Charged, shared
from tasks.costs.sums import JOULES_PER_KWH, charged
from tasks.run.meter import Usage, usage_of

# A run that never ends, because nobody resumes it, holds its month's record up for so long, at most.
WAIT = timedelta(days=20)
log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class IdlePool:
    """A pool whose `kept` nodes were partly used by no run.

    Attributes:
        idle_s: node-seconds that no run used, of `kept_s`.
        is_least: whether more may have been idle: runs may have used other nodes of the pool meanwhile.
    """

    name: str
    kept: int
    kept_s: float
    idle_s: float
    price: Price
    is_least: bool = False

    @property
    def amount(self) -> float | None:
        """What the idle node-seconds cost, in the currency of the price; None if the price is unknown."""
        return None if self.price.per_hour is None else self.idle_s / 3600 * self.price.per_hour

    @property
    def line(self) -> str:
        """A sentence for a person."""
        money = "an unknown cost" if self.amount is None else f"{self.amount:.4f} {self.price.currency}"
        share = self.idle_s / self.kept_s if self.kept_s else 0.0
        least = "at least " if self.is_least else ""
        nodes = "1 node" if self.kept == 1 else f"{self.kept} nodes"
        unused = f"no run used {least}{self.idle_s / 3600:.2f} node-hours of them ({share:.0%})"
        return f"pool {self.name} keeps {nodes}: {unused}, {money}"

    def to_json(self) -> dict[str, object]:
        """The pool for a program; what is unknown is null."""
        figures = {"kept_s": round(self.kept_s, 6), "idle_s": round(self.idle_s, 6), "amount": self.amount}
        return {"pool": self.name, "kept": self.kept, **figures, "currency": self.price.currency}


def idle_pool(name: str, kept: int, price: Price, charges: Iterable[Charge], span_s: tuple[float, float]) -> IdlePool:
    """How much of `kept` nodes no run used in a span; nodes beyond those are others, started for a run."""
    since, until = round(span_s[0] * MICRO), round(span_s[1] * MICRO)
    changes: list[tuple[int, int]] = [(until, 0)]
    for charge in charges:
        began, ended = max(charge.began_us, since), min(charge.ended_us, until)
        if charge.price.pool == name and ended > began:
            changes += [(began, 1), (ended, -1)]
    at, busy, idle_us = since, 0, 0
    for moment, change in sorted(changes):
        idle_us += max(kept - busy, 0) * (moment - at)
        at, busy = moment, busy + change
    return IdlePool(name, kept, kept * (until - since) / MICRO, idle_us / MICRO, price)


def idle_in_month(name: str, kept: int, price: Price, months: Iterable[MonthCosts], length_s: float) -> IdlePool | None:
    """The same by a month's figures of several stores; None if one of them does not name pools."""
    used_s, kept_s = 0.0, kept * length_s
    for month in months:
        if month.lines and not month.has_pools:
            return None
        used_s += sum(line.node_seconds for line in month.lines if line.pool == name)
    return IdlePool(name, kept, kept_s, max(kept_s - used_s, 0.0), price, is_least=True)


@dataclass(frozen=True)
class Month:
    """A calendar month in UTC."""

    start: datetime
    end: datetime

    @property
    def name(self) -> str:
        """Such as 2026-10."""
        return f"{self.start:%Y-%m}"


def month_named(name: str) -> Month:
    """The month such as 2026-10; UsageError if it is none."""
    try:
        iso_month(name)
    except ValueError as error:
        raise UsageError(f"--month: {error}.") from error
    start = datetime(int(name[:4]), int(name[5:]), 1, tzinfo=UTC)
    if start.year == datetime.max.year:
        raise UsageError(f"--month: {name} lies too far away.", remedy="Name a month that has begun.")
    return Month(*month_of(start))


def month_costs(store: Store, month: Month, now: datetime) -> MonthCosts:
    """The kept figures of a month; without them, those of the records that exist."""
    return kept_costs(store, month, now) or _counted(store, month, now)


def kept_costs(store: Store, month: Month, now: datetime) -> MonthCosts | None:
    """The kept figures of a month; None if there are none. CorruptError if they are damaged.

    A record that was made before its month was over is not Trainwright's: it is left out, with a warning.
    """
    path = layout.month_costs(month.name)
    found = store.find_as(path, MonthCosts.from_json)
    if found is None or (found.month == month.name and min(_made(found, path), now) >= month.end):
        return found
    log.warning("%s in %s was made before the month was over, and does not count; delete it.", path, store.uri)
    return None


def _made(figures: MonthCosts, path: str) -> datetime:
    try:
        made = datetime.fromisoformat(figures.made)
    except ValueError as error:
        raise CorruptError(f"{path} does not say when it was made.", details={"file": path}) from error
    return made if made.tzinfo is not None else made.replace(tzinfo=UTC)


def idle_pools(month: Month, costs: Sequence[MonthCosts], now: datetime) -> list[IdlePool]:
    """The pools of the price book that keep nodes running, with what no run of the month used, at its last price.

    Args:
        costs: the month's figures in several stores.
    """
    book, end = prices.prices(), min(month.end, now)
    length_s = (end - month.start).total_seconds()
    day = f"{end - timedelta(seconds=1):%Y-%m-%d}"
    made = [
        idle_in_month(name, pool.kept, book.of_pool(name, day), costs, length_s)
        for name, pool in sorted(book.pools.items())
        if pool.kept
    ]
    return [pool for pool in made if pool is not None]


def keep_months(store: Store, now: datetime, keep: timedelta = timedelta.max) -> list[str]:
    """Keep the figures of every month that is over, that runs used and that has no record yet; returns their names.

    Args:
        keep: after which age gc deletes runs. Once the first of a month may be so old, its record waits for nobody.
    """
    kept = []
    for name in _used_months(store, f"{now.astimezone(UTC):%Y-%m}"):
        month = month_named(name)
        figures = _counted(store, month, now)
        if figures.so_far and now - month.end < WAIT and now - month.start < keep:
            continue
        if store.create_once(layout.month_costs(name), figures.to_json()):
            kept.append(name)
    return kept


def _used_months(store: Store, current: str) -> list[str]:
    """The months before the current one in which runs began or used something, and that have no record yet."""
    known = {one.removesuffix(".json") for one in store.list(layout.month_folder())}
    begun: dict[str, Month] = {}
    for run_id in store.list(layout.runs()):
        # A run's id begins with the time of its start (UTC); what names no month was not made by Trainwright.
        if is_name(run_id) and re.match(r"[0-9]{8}-", run_id):
            with contextlib.suppress(UsageError):
                begun[run_id] = month_named(f"{run_id[:4]}-{run_id[4:6]}")
    used = {month.name for month in begun.values() if month.name < current}
    for run_id, month in begun.items():
        # It may have worked in later months, in which no run began.
        later = [one for one in _following(month, current) if one.name not in used | known]
        if later:
            with contextlib.suppress(CorruptError, UsageError):
                done = usage_of(store, run_id).executions
                used |= {one.name for one in later if charged(done, one.start.timestamp(), one.end.timestamp())}
    return sorted(used - known)


def _following(month: Month, current: str) -> Iterator[Month]:
    """The months after one and before the current one."""
    while (month := Month(*month_of(month.end))).name < current:
        yield month


@dataclass(frozen=True)
class DeletedRuns:
    """Runs of a span of time that are no longer in the store, but in the kept figures of months.

    Attributes:
        lines: of the months that lie in the span as a whole; counted: how many runs these are, by month.
        missing: how many runs are in months that lie in it in part, by month: no record says what part of them.
    """

    lines: list[MonthLine]
    counted: dict[str, int]
    missing: dict[str, int]


def deleted_runs(stores: Iterable[Store], start: datetime, end: datetime, now: datetime) -> DeletedRuns:
    """The deleted runs of several stores between two times."""
    found = DeletedRuns([], {}, {})
    for store in stores:
        there = set(store.list(layout.runs()))
        for name in (one.removesuffix(".json") for one in store.list(layout.month_folder())):
            try:
                month = month_named(name)
            except UsageError:
                continue
            kept = kept_costs(store, month, now) if month.start < end and month.end > start else None
            gone = [] if kept is None else [line for line in kept.lines if line.run_id not in there]
            if gone:
                whole = start <= month.start and month.end <= end
                counts = found.counted if whole else found.missing
                counts[name] = counts.get(name, 0) + len({line.run_id for line in gone})
                found.lines.extend(gone if whole else [])
    return found


def _counted(store: Store, month: Month, now: datetime) -> MonthCosts:
    found: list[Charged] = []
    unreadable, so_far = [], []
    last = f"{month.end:%Y%m%d-%H%M%S}"
    begun = [run_id for run_id in store.list(layout.runs()) if is_name(run_id) and run_id < last]
    for run_id, usage in zip(begun, read_several(store, partial(_readable_usage, store), begun), strict=True):
        if usage is None:
            unreadable.append(run_id)
            continue
        mine = charged(usage.executions, month.start.timestamp(), month.end.timestamp())
        found += mine
        if usage.so_far and mine:
            so_far.append(run_id)
    divided: dict[str, list[Charged]] = {}
    for one, charge in shared(found):
        divided.setdefault(one.run_id, []).append((one, charge))
    lines = [line for mine in divided.values() for line in lines_of(mine)]
    return MonthCosts(
        month=month.name,
        made=now.isoformat(timespec="seconds"),
        lines=lines,
        unreadable=unreadable,
        so_far=so_far,
        has_pools=True,
    )


def _readable_usage(store: Store, run_id: str) -> Usage | None:
    """What a run used; None if its records cannot be read."""
    try:
        return usage_of(store, run_id)
    except (CorruptError, UsageError) as error:
        pass_over(error)
        return None


def lines_of(charged: Iterable[Charged]) -> list[MonthLine]:
    """Charges of one run as lines of a month, one for each stage, cause and price."""
    groups: dict[tuple[str, ...], list[Charged]] = {}
    for usage, charge in charged:
        price = charge.price
        same = (usage.pipeline, usage.model, charge.stage, charge.cause, price.place, price.currency, price.pool)
        groups.setdefault(same, []).append((usage, charge))
    return [_line(group) for group in groups.values()]


def _line(group: list[Charged]) -> MonthLine:
    one, first = group[0]
    known = [charge.amount for _, charge in group if charge.amount is not None]
    joules = [(charge.joules or 0.0, charge.price.g_per_kwh or 0.0) for _, charge in group]
    return MonthLine(
        run_id=one.run_id,
        pipeline=one.pipeline,
        model=one.model,
        tags=one.tags,
        stage=first.stage,
        cause=first.cause,
        machine=first.price.place,
        pool=first.price.pool,
        node_seconds=sum(charge.node_seconds for _, charge in group),
        gpu_seconds=sum(charge.gpu_seconds or 0.0 for _, charge in group),
        uncounted_s=sum(charge.node_seconds for _, charge in group if charge.gpu_seconds is None),
        unpriced_s=sum(charge.node_seconds for _, charge in group if charge.amount is None),
        currency=first.price.currency,
        amount=sum(known),
        joules=sum(energy for energy, _ in joules),
        grams=sum(energy / JOULES_PER_KWH * grams for energy, grams in joules),
        used=sum((charge.used for _, charge in group), NOTHING),
    )
