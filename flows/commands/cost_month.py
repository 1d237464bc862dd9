"""`cost --month`: what a calendar month cost, from the kept figures if there are any; as a page with `--html`."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from data_contracts.errors import UsageError
from flows.commands.guard import Answer
from flows.commands.tables import table
from infra.store import Store
from tasks.costs.months import idle_pools, month_costs, month_named


def cost_month(arguments: argparse.Namespace, stores: list[Store]) -> Answer:
    """The figures of the month by pipeline, and the page."""
    # Imported here, because the import is slow and costs without --month do not need it.
    from flows.commands.report import write_page
    from tasks.pages.cost_page import cost_page, cost_rows, missing_words

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
