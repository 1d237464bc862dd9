"""validate: checks whether the raw data keeps its contract, a Great Expectations suite."""

from __future__ import annotations

from collections.abc import Iterable

from data_contracts.canonical import reuse_key
from data_contracts.contract.suites import SEVERITIES, suite_digest
from data_contracts.contract.translation import reason
from data_contracts.drift_report import DriftReport
from data_contracts.errors import ContractRejected
from data_contracts.handoffs import ContractReport, Failure, SourceFile
from data_contracts.messages.raw_data import CONTRACT, ContractOutcome, ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.run_report import StageStatus
from infra import contract_worker
from infra.handoffs import put_handoff, read_handoff
from infra.profiles import put_profile, read_profile
from tasks.run.run import Run
from tasks.stages import arrival_check, drift_check
from tasks.stages.placement import run_here
from tasks.stages.stage import Done, Stage

VERSION = 1
SHOWN = 5
DRIFTED = "Correct the data; if it is right, train on it with --set contract.drift.fail_on=never."
LATE = "Wait for the data, or correct contract.arrival."
# Local files up to this size are checked within seconds.
IN_PROCESS_BYTES = 64 * 2**20


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
        "suite": suite_digest(run.resolved.suite),
        "fail_on": spec.contract.fail_on,
        "sensitive": sorted(spec.data.sensitive),
        **reading(run),
        **(drift_check.keyed(run) if drift else {}),
    }
    return reuse_key("validate", VERSION, settings, raw_inputs(run.resolved.files), None)


def find_report(run: Run, key: str) -> Done[ContractReport | None] | None:
    """The contract report under this key, accepted or not."""
    ref = run.store.newest("contracts", key)
    return None if ref is None else _judged(run, read_handoff(run.store, ref, ContractReport), "reused")


def make_report(run: Run, key: str) -> Done[ContractReport | None]:
    """Check the raw data against its contract; a report that rejects the data is kept too."""
    return _judged(run, _check(run, key), "ran")


def slower(run: Run) -> str:
    """Which expectations Great Expectations decides, whatever the types of their columns are, and why; for a plan."""
    entries = run.resolved.suite["expectations"] if run.resolved.suite is not None else []
    reasons = [(asked["type"], asked["kwargs"].get("column"), why) for asked in entries if (why := reason(asked))]
    named = [f"{name}{f' on {column}' if column else ''} ({why})" for name, column, why in reasons]
    more = f", and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    count = f"{len(named)} of {len(entries)} expectations run on Great Expectations: "
    return f"{count}{', '.join(named[:SHOWN])}{more}" if named else ""


validate = Stage(
    "validate",
    sections=("data", "contract"),
    takes=(),
    key=contract_key,
    find=find_report,
    make=make_report,
    missing="there is no accepted contract report for this data and suite",
    remark=slower,
)


def _judged(run: Run, report: ContractReport, status: StageStatus) -> Done[ContractReport | None]:
    """The stage's answer from a report; with ContractRejected if a failure has a severity in `contract.fail_on`."""
    assert run.spec.contract is not None
    assert report.ref is not None
    reused_from = report.ref.uri if status == "reused" else None
    if not report.accepted:
        empty = _empty_window(run, report)
        sentence = empty or rejection(report, run.spec.contract.fail_on)
        remedy = "Check --window and data.window.column." if empty else None
        if not report.failures and report.drift is not None:
            remedy = DRIFTED
        error = ContractRejected(sentence, remedy=remedy, details=report.to_json())
        in_plan = f"{report.ref.uri}: {sentence}"
        return Done(report, status, sentence, report.ref, reused_from, in_plan=in_plan, error=error)
    arrival = arrival_check.arrival_failures(run, report, contract_key)
    if any(SEVERITIES.index(one.severity) >= SEVERITIES.index(run.spec.contract.fail_on) for one in arrival):
        sentence = f"The contract rejects the data: {_listed(arrival)}."
        judged = report.model_copy(update={"accepted": False, "failures": [*arrival, *report.failures]})
        error = ContractRejected(sentence, remedy=LATE, details=judged.to_json())
        in_plan = f"{report.ref.uri}: {sentence}"
        return Done(report, status, sentence, report.ref, reused_from, in_plan=in_plan, error=error)
    plural = "" if report.expectations == 1 else "s"
    sentence = f"{report.rows:,} rows meet {report.expectations} expectation{plural}"
    if report.failures:
        kept = report.expectations - len(report.failures)
        sentence = f"{report.rows:,} rows meet {kept} of {report.expectations} expectations; {_listed(report.failures)}"
    more = [*([report.drift.sentence] if report.drift else []), *([_listed(arrival)] if arrival else [])]
    sentence = "; ".join([sentence, *more])
    return Done(report, status, sentence, report.ref, reused_from)


def _empty_window(run: Run, report: ContractReport) -> str:
    """The sentence about a window, by a column, that no row is in; "" if there is none or it has rows."""
    window, data = run.resolved.window, run.spec.data
    by_column = not isinstance(data, str) and data.window is not None and data.window.column is not None
    if window is None or not by_column or [one.expectation for one in report.failures] != ["rows"]:
        return ""
    return f"The contract rejects the data: no row is in the window {'..'.join(window)}."


def rejection(report: ContractReport, fail_on: str) -> str:
    """One sentence that says what broke, where and in how many rows; the failures that rejected the data come first."""
    bar = SEVERITIES.index(fail_on)
    grave = [failure for failure in report.failures if SEVERITIES.index(failure.severity) >= bar]
    if not grave and report.drift is not None:
        milder = f" Milder than fail_on: {_listed(report.failures)}." if report.failures else ""
        return f"The contract rejects the data: {report.drift.sentence}.{milder}"
    if not report.failures:
        return "The contract rejects the data: no expectation was checked."
    mild = report.failures[len(grave) :]  # the gravest come first
    milder = f" Milder than fail_on: {_listed(mild)}." if mild else ""
    return f"The contract rejects the data: {_listed(grave)}.{milder}"


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
    return {**window, "sources": ways(spec.data.source)}


def ways(sources: Iterable[SourceSpec]) -> list[dict[str, object]]:
    """How each source is read: the settings that decide its rows."""
    return [{"pattern": one.pattern, "columns": one.columns} for one in sources]


def raw_inputs(files: Iterable[SourceFile]) -> list[dict[str, object]]:
    """Raw files by their content, not by their place; columns taken from paths count."""
    return [
        {"blake3": file.blake3, "format": file.format, "columns": file.columns, "source": file.source} for file in files
    ]


def needs_child(files: Iterable[SourceFile]) -> bool:
    """Whether the check may hang or take long: it then runs in a process that can be ended. Starting one costs time."""
    known = list(files)
    return sum(file.bytes for file in known) > IN_PROCESS_BYTES or any("://" in file.uri for file in known)


def _check(run: Run, key: str) -> ContractReport:
    """Check the data, and compare it if asked: for that, the report without the comparison is reused, or made first."""
    plain = contract_key(run, drift=False)
    if plain is None or plain == key:
        return _sealed(run, key, _outcome(run))
    outcome = _checked_before(run, plain)
    if outcome is None:
        outcome = _outcome(run)
        _sealed(run, plain, outcome)
    return _sealed(run, key, outcome, drift_check.drift_of(run, outcome.profile))


def _outcome(run: Run) -> ContractOutcome:
    spec, resolved = run.spec, run.resolved
    assert spec.contract is not None
    assert not isinstance(spec.data, str)
    assert resolved.suite is not None
    request = ContractRequest(
        suite=resolved.suite,
        files=resolved.files,
        sources=spec.data.source,
        root=resolved.root,
        window=resolved.window,
        window_column=spec.data.window.column if spec.data.window else None,
        fail_on=spec.contract.fail_on,
        sensitive=spec.data.sensitive,
    )
    if run.withholds or needs_child(resolved.files):
        return run_here(run, CONTRACT, request)
    return contract_worker.main(request, lambda report: None)


def _checked_before(run: Run, key: str) -> ContractOutcome | None:
    """The outcome of a sealed report that has a profile; None if there is none."""
    ref = run.store.newest("contracts", key)
    if ref is None or (profile := read_profile(run.store, ref)) is None:
        return None
    report = read_handoff(run.store, ref, ContractReport)
    found = {name: getattr(report, name) for name in ("accepted", "rows", "expectations", "failures")}
    return ContractOutcome(**found, profile=profile)


def _sealed(run: Run, key: str, outcome: ContractOutcome, drift: DriftReport | None = None) -> ContractReport:
    spec, resolved = run.spec, run.resolved
    assert spec.contract is not None
    assert not isinstance(spec.data, str)
    assert resolved.suite is not None
    found = outcome.model_dump(mode="json", exclude={"schema_version", "profile"})
    found["accepted"] = outcome.accepted and not drift_check.rejects(run, drift)
    fields = {"schema_version": 1, "key": key, **found, "suite_digest": suite_digest(resolved.suite)}
    writer = run.store.writer(run.store.next_attempt("contracts", key))
    put_handoff(writer, fields if drift is None else {**fields, "drift": drift.to_json()})
    if outcome.profile is not None:
        put_profile(writer, outcome.profile)
    settings = {
        "suite": resolved.suite,
        "fail_on": spec.contract.fail_on,
        "files": [file.blake3 for file in resolved.files],
    }
    provenance = {**run.provenance(), **run.raw_provenance(resolved.files, spec.data.source)}
    ref = writer.seal("contract", settings, provenance)
    return read_handoff(run.store, ref, ContractReport)
