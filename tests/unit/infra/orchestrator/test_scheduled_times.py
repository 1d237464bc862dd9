"""The past times of a deployment's schedules."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

from data_contracts.errors import UsageError
from infra.orchestrator import deployments
from infra.orchestrator.deployments import past_times

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


def times(
    *schedules: Any, since: datetime | None = None, created: timedelta = timedelta(days=9), active: bool = True
) -> list[str]:
    known = SimpleNamespace(
        id=UUID(int=1),
        parameters={"window": "1d"},
        created=NOW - created,
        schedules=[SimpleNamespace(schedule=one, active=active) for one in schedules],
    )
    client = SimpleNamespace(read_deployment_by_name=lambda _: known)
    return [f"{one:%m-%dT%H:%M}" for one in past_times(cast(Any, client), "retrain/tiny", since, NOW).times]


def test_times_that_have_passed_in_utc() -> None:
    nightly = CronSchedule(cron="0 3 * * *", timezone="Europe/Berlin")
    assert times(nightly, since=NOW - timedelta(days=2)) == ["11-24T02:00", "11-25T02:00"]
    assert times(nightly, created=timedelta(days=1)) == ["11-25T02:00"], "not before it was deployed"
    assert len(times(nightly, created=timedelta(days=400))) == 30
    assert times(nightly, created=timedelta(minutes=1)) == []
    twice = [nightly, CronSchedule(cron="0 2,14 * * *", timezone="UTC")]
    assert times(*twice, since=NOW - timedelta(days=1)) == ["11-24T14:00", "11-25T02:00"], "one time, one run"
    interval = IntervalSchedule(interval=timedelta(hours=5), anchor_date=NOW)
    assert times(interval, since=NOW - timedelta(hours=11)) == ["11-25T02:00", "11-25T07:00"], "not the present"


def test_more_times_than_one_answer_of_prefect_has() -> None:
    assert len(times(CronSchedule(cron="*/10 * * * *", timezone="UTC"))) == 9 * 24 * 6


def test_an_hour_that_occurs_twice_and_one_that_does_not_exist() -> None:
    nightly = CronSchedule(cron="30 2 * * *", timezone="Europe/Berlin")
    spring = times(nightly, since=datetime(2026, 3, 28, tzinfo=UTC))
    autumn = times(nightly, since=datetime(2026, 10, 24, tzinfo=UTC))
    # Prefect decides what an hour that is skipped becomes; on Python 3.13 it reckons with another library.
    skipped = "03-29T01:30" if sys.version_info >= (3, 13) else "03-29T00:30"
    assert spring[:3] == ["03-28T01:30", skipped, "03-30T00:30"]
    assert autumn[:3] == ["10-24T00:30", "10-25T00:30", "10-26T01:30"]


def test_bad_input_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    nightly = CronSchedule(cron="0 3 * * *", timezone="UTC")
    with pytest.raises(UsageError, match="has no active schedule, so no time was missed"):
        times()
    with pytest.raises(UsageError, match="has no active schedule"):
        times(nightly, active=False)
    with pytest.raises(UsageError, match="--since: 2026-11-25T13:00:00.00:00 lies in the future"):
        times(nightly, since=NOW + timedelta(hours=1))
    monkeypatch.setattr(deployments, "MOST_TIMES", 20)
    with pytest.raises(UsageError, match="more than 20 times in the schedule of retrain/tiny"):
        times(CronSchedule(cron="* * * * *", timezone="UTC"))
    monkeypatch.setattr(deployments, "find_deployment", lambda *_: None)
    with pytest.raises(UsageError, match="has no deployment retrain/tiny"):
        times(nightly)
