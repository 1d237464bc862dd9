"""When a deployment was meant to start runs: its schedules, applied to the past."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.errors import UsageError
from infra.orchestrator.deployments.deployments import find_deployment

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# A year of hours; more are a mistake in a date.
MOST_TIMES = 10_000
# How far back one looks if nobody says.
AT_MOST = timedelta(days=30)


@dataclass(frozen=True)
class PastTimes:
    """A deployment and the times at which it was meant to start a run, oldest first, in UTC."""

    deployment: UUID
    parameters: dict[str, Any]
    times: list[datetime]


def past_times(client: SyncPrefectClient, title: str, since: datetime | None, present: datetime) -> PastTimes:
    """The times that have passed since `since`; by default since the deployment was made, at most 30 days ago.

    UsageError if there is no such deployment, it has no active schedule, `since` lies in the future, or there are too
    many times.
    """
    known: Any = find_deployment(client, title)
    if known is None:
        raise UsageError(
            f"This Prefect server has no deployment {title}.",
            remedy="Make it with `trainwright deploy`, or give --name.",
        )
    schedules = [one.schedule for one in known.schedules if one.active]
    if not schedules:
        raise UsageError(
            f"The deployment {title} has no active schedule, so no time was missed.",
            remedy="Name the span of time: --from START --to END.",
        )
    if since is None:
        since = max(present - AT_MOST, known.created or present - AT_MOST)
    elif since > present:
        raise UsageError(f"--since: {since.isoformat()} lies in the future.", remedy="Give a time that has passed.")
    times = {time for schedule in schedules for time in _times(schedule, since, present)}
    if len(times) > MOST_TIMES:
        raise UsageError(
            f"Since {since.isoformat()} there are more than {MOST_TIMES:,} times in the schedule of {title}.",
            remedy="Give a later --since.",
        )
    return PastTimes(known.id, dict(known.parameters), sorted(times))


def _times(schedule: Any, since: datetime, present: datetime) -> list[datetime]:
    """A schedule's times in [since, present); at most a few more than may be."""
    from prefect.server.schemas import schedules as server

    kind = getattr(server, type(schedule).__name__)
    served = kind.model_validate(schedule.model_dump())
    found: list[datetime] = []
    while len(found) <= MOST_TIMES:
        # Prefect checks a thousand candidates for each call.
        part = asyncio.run(served.get_dates(500, start=since, end=present))
        plain = [datetime.fromisoformat(one.isoformat()).astimezone(UTC) for one in part]
        new = [one for one in plain if since <= one < present]
        found += new
        if len(part) < 500:
            break
        since = plain[-1] + timedelta(seconds=1)
    return found
