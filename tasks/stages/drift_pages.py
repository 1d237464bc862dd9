"""The part of validate's page about drift: a table of the columns that moved most, with histograms then and now."""

from __future__ import annotations

from data_contracts.drift_report import ColumnDrift, DriftReport
from data_contracts.profile.pictures import as_image, svg
from infra.orchestrator.artifacts import as_text

SHOWN = 10
_WORDS = {"critical": "moved far", "warning": "moved"}


def drift_section(report: DriftReport | None) -> list[str]:
    """Lines of Markdown; none without a comparison."""
    if report is None:
        return []
    lines = ["", "## Drift", ""]
    if report.note or not report.moved:
        return [*lines, f"{as_text(report.sentence[0].upper() + report.sentence[1:])}."]
    then, now = report.rows
    rows = f"{then:,} rows then (grey), {now:,} now (orange)"
    lines += [
        f"{len(report.moved)} of {len(report.columns)} columns moved against {as_text(report.against)}: {rows}.",
        "",
    ]
    lines += ["| Column | Verdict | PSI | KS | What moved | Then and now |", "|---|---|---|---|---|---|"]
    lines += [_row(one) for one in report.moved[:SHOWN]]
    more = len(report.moved) - SHOWN
    return [*lines, *(["", f"… and {more} more, in the report."] if more > 0 else [])]


def _row(one: ColumnDrift) -> str:
    what = one.sentence.removeprefix(f"{one.column}: ").removeprefix(f"{one.column} ")
    picture = as_image(svg(one.bars, one.column)) if one.bars else ""
    cells = (as_text(one.column), _WORDS[one.verdict], f"{one.psi:.3f}", f"{one.ks:.3f}", as_text(what), picture)
    return f"| {' | '.join(cells)} |"
