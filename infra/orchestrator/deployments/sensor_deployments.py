"""The deployment `sensor/NAME`, which looks every five minutes whether data has arrived for `retrain/NAME`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from data_contracts.errors import StorageUnavailable, UsageError
from infra.orchestrator.admission import asking
from infra.orchestrator.api import unreachable
from infra.orchestrator.deployments.deployments import find_deployment
from infra.orchestrator.deployments.periodic_deployments import OPTIONAL_TEXT, Periodic, make_periodic
from infra.orchestrator.work_pools import find_pool

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

SENSOR = Periodic(
    flow="sensor",
    entrypoint="flows.sense.sensor",
    description="Starts {} when data has arrived (schedule.sensor).",
    every="*/5 * * * *",
    properties={
        "spec": {"title": "spec", "description": "the spec's path", "type": "string", "position": 0},
        "deployment": {"title": "deployment", "description": "what it starts", "type": "string", "position": 1},
        "set": {"title": "set", "description": "overrides", "type": "string", "default": "", "position": 2},
        "store": {"title": "store", "description": "store to use instead", **OPTIONAL_TEXT, "position": 3},
    },
    required=("spec", "deployment"),
)


def ensure_sensor(client: SyncPrefectClient, name: str, pool: str, parameters: dict[str, Any]) -> str:
    """Make the sensor of `retrain/<name>`, or let it run this checkout's code; its title."""
    title = f"sensor/{name}"
    known = find_deployment(client, title)
    make_periodic(
        client,
        name,
        known,
        replace(SENSOR, description=SENSOR.description.format(f"retrain/{name}")),
        pool=pool,
        kind=find_pool(client, pool).type,
        parameters={**(known.parameters if known else {}), **parameters, "deployment": f"retrain/{name}"},
    )
    return title


def stop_sensor(client: SyncPrefectClient, name: str) -> str | None:
    """Delete the sensor of `retrain/<name>`; its title, or None if there is none."""
    known = find_deployment(client, f"sensor/{name}")
    if known is None:
        return None
    client.delete_deployment(known.id)
    return f"sensor/{name}"


def start_once(title: str, key: str) -> str:
    """Start a flow run of a deployment, once for each key, which is its parameter, too; the flow run's name.

    Raises: UsageError if there is no such deployment; StorageUnavailable.
    """
    try:
        with asking(retries=2) as client:
            known = find_deployment(client, title)
            if known is None:
                raise UsageError(
                    f"This Prefect server has no deployment {title}.", remedy="Make it with `trainwright deploy SPEC`."
                )
            run = client.create_flow_run_from_deployment(known.id, parameters={"key": key}, idempotency_key=key)
            return str(run.name)
    except (UsageError, StorageUnavailable):
        raise
    except Exception as error:
        away = unreachable(error)
        if away is None:
            raise
        raise away from error
