"""Deployments that look at something now and then: the reaper, the pages of the day and the month, sensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.orchestrator.deployments.deployments import (
    SYSTEM_TAGS,
    checkout_steps,
    find_deployment,
    kept_schedules,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# Looks of one deployment that may be at work at once. One may be dead: Prefect counts it for five more minutes. And a
# worker that was away for a night must not begin with a hundred looks.
MOST_LOOKS = 2
# A parameter that is a text or is left out, as JSON Schema.
OPTIONAL_TEXT: Mapping[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}


@dataclass(frozen=True)
class Periodic:
    """What such a deployment does.

    Attributes:
        flow: name of the flow that is run from `entrypoint`.
        every: cron line of a new deployment, in UTC; a person may change it in Prefect.
        properties: the flow's parameters as properties of a JSON Schema; required: those without a default.
    """

    flow: str
    entrypoint: str
    description: str
    every: str
    properties: Mapping[str, Any]
    required: tuple[str, ...] = ()


def ensure_for_pool(
    client: SyncPrefectClient, pool: str, kind: str, wanted: Periodic, parameters: Mapping[str, Any] | None = None
) -> None:
    """Make the deployment `FLOW/POOL`, or let it run this checkout's code and take its flow's parameters.

    Args:
        kind: type of the pool.
        parameters: of a new deployment, and those that an existing one lacks.
    """
    known: Any = find_deployment(client, f"{wanted.flow}/{pool}")
    if known is None or not _is_as_wanted(known, wanted, kind):
        # A parameter that a person set stays; one that the flow no longer takes would be refused.
        earlier = {} if known is None else known.parameters
        given = {**(parameters or {}), **{name: one for name, one in earlier.items() if name in wanted.properties}}
        make_periodic(client, pool, known, wanted, pool=pool, kind=kind, parameters=given)


def _is_as_wanted(known: Any, wanted: Periodic, kind: str) -> bool:
    """Whether a deployment runs this checkout's code, with the parameters that its flow takes."""
    schema = parameter_schema(wanted.properties, wanted.required)
    here = known.pull_steps == checkout_steps(kind) and set(known.tags) >= set(SYSTEM_TAGS)
    here = here and known.entrypoint == wanted.entrypoint and known.parameter_openapi_schema == schema
    return here and getattr(known.global_concurrency_limit, "limit", None) == MOST_LOOKS


def make_periodic(
    client: SyncPrefectClient,
    name: str,
    known: Any,
    wanted: Periodic,
    *,
    pool: str,
    kind: str,
    parameters: Mapping[str, Any],
) -> None:
    """Make the deployment `FLOW/NAME`, or change it: its schedule and its pause stay.

    Args:
        known: the deployment as it is; None: it is new.
    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.client.schemas.schedules import CronSchedule

    if known is not None:
        schedules = kept_schedules(known)
    else:
        schedules = [DeploymentScheduleCreate(schedule=CronSchedule(cron=wanted.every, timezone="UTC"), active=True)]
    client.create_deployment(
        client.create_flow_from_name(wanted.flow),
        name,
        description=wanted.description,
        work_pool_name=pool,
        entrypoint=wanted.entrypoint,
        pull_steps=checkout_steps(kind),
        parameters=dict(parameters),
        schedules=schedules,
        paused=None if known is None else known.paused,
        concurrency_limit=MOST_LOOKS,
        concurrency_options=ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
        tags=list(SYSTEM_TAGS),
        parameter_openapi_schema=parameter_schema(wanted.properties, wanted.required),
        enforce_parameter_schema=True,
    )


def parameter_schema(properties: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    """A flow's parameters as JSON Schema."""
    return {"title": "Parameters", "type": "object", "properties": dict(properties), "required": list(required)}
