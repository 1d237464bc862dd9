"""A calendar month's figures: summed from the runs' records while they exist, and kept in the store once it is over.

The record of a month is created once, so it stays when `gc` deletes the runs. It is not made while a run of the month
may still add to it. What runs used is read from their executions' records, also of processes that were killed or still
work.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from data_contracts.canonical import is_name, iso_month, month_of
from data_contracts.costs import NOTHING, MonthCosts, MonthLine
from data_contracts.errors import CorruptError, UsageError
from infra.store import Store, layout
from infra.store.seal import pass_over
from infra.store.store import read_several
from tasks.costs.charges import Charged
from tasks.costs.sums import charged
from tasks.run.meter import Usage, usage_of

# A run that never ends, because nobody resumes it, holds its month's record up for so long, at most.
WAIT = timedelta(days=20)
log = logging.getLogger("trainwright")


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


def _counted(store: Store, month: Month, now: datetime) -> MonthCosts:
    lines: list[MonthLine] = []
    unreadable, so_far = [], []
    last = f"{month.end:%Y%m%d-%H%M%S}"
    begun = [run_id for run_id in store.list(layout.runs()) if is_name(run_id) and run_id < last]
    for run_id, usage in zip(begun, read_several(store, partial(_readable_usage, store), begun), strict=True):
        if usage is None:
            unreadable.append(run_id)
            continue
        mine = charged(usage.executions, month.start.timestamp(), month.end.timestamp())
        lines += lines_of(mine)
        if usage.so_far and mine:
            so_far.append(run_id)
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
        amount=sum([charge.amount for _, charge in group if charge.amount is not None]),
        used=sum((charge.used for _, charge in group), NOTHING),
    )
