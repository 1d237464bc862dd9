"""The part of a page about a contract: each expectation with what was observed, and rows that broke it.

Rows are named by their file and their number in it. Nothing of a sensitive column is shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from data_contracts.contract.sentences import sentence
from data_contracts.contract.suites import suite_digest
from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import ContractReport, Failure
from data_contracts.profile.record import ColumnProfile, Profile
from infra.handoffs import read_handoff
from infra.orchestrator.artifacts import as_code, as_text
from infra.profiles import read_profile
from infra.quarantine import FILE as QUARANTINE
from tasks.run.run import Run
from tasks.stages.drift_pages import drift_section
from tasks.stages.validate import contract_key

_HEAD = ("Expectation", "Severity", "Result", "Observed")
_COLUMNS = ("column", "column_A", "column_B")
# An expectation as a failure names it: its type and its columns.
Name = tuple[str, str | None]


def data_section(run: Run) -> list[str]:
    """What a run's own contract report says of its data, with the drift; nothing if there is no report."""
    try:
        key = contract_key(run)
        ref = None if key is None else run.store.newest("contracts", key)
        report = None if ref is None else read_handoff(run.store, ref, ContractReport)
    except TrainwrightError:  # what ended the run is on the page already
        return []
    return [] if report is None else ["", "## Data", "", *contract_section(run, report)]


def contract_section(run: Run, report: ContractReport) -> list[str]:
    """Lines of Markdown about a contract report: expectations, rows that broke them, rows set aside, drift."""
    suite = _suite(run, report)
    failures = [*report.failures, *(report.quarantine.broken if report.quarantine is not None else [])]
    lines = [] if suite is None else _table(suite, report, failures, _profile(run, report), _sensitive(run))
    return [*lines, *failure_lines(report.failures), *_set_aside(report), *drift_section(report.drift)]


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Each failure's sentence, and the first rows that broke it."""
    lines = []
    for failure in failures:
        lines.append(f"- **{failure.severity}** {as_text(failure.sentence)}")
        if failure.row_numbers:
            lines.append(f"  - {', '.join(_rows(failure))}")
    return lines


def _rows(failure: Failure) -> list[str]:
    """The first rows that broke an expectation, each with its value."""
    if len(failure.places) == len(failure.row_numbers):
        rows = [f"row {one.row} of {as_code(one.file)}" for one in failure.places]
    else:  # a report of an earlier version
        rows = [f"row {number}" for number in failure.row_numbers]
    return [f"{row}: {as_code(value)}" for row, value in zip(rows, failure.values, strict=False)]


def _suite(run: Run, report: ContractReport) -> dict[str, Any] | None:
    """The suite that a report is about: that of the data, of the features or of an evaluation set."""
    resolved = run.resolved
    suites = [resolved.suite, resolved.features, *resolved.set_suites.values()]
    return next((one for one in suites if one is not None and suite_digest(one) == report.suite_digest), None)


def _sensitive(run: Run) -> list[str]:
    return [] if isinstance(run.spec.data, str) else list(run.spec.data.sensitive)


def _profile(run: Run, report: ContractReport) -> Profile | None:
    """The profile of the rows that were checked; None if it has other rows, too, or cannot be read."""
    if report.ref is None or (report.quarantine is not None and report.quarantine.rows):
        return None
    try:
        return read_profile(run.store, report.ref)
    except TrainwrightError:
        return None


def _table(
    suite: Mapping[str, Any],
    report: ContractReport,
    failures: Sequence[Failure],
    profile: Profile | None,
    sensitive: Sequence[str],
) -> list[str]:
    broken: dict[Name, list[Failure]] = defaultdict(list)
    for failure in failures:
        broken[failure.expectation, failure.column].append(failure)
    broken_of = {name: len(found) for name, found in broken.items()}
    often = Counter(_name(entry) for entry in suite["expectations"])
    lines = [f"| {' | '.join(_HEAD)} |", "|---" * len(_HEAD) + "|"]
    for entry in suite["expectations"]:
        name = _name(entry)
        found = broken[name]
        columns = _columns(entry["kwargs"])
        masked = bool(set(columns) & set(sensitive)) or (bool(sensitive) and "row_condition" in entry["kwargs"])
        text = f"{entry['type']} on {', '.join(columns)}" if masked else sentence(entry).removesuffix(".")
        observed = _observed(entry, profile) if not found and not masked else ""
        if 0 < broken_of.get(name, 0) < often[name]:  # a failure does not say which of them it is about
            result = f"{broken_of[name]} of {often[name]} on this column are broken"
        elif found:
            failure = found.pop(0) if often[name] > 1 else found[0]
            result = f"broken by {failure.rows:,} rows" if failure.rows else "broken"
            observed = failure.observed
        else:
            result = "holds"
        lines.append(f"| {' | '.join(as_text(cell) for cell in (text, entry['severity'], result, observed))} |")
    return [*lines, ""]


def _name(entry: Mapping[str, Any]) -> Name:
    return entry["type"], ", ".join(_columns(entry["kwargs"])) or None


def _columns(kwargs: Mapping[str, Any]) -> list[str]:
    """The columns that an expectation is about, in the order in which its failure names them."""
    listed = kwargs.get("column_list") or []
    return [*(kwargs[key] for key in _COLUMNS if key in kwargs), *(listed if isinstance(listed, list) else [])]


def _observed(entry: Mapping[str, Any], profile: Profile | None) -> str:
    """What the profile says of what an expectation that holds is about; "" if it says nothing."""
    kind, kwargs = entry["type"].removeprefix("expect_"), entry["kwargs"]
    if profile is None or kwargs.get("row_condition"):
        return ""
    if kind.startswith("table_row_count"):
        return f"{profile.rows:,} rows"
    column = profile.column(str(kwargs.get("column", "")))
    return "" if column is None or not column.values else _of_column(kind, column)


def _of_column(kind: str, column: ColumnProfile) -> str:
    if kind in ("column_values_to_not_be_null", "column_values_to_be_null"):
        return f"{column.nulls:,} of {column.rows:,} missing"
    if kind in ("column_values_to_be_unique", "column_unique_value_count_to_be_between", "column_values_to_be_in_set"):
        about = "" if column.distinct_exact else "about "
        return "" if column.distinct is None else f"{about}{column.distinct:,} different values"
    if column.kind == "number" and kind in (
        "column_values_to_be_between",
        "column_min_to_be_between",
        "column_max_to_be_between",
    ):
        return "" if column.minimum is None else f"{column.minimum:g} to {column.maximum:g}"
    if column.kind == "number" and kind == "column_mean_to_be_between" and not column.infinite:
        return "" if column.mean is None else f"{column.mean:g}"
    if column.kind == "text" and kind.startswith("column_value_lengths"):
        return "" if column.minimum is None else f"lengths {column.minimum:g} to {column.maximum:g}"
    return ""


def _set_aside(report: ContractReport) -> list[str]:
    aside = report.quarantine
    if aside is None or report.ref is None or not aside.rows:
        return []
    place = as_code(f"{report.ref.uri}/{QUARANTINE}")
    return ["", f"Set aside: {aside.rows:,} of {report.rows:,} rows, in {place}.", "", *failure_lines(aside.broken)]
