"""The part of validate's page about drift: a table of the columns that moved most, with histograms then and now."""

from __future__ import annotations

from data_contracts.profile.drift import as_image, svg
from data_contracts.records import ColumnDrift, DriftReport
from infra.orchestrator.artifacts import as_text

SHOWN = 10
# The columns of a table of what moved, here and on a terminal.
HEAD = ("column", "verdict", "PSI", "KS", "missing", "what moved")


def cells(one: ColumnDrift) -> tuple[str, ...]:
    """A column's row in a table with this head."""
    missing = f"{one.nulls[0]:.1%} → {one.nulls[1]:.1%}" if any(one.nulls) else ""
    return one.column, one.verdict, f"{one.psi:.3f}", f"{one.ks:.3f}", missing, one.what


def drift_section(report: DriftReport | None) -> list[str]:
    """Lines of Markdown; none without a comparison."""
    if report is None:
        return []
    head = as_text(report.head[0].upper() + report.head[1:])
    lines = ["", "## Drift", ""]
    if report.note or not report.moved:
        return [*lines, f"{head}."]
    then, now = report.rows
    titles = [*(name[0].upper() + name[1:] for name in HEAD), "then and now"]
    lines += [f"{head}: {then:,} rows then (grey), {now:,} now (orange).", ""]
    lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [_row(one) for one in report.moved[:SHOWN]]
    more = len(report.moved) - SHOWN
    return [*lines, *(["", f"… and {more} more, in the report."] if more > 0 else [])]


def _row(one: ColumnDrift) -> str:
    picture = as_image(svg(one.bars, one.column)) if one.bars else ""
    return f"| {' | '.join(map(as_text, cells(one)))} | {picture} |"
