"""validate: checks whether the raw data meets its contract, a Great Expectations suite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from data_contracts.canonical import reuse_key
from data_contracts.contract.findings import is_grave
from data_contracts.contract.translation import reason
from data_contracts.handoffs import ContractReport, Failure
from data_contracts.run_report import StageStatus
from infra.records.handoffs import newest_handoff
from tasks.run.run import Run
from tasks.run.spec_check import DATA, set_contract_field, suite_called
from tasks.stages.contract import arrival_check, drift_check
from tasks.stages.contract.contract_check import checked, checked_and_compared, code_of, data_request, where_measured
from tasks.stages.contract.raw_rows import index_left_out, raw_inputs, reading_settings, suite_settings
from tasks.stages.contract.set_contracts import set_key, set_report, set_requests
from tasks.stages.stage import Stage, StageOutcome, rejected

VERSION = 1
SHOWN = 5
DRIFTED = "Correct the data; if it is right, train on it with --set contract.drift.fail_on=never."
LATE_REMEDY = "Wait for the data, have it delivered anew, or correct contract.arrival."


def contract_key(run: Run, *, drift: bool = True) -> str | None:
    """Reuse key of the contract report: the suite, what it fails on, what is masked, the window and the raw bytes.

    Args:
        drift: whether the comparison that `contract.drift` asks for is part of the report.
    """
    if run.external:
        return None
    spec = run.spec
    assert spec.contract is not None
    assert not isinstance(spec.data, str)
    assert run.resolved.suite is not None
    settings = {
        **suite_settings(run.resolved.suite, spec.contract.fail_on, spec.data.sensitive),
        **reading(run),
        **(drift_check.keyed(run) if drift else {}),
    }
    if spec.contract.quarantine is not None:
        settings["quarantine"] = spec.contract.quarantine.model_dump(mode="json")
    code = code_of(run, run.resolved.suite, spec.data.source)
    return reuse_key("validate", VERSION, settings, raw_inputs(run.resolved.files), code)


def find_report(run: Run, key: str) -> StageOutcome[ContractReport | None] | None:
    """The contract report under this key, accepted or not."""
    found = _own_report(run, key)
    return None if found is None else _with_sets(run, found, make=False)


def make_report(run: Run, key: str) -> StageOutcome[ContractReport | None]:
    """Check the raw data against its contract, and evaluation sets against theirs; a rejection is kept, too."""
    own = _own_report(run, key) or _judged(run, _made(run, key), "ran")
    return _with_sets(run, own, make=True)


def _made(run: Run, key: str) -> ContractReport:
    plain = contract_key(run, drift=False)
    assert plain is not None
    with suite_called(DATA, run.spec, Path(run.resolved.root)):
        return checked_and_compared(run, key, plain, data_request(run))


def _own_report(run: Run, key: str) -> StageOutcome[ContractReport | None] | None:
    report = newest_handoff(run.store, "contracts", key, ContractReport)
    return None if report is None else _judged(run, report, "reused")


def _with_sets(
    run: Run, own: StageOutcome[ContractReport | None], *, make: bool
) -> StageOutcome[ContractReport | None]:
    """The stage's answer after the evaluation sets' own rows were checked, too; the first rejection if there is one."""
    if own.error is not None:
        return own
    for name, request in set_requests(run).items():
        place, report = f"evaluate.sets.{name}", set_report(run, request)
        if report is None:
            if not make:
                return replace(own, lacks=f"the rows of {place} are not checked yet")
            with suite_called(set_contract_field(name), run.spec, Path(run.resolved.root)):
                report = checked(run, set_key(run, request), request)
            own = replace(own, status="ran", reused_from=None)
        assert report.ref is not None
        sentence = f"{place}: {accepted(report) if report.accepted else rejection(report, request.fail_on)}"
        own = replace(own, sentence=f"{own.sentence}; {sentence}")
        if not report.accepted:
            return rejected(own, sentence, report, report.ref.uri)
    return own


def slower(run: Run) -> str:
    """Which expectations Great Expectations decides, whatever the types of their columns are, and why; for a plan."""
    entries = run.resolved.suite["expectations"] if run.resolved.suite is not None else []
    reasons = [(asked["type"], asked["kwargs"].get("column"), why) for asked in entries if (why := reason(asked))]
    named = [f"{name}{f' on {column}' if column else ''} ({why})" for name, column, why in reasons]
    more = f", and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    count = f"{len(named)} of {len(entries)} expectations run on Great Expectations: "
    return f"{count}{', '.join(named[:SHOWN])}{more}" if named else ""


def how_checked(run: Run) -> str:
    """What is worth knowing about how the data will be read and checked; for a plan."""
    known = (index_left_out(run.resolved.files), slower(run), where_measured(run), named_by_folders(run))
    return "; ".join(filter(None, known))


def named_by_folders(run: Run) -> str:
    """Which columns of the raw rows folders' names give, and of which types; for a plan."""
    types = {f"{name} ({kind})": None for file in run.resolved.files for name, kind in file.column_types.items()}
    return f"columns from folders' names: {', '.join(types)}" if types else ""


validate = Stage(
    "validate",
    sections=("data", "contract"),
    takes=(),
    key=contract_key,
    find=find_report,
    make=make_report,
    missing="there is no accepted contract report for this data and suite",
    remark=how_checked,
)


def _judged(run: Run, report: ContractReport, status: StageStatus) -> StageOutcome[ContractReport | None]:
    """The stage's answer from a report; with ContractRejected if a failure has a severity in `contract.fail_on`."""
    assert run.spec.contract is not None
    assert report.ref is not None
    reused_from = report.ref.uri if status == "reused" else None
    done: StageOutcome[ContractReport | None] = StageOutcome(report, status, "", report.ref, reused_from)
    if not report.accepted:
        empty = _empty_window(run, report)
        sentence = empty or rejection(report, run.spec.contract.fail_on)
        remedy = "Check --window and data.window.column." if empty else None
        if drift_check.alone_rejects(run, report):
            remedy = DRIFTED
        return rejected(done, sentence, report, report.ref.uri, remedy)
    arrival = arrival_check.arrival_failures(run, report, contract_key)
    if any(is_grave(one, run.spec.contract.fail_on) for one in arrival):
        sentence = f"The contract rejects the data: {_listed(arrival)}."
        judged = report.model_copy(update={"accepted": False, "failures": [*arrival, *report.failures]})
        return rejected(done, sentence, judged, report.ref.uri, LATE_REMEDY)
    more = [report.drift.sentence if report.drift else "", _listed(arrival), index_left_out(run.resolved.files)]
    return replace(done, sentence="; ".join([accepted(report), *filter(None, more)]))


def accepted(report: ContractReport) -> str:
    """One sentence about data that the contract accepts, with the rows that were set aside."""
    aside = report.quarantine
    rows = f"{report.rows:,}" if aside is None else f"{report.rows - aside.rows:,} of {report.rows:,}"
    plural = "" if report.expectations == 1 else "s"
    sentence = f"{rows} rows meet {report.expectations} expectation{plural}"
    if report.failures:
        sentence = f"{rows} rows meet {report.met} of {report.expectations} expectations; {_listed(report.failures)}"
    if aside is None:
        return sentence
    plural = "" if aside.rows == 1 else "s"
    return f"{sentence}; {aside.rows:,} row{plural} set aside ({aside.rows / report.rows:.3%}): {_listed(aside.broken)}"


def _empty_window(run: Run, report: ContractReport) -> str:
    """The sentence about a window, by a column, that no row is in; "" if there is none or it has rows."""
    window, data = run.resolved.window, run.spec.data
    by_column = not isinstance(data, str) and data.window is not None and data.window.column is not None
    if window is None or not by_column or [one.expectation for one in report.failures] != ["rows"]:
        return ""
    return f"The contract rejects the data: no row is in the window {'..'.join(window)}."


def rejection(report: ContractReport, fail_on: str, what: str = "data") -> str:
    """One sentence that says what broke, where and in how many rows; the failures that rejected it come first."""
    grave = [failure for failure in report.failures if is_grave(failure, fail_on)]
    if not grave and report.drift is not None:
        milder = f" Milder than fail_on: {_listed(report.failures)}." if report.failures else ""
        return f"The contract rejects the data: {report.drift.sentence}.{milder}"
    if not report.failures:
        return "The contract rejects the data: no expectation was checked."
    mild = report.failures[len(grave) :]  # the gravest come first
    milder = f" Milder than fail_on: {_listed(mild)}." if mild else ""
    aside = f" {report.quarantine.refused}" if report.quarantine is not None else ""
    return f"The contract rejects the {what}: {_listed(grave)}.{aside}{milder}"


def _listed(failures: list[Failure]) -> str:
    more = len(failures) - SHOWN
    return "; ".join(map(_finding, failures[:SHOWN])) + (f"; and {more} more" if more > 0 else "")


def _finding(failure: Failure) -> str:
    """A failure's sentence, with the first values that broke it where they may be shown."""
    # A missing value reveals nothing, so it is not quoted.
    values = ", ".join(failure.values[:3]) if failure.expectation != "expect_column_values_to_not_be_null" else ""
    return f"{failure.sentence}, such as {values}" if values else failure.sentence


def reading(run: Run) -> dict[str, object]:
    """The settings that decide which rows the pipeline's raw files give."""
    spec = run.spec
    assert not isinstance(spec.data, str)
    column = spec.data.window.column if spec.data.window else None
    window = {"window": run.resolved.window if column else None, "window_column": column}
    schema = {} if spec.data.schema == "union" else {"schema": spec.data.schema}
    return {**window, **schema, "sources": reading_settings(spec.data.source)}
