"""The deployment through which a work pool's workers run a gang's nodes: `node/<pool>`, made when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from infra.processes.processes import CODE_ROOT

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

FLOW = "node"
# A module, not a file: a file's folder would come first on the import path and stay there.
ENTRYPOINT = "flows.node.node"
OURS = "trainwright-node"
_PARAMETERS = {
    "store": {"title": "store", "description": "address of the store", "position": 0, "type": "string"},
    "training": {"title": "training", "description": "its URI in the store", "position": 1, "type": "string"},
    "generation": {"title": "generation", "description": "of the gang", "position": 2, "type": "integer"},
    "node": {"title": "node", "description": "its number in the gang", "position": 3, "type": "integer"},
}
SCHEMA: dict[str, Any] = {
    "title": "Parameters",
    "type": "object",
    "properties": _PARAMETERS,
    "required": list(_PARAMETERS),
}


def ensure_node_deployment(client: SyncPrefectClient, pool: str, kind: str) -> UUID:
    """The id of the pool's deployment, made if it does not exist and refreshed if it is ours.

    A deployment of that name without our tag, which a person deployed, for example for an image, is used as it is.

    Args:
        kind: type of the pool. Only a `process` worker needs the code's folder; elsewhere the image holds the code.
    """
    from prefect.exceptions import ObjectNotFound

    try:
        known = client.read_deployment_by_name(f"{FLOW}/{pool}")
    except ObjectNotFound:
        known = None
    if known is not None and OURS not in known.tags:
        return known.id
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(CODE_ROOT)}}
    steps = [step] if kind == "process" else []
    if known is not None and (known.entrypoint, known.work_pool_name, known.pull_steps or []) == (
        ENTRYPOINT,
        pool,
        steps,
    ):
        return known.id
    return client.create_deployment(
        client.create_flow_from_name(FLOW),
        pool,
        description="One node of a gang. Started by the run that trains, never by hand.",
        work_pool_name=pool,
        entrypoint=ENTRYPOINT,
        pull_steps=steps,
        tags=["trainwright", OURS],
        parameter_openapi_schema=SCHEMA,
        enforce_parameter_schema=True,
    )
