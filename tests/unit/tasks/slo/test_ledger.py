"""What a store's records say of runs: ended, resumed, waiting, at work, dead, damaged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from data_contracts.executions import StageUsage
from infra.store import Store, layout
from tasks.slo import LedgerRun, read_ledger
from tests.support.ledger_runs import failure, generation, report, run_id_at, usage, write

NOW = datetime(2026, 11, 20, 6, tzinfo=UTC)
BEGAN = NOW - timedelta(hours=5)
RUN = run_id_at(BEGAN)
HOUR = timedelta(hours=1)


def only(store: Store, since: datetime = NOW - timedelta(days=28)) -> LedgerRun:
    (one,) = read_ledger(store, since, NOW).runs
    return one


def beat(store: Store, at: datetime, execution: str = "e1") -> None:
    store.pointer(layout.usage_beat(RUN, execution)).swap(None, {"at": at.timestamp(), "stage": "train"})


def test_a_run_that_ended(store: Store) -> None:
    write(store, report(RUN, BEGAN, BEGAN + HOUR), usage(RUN, BEGAN, BEGAN + HOUR, generation(BEGAN, BEGAN + HOUR)))
    one = only(store)
    assert (one.verdict, one.cause, one.stage, one.trigger, one.seconds) == ("promoted", "", "train", "schedule", 3600)
    assert sum(charge.node_seconds for charge in one.charges) > 3600
    assert read_ledger(store, NOW - HOUR, NOW).runs == []


def test_a_run_that_failed_and_was_resumed_counts_by_its_newest_end(store: Store) -> None:
    failed = report(RUN, BEGAN, BEGAN + HOUR, "failed", error=failure("node_lost"))
    write(store, failed, usage(RUN, BEGAN, BEGAN + HOUR))
    assert (only(store).verdict, only(store).cause, only(store).blame) == ("failed", "node_lost", "infrastructure")
    again = usage(RUN, BEGAN + 2 * HOUR, None, execution="e2")
    write(store, None, again)
    beat(store, NOW - timedelta(minutes=1), "e2")
    assert only(store).verdict == "running"
    write(store, report(RUN, BEGAN, BEGAN + 4 * HOUR), again.model_copy(update={"ended": BEGAN.timestamp() + 4 * 3600}))
    assert (only(store).verdict, only(store).seconds) == ("promoted", 4 * 3600)


@pytest.mark.parametrize(("ago", "verdict"), [(timedelta(minutes=59), "running"), (timedelta(minutes=61), "died")])
def test_a_run_without_a_heartbeat_for_an_hour_has_died(store: Store, ago: timedelta, verdict: str) -> None:
    write(store, None, usage(RUN, BEGAN, None))
    beat(store, NOW - ago)
    one = only(store)
    assert (one.verdict, one.stage, one.pipeline) == (verdict, "train", "orders")
    assert one.ended == (NOW - ago).timestamp()
    assert read_ledger(store, NOW - timedelta(minutes=30), NOW).runs == ([one] if verdict == "running" else [])


@pytest.mark.parametrize(("ago", "verdict"), [(timedelta(minutes=59), "unknown"), (timedelta(minutes=61), "died")])
def test_a_run_that_ended_an_hour_ago_without_a_report_has_died(store: Store, ago: timedelta, verdict: str) -> None:
    write(store, None, usage(RUN, BEGAN, NOW - ago))
    one = only(store)
    assert (one.verdict, one.ended) == (verdict, (NOW - ago).timestamp())
    assert one.blame == ("infrastructure" if verdict == "died" else "open")


def test_the_time_that_a_run_waits_for_a_person_is_not_its_own(store: Store) -> None:
    began, answered = BEGAN.timestamp(), BEGAN.timestamp() + 3 * 3600
    stage = StageUsage(name="promote", began=began + 10, ended=began + 20, status="waiting")
    write(store, report(RUN, BEGAN, BEGAN + HOUR, "waiting"), usage(RUN, BEGAN, BEGAN + HOUR, stages=[stage]))
    assert (only(store).blame, only(store).seconds) == ("open", 3600)
    second = usage(RUN, BEGAN + 3 * HOUR, BEGAN + 4 * HOUR, execution="e2")
    assert second.began == answered
    write(store, report(RUN, BEGAN, BEGAN + 4 * HOUR), second)
    assert (only(store).verdict, only(store).seconds) == ("promoted", 2 * 3600)


def test_damage_is_named_and_strange_names_are_not_runs(store: Store) -> None:
    write(store, report(RUN, BEGAN, BEGAN + HOUR), usage(RUN, BEGAN, BEGAN + HOUR))
    hurt = run_id_at(BEGAN, 7)
    store.create(layout.report(hurt), b"{nonsense")
    timeless = run_id_at(BEGAN, 6)
    store.create_once(layout.report(timeless), report(timeless, BEGAN, BEGAN + HOUR, finished="soon").to_json())
    store.create("runs/notes.txt", b"")
    store.create("runs/20260101-000000-abcdef/report.json", b"{nonsense")  # too long ago to be read
    store.create(f"runs/{run_id_at(BEGAN, 8)}/other.json", b"{}")  # it was stopped before it began
    page = read_ledger(store, NOW - timedelta(days=28), NOW)
    assert ([run.run_id for run in page.runs], page.unreadable) == ([RUN], [timeless, hurt])


def test_a_record_of_use_that_names_another_run_or_execution_does_not_count(store: Store) -> None:
    write(store, report(RUN, BEGAN, BEGAN + HOUR), usage(RUN, BEGAN, BEGAN + HOUR))
    long = (BEGAN - timedelta(days=300), BEGAN - HOUR)
    store.create_once(layout.usage(RUN, "e2", "ended"), usage("x", *long, execution="e2").to_json())
    store.create_once(layout.usage(RUN, "e3", "ended"), usage(RUN, BEGAN, NOW, execution="e1").to_json())
    assert sum(charge.node_seconds for charge in only(store).charges) == 3600
