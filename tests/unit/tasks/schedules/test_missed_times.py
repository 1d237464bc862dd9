"""Which times of a schedule have a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.executions import ScheduledTime
from data_contracts.run_report import RunReport
from infra.store import Store, layout, open_store
from tasks.run.resolve import scheduled_key
from tasks.schedules import MissedTimes, windows_of

AT = datetime(2026, 11, 25, 3, tzinfo=UTC)
DEPLOYMENT = "0f0e0d0c-0b0a-4908-8706-050403020100"


def report(verdict: Any) -> dict[str, Any]:
    return RunReport(run_id="r1", pipeline="tiny", verdict=verdict, exit_code=0, sentence="", stages=[]).to_json()


def note(store: Store, key: str) -> None:
    store.create_json(layout.scheduled("tiny", key), ScheduledTime(key=key, run_id="r1", at="").to_json())


@pytest.mark.parametrize(
    ("noted", "kept", "ended", "verdict"),
    [
        (False, False, None, None),
        ("time", False, None, "deleted"),
        ("time", True, None, None),
        ("time", True, ("report", "promoted"), "promoted"),
        ("time", True, ("attempt", "failed"), "failed"),
        ("key", True, ("report", "promoted"), "promoted"),
        ("key", True, None, None),
    ],
    ids=["no run", "deleted by gc", "never ended", "ended", "failed", "of an earlier version", "not ended, earlier"],
)
def test_a_time_is_missed_if_no_run_of_it_has_ended(
    tmp_path: Path, noted: Any, kept: bool, ended: tuple[str, str] | None, verdict: str | None
) -> None:
    store = open_store(str(tmp_path / "store"))
    [window] = windows_of([AT], "1d", "retrain/tiny")
    missed = MissedTimes(store, "tiny", DEPLOYMENT, [window])
    if noted == "time":
        note(store, missed.key(window))
    elif noted:
        store.create_json(layout.trigger(missed.key(window)), {"schema_version": 1, "run_id": "r1"})
    if kept:
        store.create_json(layout.resolved("r1"), {})
    if ended is not None:
        path = layout.report("r1") if ended[0] == "report" else layout.run_attempt("r1", 0)
        store.create_json(path, report(ended[1]))
    found = missed.ended(window)
    assert (None if found is None else found.verdict) == verdict


def test_another_deployment_of_the_pipeline_has_times_of_its_own(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    [window] = windows_of([AT], "1d", "retrain/tiny")
    mine, other = (MissedTimes(store, "tiny", name, [window]) for name in (DEPLOYMENT, "another"))
    note(store, mine.key(window))
    assert (mine.ended(window) is None, other.ended(window) is None) == (False, True)


def test_the_key_is_that_of_the_schedule_whatever_the_zone() -> None:
    key = f"schedule:{DEPLOYMENT}:2026-11-25 03:00:00+00:00"
    berlin = AT.astimezone(timezone(timedelta(hours=1)))
    [window] = windows_of([berlin], "12h", "retrain/tiny")
    assert scheduled_key(DEPLOYMENT, AT) == scheduled_key(DEPLOYMENT, berlin) == key
    assert (window.start, window.end) == (AT - timedelta(hours=12), AT)


@pytest.mark.parametrize("length", [None, "", "2026-01-01..2026-01-02"])
def test_runs_without_a_window_of_their_own_cannot_be_caught_up(length: str | None) -> None:
    with pytest.raises(UsageError, match="each missed run would read the same data"):
        windows_of([AT], length, "retrain/tiny")
