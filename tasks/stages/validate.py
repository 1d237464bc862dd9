"""validate: checks whether the raw data keeps its contract, a Great Expectations suite."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_contracts.canonical import reuse_key
from data_contracts.contract.suites import SEVERITIES, suite_digest
from data_contracts.contract.translation import reason
from data_contracts.errors import ContractRejected
from data_contracts.handoffs import ContractReport, Failure, SourceFile
from data_contracts.messages.raw_data import CONTRACT, ContractOutcome, ContractRequest
from data_contracts.run_report import StageStatus
from infra import contract_worker, scratch
from infra.handoffs import put_handoff, read_handoff
from infra.quarantine import FILE
from tasks.run.run import Run
from tasks.run.spec_check import set_contract_field, suite_called
from tasks.stages.placement import run_here
from tasks.stages.raw_rows import raw_inputs, ways
from tasks.stages.set_contracts import set_key, set_report, set_requests
from tasks.stages.stage import Done, Stage

VERSION = 1
SHOWN = 5
# Local files up to this size are checked within seconds.
IN_PROCESS_BYTES = 64 * 2**20


def contract_key(run: Run) -> str | None:
    """Reuse key of the contract report: the suite, what it fails on, what is masked, the window and the raw bytes."""
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
    }
    if spec.contract.quarantine is not None:
        settings["quarantine"] = spec.contract.quarantine.model_dump(mode="json")
    return reuse_key("validate", VERSION, settings, raw_inputs(run.resolved.files), None)


def find_report(run: Run, key: str) -> Done[ContractReport | None] | None:
    """The contract report under this key, accepted or not."""
    found = _own_report(run, key)
    return None if found is None else _with_sets(run, found, make=False)


def make_report(run: Run, key: str) -> Done[ContractReport | None]:
    """Check the raw data against its contract, and evaluation sets against theirs; a rejection is kept, too."""
    own = _own_report(run, key) or _judged(run, checked(run, key, _request(run)), "ran")
    return _with_sets(run, own, make=True)


def _own_report(run: Run, key: str) -> Done[ContractReport | None] | None:
    ref = run.store.newest("contracts", key)
    return None if ref is None else _judged(run, read_handoff(run.store, ref, ContractReport), "reused")


def _with_sets(run: Run, own: Done[ContractReport | None], *, make: bool) -> Done[ContractReport | None]:
    """The stage's answer after the evaluation sets' own rows were checked, too, or the first that is not."""
    if own.error is not None:
        return own
    for name, request in set_requests(run).items():
        place, report = f"evaluate.sets.{name}", set_report(run, request)
        if report is None:
            if not make:
                return replace(own, lacks=f"the rows of {place} are not checked yet")
            with suite_called(set_contract_field(name)):
                report = checked(run, set_key(request), request)
            own = replace(own, status="ran", reused_from=None)
        assert report.ref is not None
        sentence = f"{place}: {accepted(report) if report.accepted else rejection(report, request.fail_on)}"
        own = replace(own, sentence=f"{own.sentence}; {sentence}")
        if not report.accepted:
            error = ContractRejected(sentence, details=report.to_json())
            return replace(own, sentence=sentence, in_plan=f"{report.ref.uri}: {sentence}", error=error)
    return own


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
        error = ContractRejected(sentence, remedy=remedy, details=report.to_json())
        in_plan = f"{report.ref.uri}: {sentence}"
        return Done(report, status, sentence, report.ref, reused_from, in_plan=in_plan, error=error)
    return Done(report, status, accepted(report), report.ref, reused_from)


def accepted(report: ContractReport) -> str:
    """One sentence about data that the contract accepts, with the rows that were set aside."""
    aside = report.quarantine
    rows = f"{report.rows:,}" if aside is None else f"{report.rows - aside.rows:,} of {report.rows:,}"
    plural = "" if report.expectations == 1 else "s"
    sentence = f"{rows} rows meet {report.expectations} expectation{plural}"
    if report.failures:
        kept = report.expectations - len(report.failures)
        sentence = f"{rows} rows meet {kept} of {report.expectations} expectations; {_listed(report.failures)}"
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
    if not report.failures:
        return "The contract rejects the data: no expectation was checked."
    bar = SEVERITIES.index(fail_on)
    grave = [failure for failure in report.failures if SEVERITIES.index(failure.severity) >= bar]
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
    return {**window, "sources": ways(spec.data.source)}


def needs_child(files: Iterable[SourceFile]) -> bool:
    """Whether the check may hang or take long: it then runs in a process that can be ended. Starting one costs time."""
    known = list(files)
    return sum(file.bytes for file in known) > IN_PROCESS_BYTES or any("://" in file.uri for file in known)


def _request(run: Run) -> ContractRequest:
    spec, resolved = run.spec, run.resolved
    assert spec.contract is not None
    assert not isinstance(spec.data, str)
    assert resolved.suite is not None
    return ContractRequest(
        suite=resolved.suite,
        files=resolved.files,
        sources=spec.data.source,
        root=resolved.root,
        window=resolved.window,
        window_column=spec.data.window.column if spec.data.window else None,
        fail_on=spec.contract.fail_on,
        sensitive=spec.data.sensitive,
        quarantine=spec.contract.quarantine,
    )


def checked(run: Run, key: str, request: ContractRequest, provenance: dict[str, Any] | None = None) -> ContractReport:
    """The sealed report of a check; its provenance names the raw files, unless another is given."""
    if provenance is None:
        provenance = {**run.provenance(), **run.raw_provenance(request.files, request.sources)}
    if request.quarantine is None:
        return _sealed(run, key, request, _outcome(run, request), provenance)
    with scratch.make("quarantine") as folder:
        request = request.model_copy(update={"folder": str(folder.path)})
        return _sealed(run, key, request, _outcome(run, request), provenance)


def _outcome(run: Run, request: ContractRequest) -> ContractOutcome:
    if run.withholds or needs_child(request.files):
        return run_here(run, CONTRACT, request)
    return contract_worker.main(request, lambda report: None)


def _sealed(
    run: Run, key: str, request: ContractRequest, outcome: ContractOutcome, provenance: dict[str, Any]
) -> ContractReport:
    """The report of an outcome, stored with the rows that were set aside."""
    found = outcome.model_dump(mode="json", exclude={"schema_version"})
    fields = {"schema_version": 1, "key": key, **found, "suite_digest": suite_digest(request.suite)}
    settings = {
        "suite": request.suite,
        "fail_on": request.fail_on,
        "files": [file.blake3 for file in request.files],
    }
    # Another version of pyarrow may write other bytes than a killed run did.
    writer = run.store.writer(run.store.next_attempt("contracts", key), afresh=True)
    put_handoff(writer, fields)
    if request.quarantine is not None:
        settings["quarantine"] = request.quarantine.model_dump(mode="json")
        if outcome.quarantine is not None and outcome.quarantine.rows:
            assert request.folder is not None
            writer.put(FILE, Path(request.folder) / FILE, private=True)
    ref = writer.seal("contract", settings, provenance)
    return read_handoff(run.store, ref, ContractReport)
