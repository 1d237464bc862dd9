"""The part of validate that judges whether the raw data came, in time and as much as before: `contract.arrival`.

It depends on when a run is, so it is computed anew for each run, from the sealed profile and what the run resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from data_contracts.errors import UsageError
from data_contracts.handoffs import ContractReport, Failure
from data_contracts.pipeline_spec.arrival import ArrivalSpec, length_of
from infra.handoffs import read_handoff
from infra.profiles import read_profile
from tasks.run.resolve import resolved_runs
from tasks.run.run import Run

_LISTED = 5


def arrival_failures(run: Run, report: ContractReport, key_of: Callable[[Run], str | None]) -> list[Failure]:
    """What is wrong with the data's arrival; nothing without `contract.arrival`.

    Args:
        key_of: the key of a run's contract report.

    UsageError if the column is not one of times whose values are known.
    """
    asked = None if run.spec.contract is None else run.spec.contract.arrival
    if asked is None or not report.rows:
        return []
    found = [*_old(run, report, asked), *_missing_days(run, asked), *_other_volume(run, report, asked, key_of)]
    return [
        Failure(expectation=f"arrival.{name}", column=column, severity=asked.severity, rows=0, sentence=sentence)
        for name, column, sentence in found
    ]


Finding = tuple[str, str | None, str]


def _old(run: Run, report: ContractReport, asked: ArrivalSpec) -> Iterator[Finding]:
    if asked.column is None or asked.max_age is None:
        return
    assert report.ref is not None
    profile = read_profile(run.store, report.ref)
    if profile is None:  # an earlier version of Trainwright made the report
        return
    column = profile.column(asked.column)
    if column is None or column.kind != "time":
        why = "is sensitive" if column is not None and column.kind == "sensitive" else "is not a column of times"
        raise UsageError(f"contract.arrival.column: {asked.column} {why}.", remedy="Name a column of dates or times.")
    window = run.resolved.window
    by = datetime.fromisoformat(window[1] if window else run.resolved.started)
    if column.maximum is None:
        yield "max_age", asked.column, f"no row has a time in {asked.column}"
        return
    newest = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=column.maximum)
    age = by - newest
    if age > length_of(asked.max_age):
        hours = age.total_seconds() / 3600
        sentence = f"the newest {asked.column} is {newest:%Y-%m-%d %H:%M} UTC, {hours:,.1f} hours before"
        yield "max_age", asked.column, f"{sentence} {by:%Y-%m-%d %H:%M}, and max_age is {asked.max_age}"


def _missing_days(run: Run, asked: ArrivalSpec) -> Iterator[Finding]:
    window = run.resolved.window
    if asked.files is None or window is None:
        return
    start, end = map(datetime.fromisoformat, window)
    names = [file.uri for file in run.resolved.files]
    missing = []
    while start < end:
        if not any(start.strftime(asked.files) in name for name in names):
            missing.append(start.strftime("%Y-%m-%d"))
        start += timedelta(days=1)
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        days = "day has" if len(missing) == 1 else "days have"
        yield "files", None, f"{len(missing)} {days} no file ({', '.join(missing[:_LISTED])}{more})"


def _other_volume(
    run: Run, report: ContractReport, asked: ArrivalSpec, key_of: Callable[[Run], str | None]
) -> Iterator[Finding]:
    if asked.min_share is None and asked.max_share is None:
        return
    before = _rows_before(run, key_of)
    if not before:
        return
    share = report.rows / before
    less = asked.min_share is not None and share < asked.min_share
    more = asked.max_share is not None and share > asked.max_share
    if less or more:
        bound = f"min_share is {asked.min_share:g}" if less else f"max_share is {asked.max_share:g}"
        where = "the window before" if run.resolved.window else "the run before"
        yield "volume", None, f"{report.rows:,} rows are {share:.3g} times the {before:,} of {where}, and {bound}"


def _rows_before(run: Run, key_of: Callable[[Run], str | None]) -> int | None:
    """Rows of the window of the same length that ends where this one begins; without windows, of the run before."""
    window, own = run.resolved.window, key_of(run)
    wanted = None if window is None else _before(*window)
    for resolved in resolved_runs(run.store, run.spec.name):
        mine = resolved.window if resolved.window is None else tuple(map(datetime.fromisoformat, resolved.window))
        if mine != wanted or resolved.run_id == run.run_id or resolved.started > run.resolved.started:
            continue
        earlier = Run(resolved, run.store)
        key = None if earlier.spec.contract is None else key_of(earlier)
        ref = None if key is None or key == own else run.store.newest("contracts", key)
        if ref is not None:
            return read_handoff(run.store, ref, ContractReport).rows
    return None


def _before(start: str, end: str) -> tuple[datetime, datetime]:
    first, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
    return first - (last - first), first
