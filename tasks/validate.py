"""validate: does the raw data keep its contract? Great Expectations decides, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from data_contracts.canonical import reuse_key
from data_contracts.errors import ContractRejected
from data_contracts.handoffs import ContractReport, Failure, SourceFile
from data_contracts.spec import SourceSpec
from data_contracts.suites import SEVERITIES, suite_digest
from infra.handoffs import put_handoff, read_handoff
from infra.sources import read_batches
from tasks.run import Run
from tasks.stage import Done, stage

VERSION = 1
SHOWN = 5


def contract_key(run: Run) -> str:
    """Reuse key of the contract report: the suite, what it fails on, what is masked, the window and the raw bytes."""
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
    return reuse_key("validate", VERSION, settings, raw_inputs(run.resolved.files), None)


@stage("validate")
def validate(run: Run) -> Done[ContractReport | None]:
    """Check the raw data against its contract.

    Returns:
        The report; None with `data: external`.

    Raises:
        ContractRejected: a failure has a severity that `contract.fail_on` names; the report is kept all the same.
    """
    if run.external:
        return Done(None, "skipped", "data is external: the user's data module reads it")
    store, key = run.store, contract_key(run)
    found = store.newest("contracts", key)
    report = _check(run, key) if found is None else read_handoff(store, found, ContractReport)
    if not report.accepted:
        assert run.spec.contract is not None
        raise ContractRejected(rejection(report, run.spec.contract.fail_on), details=report.to_json())
    plural = "" if report.expectations == 1 else "s"
    sentence = f"{report.rows:,} rows keep {report.expectations} expectation{plural}"
    if report.failures:
        kept = report.expectations - len(report.failures)
        sentence = f"{report.rows:,} rows keep {kept} of {report.expectations} expectations; {_listed(report.failures)}"
    return Done(report, "reused" if found else "ran", sentence, report.ref, found.uri if found else None)


def rejection(report: ContractReport, fail_on: str) -> str:
    """One sentence that says what broke, where and in how many rows; what did not count after what did."""
    if not report.failures:
        return "The contract rejects the data: no expectation was checked."
    bar = SEVERITIES.index(fail_on)
    grave = [failure for failure in report.failures if SEVERITIES.index(failure.severity) >= bar]
    mild = report.failures[len(grave) :]  # the gravest stand first
    milder = f" Milder than fail_on: {_listed(mild)}." if mild else ""
    return f"The contract rejects the data: {_listed(grave)}.{milder}"


def _listed(failures: list[Failure]) -> str:
    more = len(failures) - SHOWN
    return "; ".join(map(_finding, failures[:SHOWN])) + (f"; and {more} more" if more > 0 else "")


def _finding(failure: Failure) -> str:
    """A failure's sentence, with the first values that broke it where they may be shown."""
    # That a missing value is missing shows nothing.
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
    """How each source is read, of what decides its rows."""
    return [{"pattern": one.pattern, "columns": one.columns} for one in sources]


def raw_inputs(files: Iterable[SourceFile]) -> list[dict[str, object]]:
    """Raw files by what they are, not by where they lie; columns taken from paths count."""
    return [
        {"blake3": file.blake3, "format": file.format, "columns": file.columns, "source": file.source} for file in files
    ]


def _check(run: Run, key: str) -> ContractReport:
    spec, told = run.spec, run.resolved
    assert spec.contract is not None
    assert not isinstance(spec.data, str)
    assert told.suite is not None

    from data_contracts.engine import check  # four seconds to import: only when there is something to check

    sources = spec.data.source

    def read(columns: list[str] | None) -> Iterable[pa.RecordBatch]:
        return read_batches(told.files, sources, columns=columns, **run.reading_options())

    outcome = check(told.suite, read, fail_on=spec.contract.fail_on, sensitive=spec.data.sensitive)
    failures: list[Failure] = list(outcome.failures)
    fields = {
        "schema_version": 1,
        "key": key,
        "accepted": outcome.accepted,
        "rows": outcome.rows,
        "expectations": outcome.expectations,
        "failures": [failure.to_json() for failure in failures],
        "suite_digest": suite_digest(told.suite),
    }
    writer = run.store.writer(run.store.next_attempt("contracts", key))
    put_handoff(writer, fields)
    settings = {
        "suite": told.suite,
        "fail_on": spec.contract.fail_on,
        "files": [file.blake3 for file in told.files],
    }
    provenance = {**run.provenance(), **run.raw_provenance(told.files, sources)}
    ref = writer.seal("contract", settings, provenance)
    return read_handoff(run.store, ref, ContractReport)
