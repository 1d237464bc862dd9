"""`cost`: what runs cost, by tag, pipeline, stage or cause, as a table, or rows of FOCUS.

`cost --month` shows what a calendar month cost, from the kept figures if there are any; with `--html` as a page.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, TrainwrightError, UsageError
from data_contracts.executions import ExecutionUsage
from data_contracts.quoting import escaped
from flows.commands.guard import Answer, log
from flows.commands.terminal import table
from infra import prices
from infra.quantities import size
from infra.sources.resolve import Window, window_since
from infra.store import Store, layout
from infra.store.store import read_several
from tasks.costs.charges import Charge, shared
from tasks.costs.focus import columns, left_out_s, request_rows, rows, storage_rows
from tasks.costs.months import (
    DeletedRuns,
    IdlePool,
    deleted_runs,
    idle_pool,
    idle_pools,
    month_costs,
    month_named,
)
from tasks.costs.sums import ResourceCosts, Sum, charged, check_words, in_words, sums
from tasks.pages.cost_page import cost_page, cost_rows, missing_words
from tasks.run.meter import Usage, usage_of
from tasks.run.run import known_store_list

_MOST_CAUSES = 3
_MOST_PLACES = 3
# The last four are the wide forms, which some programs take for the same.
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")


def cost(arguments: argparse.Namespace) -> Answer:
    """The `cost` command."""
    by = [word.strip() for word in arguments.by.split(",") if word.strip()]
    window = window_since(arguments.since)
    stores = known_store_list(arguments.store or arguments.place)
    if not stores:
        raise UsageError(
            "No store is known on this machine.", remedy="Name one, or run a pipeline: `trainwright run SPEC`."
        )
    if arguments.month is not None:
        return cost_month(arguments, stores)
    if arguments.html is not None:
        raise UsageError("--html writes the page of a month.", remedy="Name the month: --month 2026-10.")
    used, damaged = _used(stores, window)
    deleted = deleted_runs(stores, window.start, window.end, datetime.now(UTC))
    _warn_of_missing(deleted, arguments.format)
    executions = [one for usage in used for one in usage.executions]
    so_far = {usage.run_id for usage in used if usage.so_far}
    check_words(by, executions, deleted.lines)
    found = shared(charged(executions, window.start.timestamp(), window.end.timestamp()))
    groups, total = sums(found, by, so_far, deleted.lines)
    idle = _idle_pools(found, window)
    value = {
        "since": window.start.isoformat(timespec="seconds"),
        "until": window.end.isoformat(timespec="seconds"),
        "stores": [store.uri for store in stores],
        "estimate": True,
        "by": by,
        "groups": [one.to_json(by) for one in groups],
        "total": total.to_json(()),
        "idle_pools": [pool.to_json() for pool in idle],
        "unreadable": damaged,
        "deleted": deleted.missing,
        "from_kept_months": deleted.counted,
    }
    if arguments.format == "focus":
        text = focus_csv(executions, found, so_far, window)
    else:
        text = _sums_table(by, groups, total, window)
    below = [*_unpriced(total, found), *(pool.line for pool in idle)]
    if arguments.format == "table" and below:
        text = "\n".join([text, "", *map(escaped, below)])
    return Answer(text, value)


def _idle_pools(charged: Found, window: Window) -> list[IdlePool]:
    """The pools of the price book that keep nodes running, with what no run used, at the price of the last day."""
    book, end = prices.prices(), min(window.end, datetime.now(UTC))
    span, day = (window.start.timestamp(), end.timestamp()), f"{end - timedelta(microseconds=1):%Y-%m-%d}"
    return [
        idle_pool(name, pool.kept, book.of_pool(name, day), (charge for _, charge in charged), span)
        for name, pool in sorted(book.pools.items())
        if pool.kept
    ]


def _warn_of_missing(deleted: DeletedRuns, form: str) -> None:
    """Warn of the deleted runs of the window that are not counted, by month, and say where their figures are."""
    missing = {**deleted.missing, **(deleted.counted if form == "focus" else {})}
    for month, count in sorted(missing.items()):
        said = "%d runs of %s were deleted by gc and are not counted; `trainwright cost --month %s` counts them"
        log.warning(said, count, month, month)


def _used(stores: Sequence[Store], window: Window) -> tuple[list[Usage], list[str]]:
    """The use of each run that started before the window's end, and the runs whose records cannot be read."""
    last = f"{window.end:%Y%m%d-%H%M%S}~"
    used, damaged = [], []
    for store in stores:
        # A run's id begins with the time of its start (UTC).
        known = [run_id for run_id in store.list(layout.runs()) if is_name(run_id) and run_id <= last]
        for run_id, read in zip(known, read_several(store, partial(_usage_of, store), known), strict=True):
            if isinstance(read, Usage):
                used.append(read)
            else:
                log.warning("%s is not counted: %s", run_id, read.message)
                damaged.append(run_id)
    return used, damaged


def _usage_of(store: Store, run_id: str) -> Usage | TrainwrightError:
    """What a run used, or why its records cannot be read."""
    try:
        return usage_of(store, run_id)
    except (CorruptError, UsageError) as error:
        return error


_COLUMNS: dict[str, Callable[[ResourceCosts], str]] = {
    "requests": lambda one: _nonzero(one.used.put_requests + one.used.get_requests, "{:,}".format),
    "moved": lambda one: _nonzero(one.used.written_bytes + one.used.read_bytes, size),
    "store": lambda one: _store_money(one),
    "energy": lambda one: one.energy,
    "CO2e": lambda one: one.carbon,
}
Found = list[tuple[ExecutionUsage, Charge]]


def _sums_table(by: Sequence[str], groups: list[Sum], total: Sum, window: Window) -> str:
    if not groups:
        return f"No run used anything since {window.start:%Y-%m-%d %H:%M} UTC"
    # Columns of what nobody measured would only take room.
    extra = [name for name, of in _COLUMNS.items() if of(total.resources) not in ("", "unknown")]
    figures = ("runs", "node-hours", "GPU-hours", "cost", *extra, "goodput")

    def shown(group: Sum) -> tuple[str, ...]:
        *before, goodput = _figures(group)
        return (*before, *(_COLUMNS[name](group.resources) for name in extra), goodput)

    lines = [(*one.words, *shown(one), _waste(one)) for one in groups]
    if len(groups) > 1:
        lines.append(("in all", *[""] * (len(by) - 1), *shown(total), _waste(total)))
    text = [
        f"estimates from {window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M} UTC, at the prices of each run's "
        "start",
        "",
        table((*by, *figures, "waste"), lines, figures),
    ]
    units = [("epoch", total.epochs), ("million samples", total.samples / 1e6)]
    said = [f"{in_words(known)} per {unit}" for unit, count in units if (known := total.per(count))]
    text += ["", f"trainings: {', '.join(said)}"] if said else []
    if total.has_deleted:
        text += ["", "runs that gc deleted are counted by the kept figures of their months"]
    running = len(total.so_far & total.runs)
    if running:
        counts = "has not ended and counts" if running == 1 else "have not ended and count"
        text += ["", f"{running} of these runs {counts} so far"]
    return "\n".join(text)


def _unpriced(total: Sum, charged: Found) -> list[str]:
    """How many node-hours have no known price, and on which machines and pools they were."""
    if not total.unpriced_s:
        return []
    places = sorted({charge.price.place for _, charge in charged if charge.amount is None})
    more = len(places) - _MOST_PLACES
    named = ", ".join(places[:_MOST_PLACES]) + (f" and {more} more" if more > 0 else "")
    sentence = f"{total.unpriced_s / 3600:.2f} node-hours have no known price{f' ({named})' if named else ''}"
    return [
        f"{sentence}; give each machine or pool a price in a price book, and a region to a pool whose machine has "
        "prices for several regions (docs/cost.md)"
    ]


def _store_money(costs: ResourceCosts) -> str:
    """Requests and egress, such as `at least 0.0024 EUR`; "" if all that was used is free."""
    unknown = costs.unpriced - {"storage"}
    if not costs.amounts:
        return "unknown" if unknown else ""
    return f"{'at least ' if unknown else ''}{in_words(costs.amounts)}"


def _nonzero(count: int, words: Callable[[int], str]) -> str:
    return words(count) if count else ""


def _figures(group: Sum) -> tuple[str, ...]:
    goodput = "" if group.goodput is None else f"{group.goodput:.0%}"
    return str(len(group.runs)), f"{group.node_seconds / 3600:.2f}", group.gpu_hours, group.money, goodput


def _waste(group: Sum) -> str:
    """The largest causes other than work, with their share."""
    largest = sorted(((seconds, cause) for cause, seconds in group.causes.items() if cause != "work"), reverse=True)
    shown = [f"{cause} {seconds / group.node_seconds:.0%}" for seconds, cause in largest[:_MOST_CAUSES] if seconds]
    return ", ".join(shown)


def cost_month(arguments: argparse.Namespace, stores: list[Store]) -> Answer:
    """The figures of the month by pipeline, and the page."""
    from flows.commands.reports import write_page  # slow, and costs without --month do not need it

    if arguments.format != "table" or arguments.by != "pipeline":
        option = "--by" if arguments.format == "table" else f"--format {arguments.format}"
        raise UsageError(
            f"{option} does not go with --month, which prints a table by pipeline.",
            remedy="--json has all figures of the month, and --html writes its page; or name the month with --since.",
        )
    month, now = month_named(arguments.month), datetime.now(UTC)
    if month.start > now:
        raise UsageError(f"--month: {month.name} lies in the future.", remedy="Name a month that has begun.")
    out = None if arguments.html is None else Path(arguments.html)
    if out is not None and (out.exists() or out.is_symlink()):
        raise UsageError(f"{out} exists already.", remedy="Name another file with --html.")
    found = [month_costs(store, month, now) for store in stores]
    idle = idle_pools(month, found, now)
    value = {
        "month": month.name,
        "stores": [one.uri for one in stores],
        "costs": [one.to_json() for one in found],
        "idle_pools": [pool.to_json() for pool in idle],
    }
    head = ("pipeline", "runs", "node-hours", "cost")
    rows = cost_rows(found)
    text = table(head, rows, head[1:3]) if rows else f"No run used anything in {month.name}"
    if idle:
        text = "\n".join([text, "", *(pool.line for pool in idle)])
    if missing := missing_words(found):
        text = "\n".join([text, "", *missing])
    if out is not None:
        path = write_page(cost_page(found, idle).encode(), out, f"cost-{month.name}")
        text += f"\n\n{path} shows what {month.name} cost."
        value["page"] = str(path)
    return Answer(text, value)


def focus_csv(
    executions: Sequence[ExecutionUsage],
    charged: Sequence[tuple[ExecutionUsage, Charge]],
    so_far: set[str],
    window: Window,
) -> str:
    """Rows of FOCUS, with a warning for each thing that has none because its price is unknown.

    Args:
        executions: all that began before the window's end; charged: their charges in it.
    """
    if (missing := left_out_s(charged)) > 0:
        log.warning("%.0f node-seconds have no known price and are left out: FOCUS allows no unknown cost", missing)
    resources = ResourceCosts()
    for usage, charge in charged:
        resources.add(charge, usage.rates)
    if resources.unpriced:
        unpriced = ", ".join(sorted(resources.unpriced))
        log.warning("of the store, these have no known price and are left out: %s (docs/cost.md)", unpriced)
    span = (window.start.timestamp(), min(window.end, datetime.now(UTC)).timestamp())
    made = [
        *rows(charged, so_far),
        *request_rows(charged, so_far),
        *storage_rows(executions, span, so_far),
    ]
    return _csv(columns(), [list(row.values()) for row in made])


def _csv(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(map(_cell, head))
    writer.writerows(map(_cell, line) for line in lines)
    return page.getvalue().rstrip("\n")


def _cell(value: Any) -> str:
    """A cell that no spreadsheet program takes for a formula: tags are any texts, and the store may hold any name."""
    text = "" if value is None else str(value)
    if not _FORMULA.match(text):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
