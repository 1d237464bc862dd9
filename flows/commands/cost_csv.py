"""What runs cost as CSV: sums, and rows of FOCUS."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from data_contracts.executions import ExecutionUsage
from flows.commands.guard import log
from infra.sources.resolve import Window
from tasks.costs.charges import Charge
from tasks.costs.focus import Version, columns, left_out_s, request_rows, rows, storage_rows
from tasks.costs.sums import ResourceCosts, Sum

_RESOURCES = (
    "put_requests", "get_requests", "written_bytes", "read_bytes", "joules", "estimated_joules", "grams_co2e",
)  # fmt: skip
_HEAD = (
    "runs", "node_seconds", "gpu_seconds", "uncounted_gpus_s", "unpriced_s", "goodput", "currency", "amount",
    "estimate", *_RESOURCES, "store_amount", "store_unpriced",
)  # fmt: skip
# The last four are the wide forms, which some programs take for the same.
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")


def sums_csv(by: Sequence[str], groups: Sequence[Sum]) -> str:
    """A line for each sum and currency."""
    return _csv([*by, *_HEAD], [line for group in groups for line in _lines(group)])


def focus_csv(
    version: Version,
    executions: Sequence[ExecutionUsage],
    found: Sequence[tuple[ExecutionUsage, Charge]],
    so_far: set[str],
    window: Window,
) -> str:
    """Rows of FOCUS, with a warning for each thing that has none because its price is unknown.

    Args:
        executions: all that began before the window's end; found: their charges in it.
    """
    if (missing := left_out_s(found)) > 0:
        log.warning("%.0f node-seconds have no known price and are left out: FOCUS allows no unknown cost", missing)
    resources = ResourceCosts()
    for one, charge in found:
        resources.add(charge, one.rates)
    if resources.unpriced:
        unpriced = ", ".join(sorted(resources.unpriced))
        log.warning("of the store, these have no known price and are left out: %s (docs/cost.md)", unpriced)
    span = (window.start.timestamp(), min(window.end, datetime.now(UTC)).timestamp())
    made = [
        *rows(found, version, so_far),
        *request_rows(found, version, so_far),
        *storage_rows(executions, span, version, so_far),
    ]
    return _csv(columns(version), [list(row.values()) for row in made])


def _lines(group: Sum) -> list[list[Any]]:
    """One line for each currency; an unknown amount is empty."""
    resources = group.resources
    stored = {currency: f"{amount:.9f}" for currency, amount in resources.amounts.items()}
    known: list[tuple[str, Any, str]] = [
        (currency, f"{group.amounts[currency]:.6f}" if currency in group.amounts else "", stored.get(currency, ""))
        for currency in sorted({*group.amounts, *stored})
    ]
    more = [resources.to_json()[name] for name in _RESOURCES]
    goodput = "" if group.goodput is None else f"{group.goodput:.4f}"
    unpriced = " ".join(sorted(resources.unpriced - {"storage"}))
    start = [*group.words, len(group.runs)]
    figures = [
        f"{group.node_seconds:.3f}",
        f"{group.gpu_seconds:.3f}",
        f"{group.uncounted_s:.3f}",
        f"{group.unpriced_s:.3f}",
        goodput,
    ]
    return [
        [*start, *figures, currency, amount, "true", *more, store_amount, unpriced]
        for currency, amount, store_amount in known or [("", "", "")]
    ]


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
