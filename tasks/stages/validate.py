"""validate: checks whether the raw data meets its contract, a Great Expectations suite.

`contract.arrival` judges whether the raw data came in time and in the usual volume. The result depends on the time of
the run, so each run computes it again from the sealed profile and its inputs.

The other contracts of a spec follow, with what is checked and under which key:

- of evaluation sets with rows of their own;
- on the rows in the shards, after `shards.transform`. It reads the shards, not the source, and only the columns that
  the suite names; so it works for a reused dataset, too.
- on a candidate's predictions of each evaluation set. The tables that the evaluator sealed are read, so a changed suite
  scores nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from data_contracts.canonical import reuse_key
from data_contracts.contract.findings import is_grave
from data_contracts.contract.suites import suite_digest
from data_contracts.contract.translation import reason
from data_contracts.errors import ContractRejected, InsufficientEvidence, UsageError
from data_contracts.handoffs import ContractReport, Dataset, Evaluation, Failure, SourceFile
from data_contracts.messages.raw_data import LATE, ContractRequest, LateRequest
from data_contracts.pipeline_spec import SourceSpec, SuiteSpec
from data_contracts.pipeline_spec.contract import ArrivalSpec, length_of
from data_contracts.quoting import columns_shown
from data_contracts.records import ColumnProfile
from data_contracts.run_report import StageStatus
from infra.contract.file_statistics import read_profile
from infra.records.handoffs import local_dataset, newest_handoff
from infra.store import layout
from tasks.run.resolve import resolved_runs
from tasks.run.run import Run, RunInputs
from tasks.run.spec_check import DATA, PREDICTIONS, set_contract_field, suite_called
from tasks.stages.contract_check import (
    checked,
    checked_and_compared,
    code_of,
    cut_files,
    data_request,
    drift_alone_rejects,
    drift_settings,
    index_left_out,
    raw_inputs,
    reading_settings,
    suite_settings,
    where_measured,
)
from tasks.stages.placement import run_here
from tasks.stages.stage import Stage, StageOutcome, rejected

VERSION = 1
SHOWN = 5
DRIFTED = "Correct the data; if it is right, train on it with --set contract.drift.fail_on=never."
LATE_REMEDY = "Wait for the data, have it delivered anew, or correct contract.arrival."
_LISTED = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = 3_600_000_000  # microseconds
SET_VERSION = 1
FEATURES_VERSION = 1
PREDICTIONS_VERSION = 1
PREDICTIONS_FIELD = "contract.predictions"
PREDICTIONS_REMEDY = "Correct the suite: the predictions have no such column."


def contract_key(run: RunInputs, *, drift: bool = True) -> str | None:
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
        **(drift_settings(run) if drift else {}),
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


def named_by_folders(run: RunInputs) -> str:
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
        if drift_alone_rejects(run, report):
            remedy = DRIFTED
        return rejected(done, sentence, report, report.ref.uri, remedy)
    arrival = arrival_failures(run, report, contract_key)
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


def reading(run: RunInputs) -> dict[str, object]:
    """The settings that decide which rows the pipeline's raw files give."""
    spec = run.spec
    assert not isinstance(spec.data, str)
    column = spec.data.window.column if spec.data.window else None
    window = {"window": run.resolved.window if column else None, "window_column": column}
    schema = {} if spec.data.schema == "union" else {"schema": spec.data.schema}
    return {**window, **schema, "sources": reading_settings(spec.data.source)}


def arrival_failures(run: Run, report: ContractReport, key_of: Callable[[RunInputs], str | None]) -> list[Failure]:
    """What is wrong with the data's arrival; nothing without `contract.arrival`.

    Args:
        key_of: the key of a run's contract report.

    UsageError if the column is not one of times whose values are known.
    """
    section = None if run.spec.contract is None else run.spec.contract.arrival
    if section is None or not report.rows:
        return []
    found = [
        *_arrival_of_times(run, report, section),
        *_missing_days(run, section),
        *_other_volume(run, report, section, key_of),
    ]
    return [
        Failure(expectation=f"arrival.{name}", column=column, severity=section.severity, rows=rows, sentence=sentence)
        for name, column, rows, sentence in found
    ]


# Name, column, rows that it is about, sentence.
Finding = tuple[str, str | None, int, str]


def _arrival_of_times(run: Run, report: ContractReport, section: ArrivalSpec) -> Iterator[Finding]:
    """What the column of times shows."""
    if section.column is None:
        return
    assert report.ref is not None
    profile = read_profile(run.store, report.ref)
    if profile is None:  # an earlier version of Trainwright made the report
        return
    column = profile.column(section.column)
    if column is None or column.kind != "time":
        kind = "is not a column of times" if column is None or column.kind != "sensitive" else "is sensitive"
        have = columns_shown([one.name for one in profile.columns], run.withholds)
        why = f"is not in the data; it has {have}" if column is None else kind
        raise UsageError(f"contract.arrival.column: {section.column} {why}.", remedy="Name a column of dates or times.")
    yield from _stale_rows(run, column, section)
    yield from _late_rows(run, column, section)


def _stale_rows(run: Run, column: ColumnProfile, section: ArrivalSpec) -> Iterator[Finding]:
    if section.max_age is None:
        return
    if column.maximum is None:
        yield "max_age", section.column, 0, f"no row has a time in {section.column}"
        return
    window = run.resolved.window
    by = datetime.fromisoformat(window[1] if window else run.resolved.started)
    # Whole microseconds: a column may hold times that datetime cannot.
    age = _microseconds(by) - int(column.maximum)
    if age > length_of(section.max_age) // timedelta(microseconds=1):
        newest = f"the newest {section.column} is {_time_shown(int(column.maximum))}, {age / _HOUR:,.1f} hours before"
        yield "max_age", section.column, 0, f"{newest} {by:%Y-%m-%d %H:%M}, and max_age is {section.max_age}"


def _late_rows(run: Run, column: ColumnProfile, section: ArrivalSpec) -> Iterator[Finding]:
    """Rows that belong to an earlier window than the one that was delivered."""
    window = run.resolved.window
    if section.max_late is None or window is None or column.minimum is None:
        return
    begins = _microseconds(datetime.fromisoformat(window[0]))
    if column.minimum >= begins:
        return
    # Counted in the column, since the window may begin within a bin of the profile that holds most of the rows.
    rows, late = _rows_before_window(run, column.name, begins)
    if late > section.max_late * rows:
        share = f"{late:,} of {rows:,} rows ({late / rows:.3%})"
        then = f"the window, which begins at {_time_shown(begins)}, and max_late is {section.max_late:g}"
        yield "max_late", column.name, late, f"{share} have a time in {column.name} before {then}"


def _rows_before_window(run: Run, name: str, begins: int) -> tuple[int, int]:
    """How many rows the data has, and how many of them have a time before `begins`, in microseconds since 1970."""
    assert not isinstance(run.spec.data, str)
    sources = run.spec.data.source
    files = cut_files(run, run.resolved.files, sources)
    request = LateRequest(files=files, sources=sources, root=run.resolved.root, column=name, begins=begins)
    counted = run_here(run, LATE, request, memory_share=run.memory_share)
    return counted.rows, counted.late


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _time_shown(microseconds: int) -> str:
    """A time as people read it."""
    try:
        return f"{_EPOCH + timedelta(microseconds=microseconds):%Y-%m-%d %H:%M} UTC"
    except OverflowError:
        return "after the year 9999" if microseconds > 0 else "before the year 1"


def _missing_days(run: Run, section: ArrivalSpec) -> Iterator[Finding]:
    window = run.resolved.window
    if section.files is None or window is None:
        return
    start, end = map(datetime.fromisoformat, window)
    day = start.replace(hour=0, minute=0, second=0, microsecond=0)
    names = [file.uri for file in run.resolved.files]
    missing = []
    while day < end:  # a day that is in the window in part counts
        if not any(day.strftime(section.files) in name for name in names):
            missing.append(day.strftime("%Y-%m-%d"))
        day += timedelta(days=1)
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        days = "day has" if len(missing) == 1 else "days have"
        yield "files", None, 0, f"{len(missing)} {days} no file ({', '.join(missing[:_LISTED])}{more})"


def _other_volume(
    run: RunInputs, report: ContractReport, section: ArrivalSpec, key_of: Callable[[RunInputs], str | None]
) -> Iterator[Finding]:
    if section.min_share is None and section.max_share is None:
        return
    before = _rows_before(run, key_of)
    if not before:
        return
    share = report.rows / before
    less = section.min_share is not None and share < section.min_share
    more = section.max_share is not None and share > section.max_share
    if less or more:
        bound = f"min_share is {section.min_share:g}" if less else f"max_share is {section.max_share:g}"
        where = "the window before" if run.resolved.window else "the run before"
        yield "volume", None, 0, f"{report.rows:,} rows are {share:.3g} times the {before:,} of {where}, and {bound}"


def _rows_before(run: RunInputs, key_of: Callable[[RunInputs], str | None]) -> int | None:
    """Rows of the window of the same length that ends where this one begins; without windows, of the run before.

    A run whose data was rejected, be it by the suite or by how it arrived, says nothing about the usual volume.
    """
    window, own = run.resolved.window, key_of(run)
    wanted = None if window is None else _window_before(*window)
    for resolved in resolved_runs(run.store, run.spec.name):
        mine = resolved.window if resolved.window is None else tuple(map(datetime.fromisoformat, resolved.window))
        if mine != wanted or resolved.run_id == run.run_id or resolved.started > run.resolved.started:
            continue
        if not run.store.exists(layout.stage(resolved.run_id, "validate")):  # which a rejection does not write
            continue
        earlier = RunInputs(resolved, run.store)
        key = None if earlier.spec.contract is None else key_of(earlier)
        if key is None or key == own:
            continue
        report = newest_handoff(run.store, "contracts", key, ContractReport)
        if report is not None:
            return report.rows
    return None


def _window_before(start: str, end: str) -> tuple[datetime, datetime]:
    first, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
    return first - (last - first), first


def set_requests(run: Run) -> dict[str, ContractRequest]:
    """The check of each evaluation set that has rows of its own and a contract, by the set's name."""
    spec, resolved = run.spec, run.resolved
    found = {}
    for name, files in resolved.sets.items():
        one = spec.evaluate.sets[name]
        if one.contract == "none" or spec.contract is None or isinstance(spec.data, str):
            continue
        own = isinstance(one.contract, SuiteSpec)
        suite = resolved.set_suites[name] if own else resolved.suite
        assert suite is not None
        found[name] = ContractRequest(
            suite=suite,
            files=files,
            sources=one.source or [],
            root=resolved.root,
            window=None,
            window_column=None,
            fail_on=one.contract.fail_on if isinstance(one.contract, SuiteSpec) else spec.contract.fail_on,
            sensitive=spec.data.sensitive,
            may_lack_sensitive=True,
            profile=False,
        )
    return found


def set_key(run: Run, request: ContractRequest) -> str:
    """Reuse key of a set's report: the suite, what it fails on, what is masked, and the raw bytes."""
    settings = {
        **suite_settings(request.suite, request.fail_on, request.sensitive),
        "sources": reading_settings(request.sources),
        "evaluation_set": True,
    }
    code = code_of(run, request.suite, request.sources)
    return reuse_key("validate", SET_VERSION, settings, raw_inputs(request.files), code)


def set_report(run: Run, request: ContractRequest) -> ContractReport | None:
    """The report of a set's check, accepted or not; None if there is none yet."""
    return newest_handoff(run.store, "contracts", set_key(run, request), ContractReport)


def features_key(run: Run, dataset: Dataset) -> str | None:
    """Reuse key of the features' report: the suite, what it fails on, what is masked, and the dataset; None without."""
    contract, suite = run.spec.contract, run.resolved.features
    if contract is None or contract.features is None or suite is None or isinstance(run.spec.data, str):
        return None
    settings = suite_settings(suite, contract.features.fail_on, run.spec.data.sensitive)
    return reuse_key("features", FEATURES_VERSION, settings, [dataset.ref.id], code_of(run, suite))


def features_report(run: Run, key: str) -> ContractReport | None:
    """The report under this key, accepted or not; None if there is none yet."""
    return newest_handoff(run.store, "contracts", key, ContractReport)


def features_request(run: Run, dataset: Dataset, splits: list[str]) -> ContractRequest:
    """The check of a dataset's shards, split after split."""
    contract, suite = run.spec.contract, run.resolved.features
    assert contract is not None
    assert contract.features is not None
    assert suite is not None
    assert not isinstance(run.spec.data, str)
    root = local_dataset(run.store, dataset).parents[len(Path(dataset.ref.uri).parts) - 1]
    return ContractRequest(
        suite=suite,
        files=[
            SourceFile(uri=str(root / one.uri / one.path), bytes=one.bytes, blake3=one.blake3, format="parquet")
            for split in splits
            for one in dataset.splits[split]
        ],
        sources=[SourceSpec(uri=str(root))],
        root=run.resolved.root,
        window=None,
        window_column=None,
        fail_on=contract.features.fail_on,
        sensitive=run.spec.data.sensitive,
        may_lack_sensitive=True,
        profile=False,
    )


def asked_of(run: RunInputs) -> SuiteSpec | None:
    """What the spec asks of predictions; None if it asks nothing."""
    return None if run.spec.contract is None else run.spec.contract.predictions


def predictions_key(run: Run, evaluation: Evaluation, set_name: str) -> str:
    """Reuse key of a set's report: the suite, what it fails on, whether values are masked, and the evaluation."""
    asked = asked_of(run)
    assert asked is not None
    assert run.resolved.predictions is not None
    settings = {
        "suite": suite_digest(run.resolved.predictions),
        "fail_on": asked.fail_on,
        "masked": run.withholds,
        "set": set_name,
    }
    return reuse_key(
        "predictions", PREDICTIONS_VERSION, settings, [evaluation.ref.id], code_of(run, run.resolved.predictions)
    )


def predictions_report(run: Run, evaluation: Evaluation, set_name: str) -> ContractReport | None:
    """The report on a set's predictions, accepted or not; None if there is none yet."""
    return newest_handoff(run.store, "contracts", predictions_key(run, evaluation, set_name), ContractReport)


def predictions_request(run: Run, evaluation: Evaluation, set_name: str) -> ContractRequest:
    """The check of the table of a set's predictions."""
    asked, table = asked_of(run), evaluation.predictions[set_name]
    assert asked is not None
    assert run.resolved.predictions is not None
    path = run.store.local(evaluation.ref) / table.file
    [entry] = [one for one in run.store.manifest(evaluation.ref).files if one.path == table.file]
    return ContractRequest(
        suite=run.resolved.predictions,
        files=[SourceFile(uri=str(path), bytes=entry.bytes, blake3=entry.blake3, format="parquet")],
        sources=[SourceSpec(uri=str(path.parent))],
        root=run.resolved.root,
        window=None,
        window_column=None,
        fail_on=asked.fail_on,
        # A model may give back values that it was trained on, whatever its columns are called.
        sensitive=table.columns if run.withholds else [],
        may_lack_sensitive=True,
        profile=False,
    )


def with_predictions(
    run: Run, evaluation: Evaluation, done: StageOutcome[Evaluation], *, make: bool
) -> StageOutcome[Evaluation]:
    """The stage's answer after the predictions of each set were checked, if the spec asks for it."""
    asked = asked_of(run)
    for name, table in evaluation.predictions.items() if asked is not None else ():
        assert asked is not None
        place = f"{PREDICTIONS_FIELD} on evaluate.sets.{name}" if name else PREDICTIONS_FIELD
        if table.missing:
            remedy = "Let predict_step return one value or one list of values for each row, or leave the contract out."
            return replace(done, error=UsageError(f"{place}: {table.missing}.", remedy=remedy))
        report = predictions_report(run, evaluation, name)
        if report is None:
            if not make:
                return replace(done, lacks=f"the predictions are not checked against {place} yet")
            with suite_called(PREDICTIONS, run.spec, Path(run.resolved.root)):
                request = predictions_request(run, evaluation, name)
                key = predictions_key(run, evaluation, name)
                report = checked(run, key, request, run.provenance(evaluation.ref))
            done = replace(done, status="ran", reused_from=None)
        assert report.ref is not None
        if not report.accepted:
            sentence = f"{place}: {rejection(report, asked.fail_on, 'predictions')}"
            lacking = any(one.column and one.column not in table.columns for one in report.failures)
            remedy = (
                PREDICTIONS_REMEDY
                if lacking
                else f"Look at the model and at these rows in {table.file} of the evaluation."
            )
            error = ContractRejected(sentence, remedy=remedy, details=report.to_json())
            return replace(done, sentence=sentence, in_plan=f"{report.ref.uri}: {sentence}", error=error)
        done = replace(done, sentence=f"{done.sentence}; {place}: {accepted(report)}")
    return done if not evaluation.undecided else replace(done, error=undecided(evaluation))


def undecided(evaluation: Evaluation) -> InsufficientEvidence:
    """The error for an evaluation of which a metric has no value."""
    return InsufficientEvidence(evaluation.undecided, remedy="Look at the model's weights and the rows of the set.")
