"""`cost`: what runs cost, by tag, pipeline, stage or cause, as a table, or rows of FOCUS.

`cost --month` shows what a calendar month cost, from the kept figures if there are any; with `--html` as a page.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, TrainwrightError, UsageError
from data_contracts.quoting import escaped
from flows.commands.guard import Answer, log
from flows.commands.terminal import table
from infra.quantities import size
from infra.sources.resolve import Window, window_since
from infra.store import Store, layout
from infra.store.store import read_several
from tasks.costs.charges import Charged, shared
from tasks.costs.focus import columns, left_out_s, rows
from tasks.costs.months import month_costs, month_named
from tasks.costs.sums import Sum, charged, check_words, sums
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
    executions = [one for usage in used for one in usage.executions]
    so_far = {usage.run_id for usage in used if usage.so_far}
    check_words(by, executions)
    found = shared(charged(executions, window.start.timestamp(), window.end.timestamp()))
    groups, total = sums(found, by, so_far)
    value = {
        "since": window.start.isoformat(timespec="seconds"),
        "until": window.end.isoformat(timespec="seconds"),
        "stores": [store.uri for store in stores],
        "estimate": True,
        "by": by,
        "groups": [one.to_json(by) for one in groups],
        "total": total.to_json(()),
        "unreadable": damaged,
    }
    if arguments.format == "focus":
        return Answer(focus_csv(found, so_far), value)
    text = _sums_table(by, groups, total, window)
    if below := _unpriced(total, found):
        text = "\n".join([text, "", *map(escaped, below)])
    return Answer(text, value)


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


def _sums_table(by: Sequence[str], groups: list[Sum], total: Sum, window: Window) -> str:
    if not groups:
        return f"No run used anything since {window.start:%Y-%m-%d %H:%M} UTC"
    # Columns of what nobody measured would only take room.
    measured = [name for name, text in _resources(total).items() if text]
    figures = ("runs", "node-hours", "GPU-hours", "cost", *measured, "goodput")

    def shown(group: Sum) -> tuple[str, ...]:
        *before, goodput = _figures(group)
        return (*before, *(_resources(group)[name] for name in measured), goodput)

    lines = [(*one.words, *shown(one), _waste(one)) for one in groups]
    if len(groups) > 1:
        lines.append(("in all", *[""] * (len(by) - 1), *shown(total), _waste(total)))
    text = [
        f"estimates from {window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M} UTC, at the prices of each run's "
        "start",
        "",
        table((*by, *figures, "waste"), lines, figures),
    ]
    running = len(total.so_far & total.runs)
    if running:
        counts = "has not ended and counts" if running == 1 else "have not ended and count"
        text += ["", f"{running} of these runs {counts} so far"]
    return "\n".join(text)


def _unpriced(total: Sum, charged: Sequence[Charged]) -> list[str]:
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


def _resources(group: Sum) -> dict[str, str]:
    """Requests, bytes and measured energy in words; "" for what is not known, or nothing."""
    used = group.used
    requests, moved = used.put_requests + used.get_requests, used.written_bytes + used.read_bytes
    return {
        "requests": f"{requests:,}" if requests else "",
        "moved": size(moved) if moved else "",
        "energy": group.energy,
    }


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
    from flows.commands.reports import free_file, write_page  # slow, and costs without --month do not need it

    if arguments.format != "table" or arguments.by != "pipeline":
        option = "--by" if arguments.format == "table" else f"--format {arguments.format}"
        raise UsageError(
            f"{option} does not go with --month, which prints a table by pipeline.",
            remedy="--json has all figures of the month, and --html writes its page; or name the month with --since.",
        )
    month, now = month_named(arguments.month), datetime.now(UTC)
    if month.start > now:
        raise UsageError(f"--month: {month.name} lies in the future.", remedy="Name a month that has begun.")
    out = free_file(arguments.html, "--html")
    found = [month_costs(store, month, now) for store in stores]
    value = {
        "month": month.name,
        "stores": [one.uri for one in stores],
        "costs": [one.to_json() for one in found],
    }
    head = ("pipeline", "runs", "node-hours", "cost")
    rows = cost_rows(found)
    text = table(head, rows, head[1:3]) if rows else f"No run used anything in {month.name}"
    if missing := missing_words(found):
        text = "\n".join([text, "", *missing])
    if out is not None:
        path = write_page(cost_page(found).encode(), out, f"cost-{month.name}")
        text += f"\n\n{path} shows what {month.name} cost."
        value["page"] = str(path)
    return Answer(text, value)


def focus_csv(charged: Sequence[Charged], so_far: set[str]) -> str:
    """Rows of FOCUS, with a warning for the time that has none because its price is unknown."""
    if (missing := left_out_s(charged)) > 0:
        log.warning("%.0f node-seconds have no known price and are left out: FOCUS allows no unknown cost", missing)
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(map(_cell, columns()))
    writer.writerows(map(_cell, row.values()) for row in rows(charged, so_far))
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
