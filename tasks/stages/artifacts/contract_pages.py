"""The part of a page about a contract: each expectation with what was observed, and rows that broke it.

Rows are named by their file and their number in it. Nothing of a sensitive column is shown.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from data_contracts.contract.reports import Result, results_of
from data_contracts.contract.suites import suite_digest
from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import ContractReport, Failure
from data_contracts.profile.record import Profile
from infra.contract.parts import read_profile
from infra.contract.quarantine import FILE as QUARANTINE
from infra.orchestrator.artifacts import as_code, as_text
from infra.records.handoffs import newest_handoff
from infra.store.seal import passing_over
from tasks.run.run import Run
from tasks.stages.artifacts.drift_pages import drift_section
from tasks.stages.validate import contract_key

log = logging.getLogger("trainwright")

_CONTRACT_HEAD = ("Expectation", "Severity", "Result", "Observed")


def own_report(run: Run) -> ContractReport | None:
    """The report on a run's own data; None if there is none."""
    key = contract_key(run)
    return None if key is None else newest_handoff(run.store, "contracts", key, ContractReport)


def data_section(run: Run) -> list[str]:
    """The lines about a run's own contract report and the drift; none if there is no report."""
    try:
        report = own_report(run)
        return [] if report is None else ["", "## Data", "", *contract_section(run, report)]
    except TrainwrightError:  # what ended the run is on the page already
        return []
    except Exception as error:  # a page must not end a run that is promoted; the error's text may quote a value
        log.warning("The run's page has no section about its data: %s", type(error).__name__)
        return []


def contract_section(run: Run, report: ContractReport) -> list[str]:
    """Lines of Markdown about a contract report: expectations, rows that broke them, rows set aside, drift."""
    results = report_results(run, report)
    table = [] if results is None else _table(results)
    return [*table, *failure_lines(report.failures), *_set_aside(report), *drift_section(report.drift)]


def report_results(run: Run, report: ContractReport) -> list[Result] | None:
    """Each expectation of a run's report with its result; None if the report is of another suite."""
    suite = _suite(run, report)
    return None if suite is None else results_of(suite, report, _profile(run, report), _sensitive(run))


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Each failure's sentence, and the first rows that broke it."""
    lines = []
    for failure in failures:
        lines.append(f"- **{failure.severity}** {as_text(failure.sentence)}")
        if failure.row_numbers:
            lines.append(f"  - {', '.join(_failure_rows(failure))}")
    return lines


def _failure_rows(failure: Failure) -> list[str]:
    """The first rows that broke an expectation, each with its value."""
    if len(failure.places) == len(failure.row_numbers):
        rows = [f"row {one.row} of {as_code(one.file)}" for one in failure.places]
    else:  # a report of an earlier version
        rows = [f"row {number}" for number in failure.row_numbers]
    return [f"{row}: {as_code(value)}" for row, value in zip(rows, failure.values, strict=False)]


def _suite(run: Run, report: ContractReport) -> dict[str, Any] | None:
    """The suite that a report is about: that of the data, of the features, of predictions or of an evaluation set."""
    resolved = run.resolved
    suites = [resolved.suite, resolved.features, resolved.predictions, *resolved.set_suites.values()]
    return next((one for one in suites if one is not None and suite_digest(one) == report.suite_digest), None)


def _sensitive(run: Run) -> list[str]:
    return [] if isinstance(run.spec.data, str) else list(run.spec.data.sensitive)


def _profile(run: Run, report: ContractReport) -> Profile | None:
    """The profile of the rows that were checked; None if it has other rows, too, or cannot be read."""
    if report.ref is None or (report.quarantine is not None and report.quarantine.rows):
        return None
    with contextlib.suppress(TrainwrightError), passing_over():
        return read_profile(run.store, report.ref)
    return None


def _table(results: Sequence[Result]) -> list[str]:
    lines = [f"| {' | '.join(_CONTRACT_HEAD)} |", "|---" * len(_CONTRACT_HEAD) + "|"]
    for one in results:
        cells = (one.text, one.entry["severity"], one.verdict, one.observed)
        lines.append(f"| {' | '.join(as_text(cell) for cell in cells)} |")
    return [*lines, ""]


def _set_aside(report: ContractReport) -> list[str]:
    aside = report.quarantine
    if aside is None or report.ref is None or not aside.rows:
        return []
    place = as_code(f"{report.ref.uri}/{QUARANTINE}")
    return ["", f"Set aside: {aside.rows:,} of {report.rows:,} rows, in {place}.", "", *failure_lines(aside.broken)]
