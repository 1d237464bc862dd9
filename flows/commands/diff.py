"""`diff`: two runs or versions side by side: data, contract, spec, code, metrics and weights."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flows.commands.guard import Answer
from flows.commands.report import free_file, write_page
from flows.commands.tables import table
from infra.store.seal import noting_damage
from tasks.pages.comparison_page import (
    Comparison,
    compare_sides,
    comparison_page,
    figure,
    find_side,
    metric_note,
    shapes,
)
from tasks.run.run import known_store_list

# For each part; --json and the page have more.
LINES = 30


def diff(arguments: argparse.Namespace) -> Answer:
    """The `diff` command; with `--out` also as a page."""
    out = None if arguments.out is None else free_file(arguments.out)
    stores = known_store_list(arguments.store)
    with noting_damage() as damage:
        found = compare_sides(find_side(stores, arguments.before), find_side(stores, arguments.after))
    if damage:  # a part that cannot be read would be shown as one that is not there
        raise damage[0]
    value = found.to_json()
    lines = _lines(found)
    if out is not None:
        write_page(comparison_page(found).encode(), out, "comparison")
        lines += ["", f"{out} shows it as a page."]
        value["page"] = str(out)
    return Answer("\n".join(lines), value, line=found.sentence)


def _lines(found: Comparison) -> list[str]:
    lines = [f"{found.sentence}."]
    metrics = [(one.name, figure(one.before), figure(one.after), metric_note(one)) for one in found.metrics]
    for name, rows in found.parts.items():
        cells = [(row.name, row.before or "–", row.after or "–") for row in rows]
        lines += _table(name, ("what", "before", "after"), cells)
    lines += _table("metrics", ("metric", "before", "after", "after is"), metrics)
    changed = [one for one in found.weights if not one.same]
    weights = [(one.name, shapes(one), *map(figure, (*one.norms, one.difference))) for one in changed]
    lines += _table("weights", ("tensor", "shape", "norm before", "norm after", "norm of difference"), weights)
    return [*lines, "", f"weights: {found.no_weights}"] if found.no_weights else lines


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    more = len(rows) - LINES
    rest = [f"… and {more} more (all of them with --json)"] if more > 0 else []
    return ["", title, table(head, rows[:LINES]), *rest]
