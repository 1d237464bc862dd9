"""What the Prefect server shows Prometheus of what is deployed: `GET /api/metrics`, for whoever shows its password.

A run shows its own metrics, which end with its process. These stay, and say what the automations of
`infra/orchestrator/events/watch.py` tell people: work pools without a worker, late runs, and flow runs that failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from infra.metrics import SERVER_METRICS

if TYPE_CHECKING:
    from fastapi import FastAPI, Response

    Row = tuple[tuple[str, ...], float]

# Flow runs that ended earlier are not read: a scrape must cost little, however old the server is.
_LAST = timedelta(days=1)
_ENDS = ("COMPLETED", "FAILED", "CRASHED")


def serve_metrics(api: FastAPI) -> None:
    """Let the server's API answer with its metrics."""
    from fastapi import Response
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    async def metrics() -> Response:
        registry = CollectorRegistry()
        registry.register(_Collector(await _rows()))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    api.add_api_route("/metrics", metrics, include_in_schema=False)


class _Collector:
    def __init__(self, rows: Sequence[Sequence[Row]]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        for metric, rows in zip(SERVER_METRICS, self._rows, strict=True):
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in rows:
                family.add_metric(labels, value)
            yield family


async def _rows() -> list[list[Row]]:
    """The labels and values of each of SERVER_METRICS."""
    import sqlalchemy as sa
    from prefect.server.database import provide_database_interface

    db, now = provide_database_interface(), datetime.now(UTC)
    run, deployment, flow, queue, pool = db.FlowRun, db.Deployment, db.Flow, db.WorkQueue, db.WorkPool
    deployed = sa.select(pool.name, pool.status).join(queue, queue.work_pool_id == pool.id)
    deployed = deployed.join(deployment, deployment.work_queue_id == queue.id).distinct()
    late = sa.select(flow.name, deployment.name, sa.func.min(run.next_scheduled_start_time))
    # Prefect never calls a run late that waits to be executed again.
    late = late.where(run.state_type == "SCHEDULED", run.state_name.in_(("Late", "AwaitingRetry")))
    late = late.where(run.next_scheduled_start_time < now)
    ended = sa.select(flow.name, deployment.name, run.state_type, sa.func.max(run.end_time))
    ended = ended.where(run.end_time > now - _LAST, run.state_type.in_(_ENDS)).group_by(run.state_type)

    def of_deployments(query: Any) -> Any:
        query = query.select_from(run).join(deployment, deployment.id == run.deployment_id)
        return query.join(flow, flow.id == deployment.flow_id).group_by(flow.name, deployment.name)

    async with db.session_context() as session:
        return [
            [((name,), float(status == "READY")) for name, status in await session.execute(deployed)],
            [
                ((f"{of}/{name}",), (now - since).total_seconds())
                for of, name, since in await session.execute(of_deployments(late))
            ],
            [
                ((f"{of}/{name}", str(getattr(kind, "value", kind)).lower()), at.timestamp())
                for of, name, kind, at in await session.execute(of_deployments(ended))
            ],
        ]
