"""Writes a CI report as a Markdown page of limited size; every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from data_contracts.run_report import CiCase, CiReport
from infra.orchestrator.artifacts import as_code, as_text
from tasks.run.report import cost_sentence

# GitHub drops a step's summary that is larger as a whole.
MOST_BYTES = 1024 * 1024
_CUT = "\n\n**The summary is cut here: it would exceed what the host accepts.**\n"
_MARKS = {"passed": "✅", "failed": "❌", "warned": "⚠️", "skipped": "⏭️"}
_HEADS = {"spec": "Spec", "stage": "Stages", "gate": "Gates", "expectation": "Contract", "checkpoint": "Checkpoints"}


def summary(report: CiReport, notes: Sequence[str] = (), most_bytes: int = MOST_BYTES) -> str:
    """The page: verdict first, then metrics, then the cases of each kind, those that failed first.

    Args:
        notes: sentences for the reader of this job.
        most_bytes: size that the page must not exceed in UTF-8.
    """
    mark = "❌" if report.exit_code not in (0, 9) else "⏳" if report.exit_code else "✅"
    lines = [f"## {mark} {as_text(report.pipeline)}: {as_text(report.verdict.replace('_', ' '))}", ""]
    lines += [as_text(report.sentence), *(f"\n> {as_text(note)}" for note in notes), ""]
    lines += _facts(report)
    for kind, head in _HEADS.items():
        if cases := [case for case in report.cases if case.kind == kind]:
            lines += ["", f"### {head}", "", *_table(cases)]
    return cut("\n".join(lines) + "\n", most_bytes)


def cut(page: str, most_bytes: int) -> str:
    """The page, cut at the end of a line and with a sentence that says so if it is too large; "" if nothing fits."""
    content = page.encode()
    if len(content) <= most_bytes:
        return page
    room = most_bytes - len(_CUT.encode())
    if room <= 0:
        return ""
    kept = content[:room].rpartition(b"\n")[0]
    return kept.decode() + _CUT


def _facts(report: CiReport) -> list[str]:
    rows = [("Run", as_code(report.run_id))] if report.run_id else []
    if report.version:
        rows.append(("Model", as_text(report.version)))
    if report.commit:
        rows.append(("Commit", as_code(report.commit[:12] + (" with changes" if report.dirty else ""))))
    rows += [(as_text(name), f"{value:.4f}") for name, value in report.metrics.items()]
    if report.run_id:
        rows += [("Cost", as_text(cost_sentence(report.cost)))]
        rows += [("More", as_code(f"trainwright show {report.run_id}"))]
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)] if rows else []


def _table(cases: Sequence[CiCase]) -> list[str]:
    ordered = sorted(cases, key=lambda case: ("failed", "warned", "skipped", "passed").index(case.status))
    lines = ["| | | |", "|---|---|---|"]
    for case in cases if cases[0].kind == "stage" else ordered:
        seconds = "" if case.seconds is None else f" ({case.seconds:.1f} s)"
        lines.append(f"| {_MARKS[case.status]} | {as_text(case.name)}{seconds} | {as_text(case.sentence)} |")
    return lines
