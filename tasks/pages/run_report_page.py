"""The page of a run: its verdict first, then why, then everything that led to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from data_contracts.run_report import RunReport
from infra.store import layout
from tasks.pages.charges_section import charges_section
from tasks.pages.facts import Facts, gather
from tasks.pages.html import NOTHING, Markup, join, page, section, table, tag
from tasks.pages.html import facts as pairs
from tasks.pages.mirrors_section import mirrors_section
from tasks.pages.origin_sections import cost_section, data_section, drift_part, in_time, lineage_section
from tasks.pages.quality_sections import (
    curves_section,
    gates_section,
    predictions_section,
    slices_section,
    suspects_section,
    worst_section,
)
from tasks.run.report import FINAL, num_attempts
from tasks.run.run import Run

log = logging.getLogger("trainwright")
_TONES = {
    "promoted": "good",
    "canary": "good",
    "unchanged": "good",
    "not_promoted": "warn",
    "waiting": "calm",
    "cancelled": "calm",
}
# What the page says in the place of a verdict while there is none.
UNFINISHED = "unfinished"
_SECTIONS: tuple[Callable[[Facts], Markup], ...] = (
    gates_section,
    curves_section,
    predictions_section,
    slices_section,
    worst_section,
    suspects_section,
    drift_part,
    data_section,
    lineage_section,
    cost_section,
    charges_section,
    mirrors_section,
)


def run_report_page(facts: Facts) -> str:
    """The page; a part that cannot be made says so, and the others stand."""
    title = f"{facts.run.spec.name}: {_verdict(facts)}"
    # What rejected the data is why the run ended.
    rejected = facts.report is not None and facts.report.verdict == "rejected"
    order = sorted(_SECTIONS, key=lambda part: part not in (data_section, drift_part)) if rejected else _SECTIONS
    return page(title, _head(facts), *(_made(part, facts) for part in order), _stages(facts), _foot(facts))


def keep_page(run: Run, report: RunReport, made: Mapping[str, Any]) -> RunReport:
    """Make the page of a run that has ended and keep it beside its report; returns the report.

    The run has ended: whatever is wrong with its page is a warning.

    Args:
        made: its hand-offs, by the names that `tasks.run.report.report` has.
    """
    if run.recorded:
        try:
            path = page_path(run, report)
            if not run.store.exists(path):
                run.store.create_once(path, run_report_page(gather(run, report, made)).encode())
        except Exception as error:  # the text may quote a value
            log.warning("The report of run %s has no page: %s.", run.run_id, type(error).__name__)
    return report


def page_path(run: Run, report: RunReport) -> str:
    """Where the page of a run's newest report is kept."""
    if run.store.exists(layout.report(run.run_id)):
        return layout.page(run.run_id)
    return layout.page(run.run_id, max(num_attempts(run) - 1, 0))


def _made(part: Callable[[Facts], Markup], facts: Facts) -> Markup:
    try:
        return part(facts)
    except Exception as error:  # a record of any age; the text may quote a value
        log.warning("A part of the page of run %s is missing: %s.", facts.run.run_id, type(error).__name__)
        return section(
            "Missing", tag("p", f"A part of this page could not be made ({type(error).__name__}).", kind="soft")
        )


def _verdict(facts: Facts) -> str:
    return (facts.report.verdict if facts.report is not None else UNFINISHED).replace("_", " ")


def _head(facts: Facts) -> Markup:
    """The verdict, why, what to do next, and the figures that most people look for."""
    run, report = facts.run, facts.report
    verdict = report.verdict if report is not None else UNFINISHED
    tone = _TONES.get(verdict, "calm" if report is None else "bad")
    error = (report.error if report is not None else None) or {}
    why = _why(facts, str(error.get("message") or "")) or (report.sentence if report else "The run has not ended.")
    remedy = str(error.get("remedy") or "")
    trace = str(error.get("user_traceback") or "")
    restarts = f"It recovered: the training was restarted {_times(facts.restarts)}." if facts.restarts else ""
    metrics = [(name, f"{value:.4f}") for name, value in (report.metrics if report is not None else {}).items()]
    model = report.model if report is not None else None
    version = "" if model is None or model.version is None else f"version {model.version}"
    return tag(
        "header",
        tag("p", f"{run.spec.name} · run {run.run_id}", kind="eyebrow"),
        tag("h1", _verdict(facts).capitalize()),
        tag("p", _sentence(why), kind="why"),
        tag("p", remedy, kind="next") if remedy else NOTHING,
        tag("p", restarts, kind="next") if restarts else NOTHING,
        tag("pre", trace) if trace else NOTHING,
        pairs([*metrics[:6], (f"{run.spec.model_name}@{run.spec.promote.alias}", version), ("took", _took(facts))]),
        kind=tone,
    )


def _why(facts: Facts, message: str) -> str:
    """The message; where several gates are not met, which ones: what each found stands below."""
    missed = [
        f"{one.metric} on the slice {one.slice}" if one.slice else one.metric for one in facts.gates if not one.met
    ]
    if len(missed) < 2 or ": " not in message:
        return message
    return f"{message.partition(': ')[0]}: {', '.join(dict.fromkeys(missed))}; {message.rpartition('; ')[2]}"


def _stages(facts: Facts) -> Markup:
    rows = [
        (one.name, tag("span", one.status, kind=f"tag {_tone(one.status)}"), in_time(one.seconds), one.sentence)
        for one in facts.stages
    ]
    return section("Stages", table(("stage", "status", "time", "what happened"), rows, numbers=(2,)))


def _foot(facts: Facts) -> Markup:
    run, report = facts.run, facts.report
    resolved = run.resolved
    revision = f"revision {resolved.commit}{' with changes' if resolved.dirty else ''}" if resolved.commit else ""
    ended = f"ended {_time(report.finished)}" if report is not None else ""
    tags = ", ".join(f"{name} {value}" for name, value in run.spec.tags.items())
    note = "" if report is None or report.verdict in FINAL else f"The run may continue: trainwright resume {run.run_id}"
    words = [
        f"started {_time(resolved.started)}",
        ended,
        f"by {resolved.actor} ({resolved.trigger})",
        revision,
        tags,
        note,
    ]
    return tag("footer", tag("p", join([word for word in words if word], " · ")))


def _time(stamp: str) -> str:
    return stamp.replace("T", " ").replace("+00:00", " UTC")


def _took(facts: Facts) -> str:
    return in_time(sum(one.seconds for one in facts.stages)) if facts.stages else ""


def _times(number: int) -> str:
    return "once" if number == 1 else "twice" if number == 2 else f"{number} times"


def _sentence(text: str) -> str:
    text = text.strip()
    return text + ("" if text.endswith((".", "!", "?")) else ".")


def _tone(status: str) -> str:
    return {"ran": "good", "reused": "calm", "skipped": "", "waiting": "calm", "cancelled": "calm"}.get(status, "bad")
