"""The part of validate that judges whether the raw data came in time and in the usual volume: `contract.arrival`.

The result depends on the time of the run, so each run computes it again from the sealed profile and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from data_contracts.errors import UsageError
from data_contracts.handoffs import ContractReport, Failure
from data_contracts.messages.raw_data import LATE, LateRequest
from data_contracts.pipeline_spec.contract import ArrivalSpec, length_of
from data_contracts.profile.record import ColumnProfile
from data_contracts.quoting import columns_shown
from infra.contract.parts import read_profile
from infra.records.handoffs import newest_handoff
from infra.store import layout
from tasks.run.resolve import resolved_runs
from tasks.run.run import Run
from tasks.stages.contract.text_cuts import cut_files
from tasks.stages.placement import run_here

_LISTED = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = 3_600_000_000


def arrival_failures(run: Run, report: ContractReport, key_of: Callable[[Run], str | None]) -> list[Failure]:
    """What is wrong with the data's arrival; nothing without `contract.arrival`.

    Args:
        key_of: the key of a run's contract report.

    UsageError if the column is not one of times whose values are known.
    """
    section = None if run.spec.contract is None else run.spec.contract.arrival
    if section is None or not report.rows:
        return []
    found = [
        *_of_times(run, report, section),
        *_missing_days(run, section),
        *_other_volume(run, report, section, key_of),
    ]
    return [
        Failure(expectation=f"arrival.{name}", column=column, severity=section.severity, rows=rows, sentence=sentence)
        for name, column, rows, sentence in found
    ]


# Name, column, rows that it is about, sentence.
Finding = tuple[str, str | None, int, str]


def _of_times(run: Run, report: ContractReport, section: ArrivalSpec) -> Iterator[Finding]:
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
    yield from _old(run, column, section)
    yield from _late(run, column, section)


def _old(run: Run, column: ColumnProfile, section: ArrivalSpec) -> Iterator[Finding]:
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
        newest = f"the newest {section.column} is {_shown(int(column.maximum))}, {age / _HOUR:,.1f} hours before"
        yield "max_age", section.column, 0, f"{newest} {by:%Y-%m-%d %H:%M}, and max_age is {section.max_age}"


def _late(run: Run, column: ColumnProfile, section: ArrivalSpec) -> Iterator[Finding]:
    """Rows that belong to an earlier window than the one that was delivered."""
    window = run.resolved.window
    if section.max_late is None or window is None or column.minimum is None:
        return
    begins = _microseconds(datetime.fromisoformat(window[0]))
    if column.minimum >= begins:
        return
    # Counted in the column, since the window may begin within a bin of the profile that holds most of the rows.
    rows, late = _earlier(run, column.name, begins)
    if late > section.max_late * rows:
        share = f"{late:,} of {rows:,} rows ({late / rows:.3%})"
        then = f"the window, which begins at {_shown(begins)}, and max_late is {section.max_late:g}"
        yield "max_late", column.name, late, f"{share} have a time in {column.name} before {then}"


def _earlier(run: Run, name: str, begins: int) -> tuple[int, int]:
    """How many rows the data has, and how many of them have a time before `begins`, in microseconds since 1970."""
    assert not isinstance(run.spec.data, str)
    sources = run.spec.data.source
    files = cut_files(run, run.resolved.files, sources)
    request = LateRequest(files=files, sources=sources, root=run.resolved.root, column=name, begins=begins)
    counted = run_here(run, LATE, request, memory_share=run.memory_share)
    return counted.rows, counted.late


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _shown(microseconds: int) -> str:
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
    run: Run, report: ContractReport, section: ArrivalSpec, key_of: Callable[[Run], str | None]
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


def _rows_before(run: Run, key_of: Callable[[Run], str | None]) -> int | None:
    """Rows of the window of the same length that ends where this one begins; without windows, of the run before.

    A run whose data was rejected, be it by the suite or by how it arrived, says nothing about the usual volume.
    """
    window, own = run.resolved.window, key_of(run)
    wanted = None if window is None else _before(*window)
    for resolved in resolved_runs(run.store, run.spec.name):
        mine = resolved.window if resolved.window is None else tuple(map(datetime.fromisoformat, resolved.window))
        if mine != wanted or resolved.run_id == run.run_id or resolved.started > run.resolved.started:
            continue
        if not run.store.exists(layout.stage(resolved.run_id, "validate")):  # which a rejection does not write
            continue
        earlier = Run(resolved, run.store)
        key = None if earlier.spec.contract is None else key_of(earlier)
        if key is None or key == own:
            continue
        report = newest_handoff(run.store, "contracts", key, ContractReport)
        if report is not None:
            return report.rows
    return None


def _before(start: str, end: str) -> tuple[datetime, datetime]:
    first, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
    return first - (last - first), first
