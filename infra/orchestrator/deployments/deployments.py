"""Deployments on Prefect work pools: a gang's nodes, made when first needed, and a pipeline's conductor (`retrain`)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.canonical import digest
from data_contracts.errors import GangIncomplete, UsageError
from infra.orchestrator.work_pools import PROCESS, find_pool, obstacle_of
from infra.processes.processes import CODE_ROOT

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

FLOW = "node"
# Modules, not files: a file's folder would come first on the import path and stay there.
ENTRYPOINT = "flows.node.node"
CONDUCTOR = "flows.retrain.retrain"
OURS = "trainwright-node"
# Of what looks after runs and belongs to no pipeline.
SYSTEM_TAGS = ("trainwright", "system")
# Instead of a schedule: none.
OFF = "off"
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
    """The id of the pool's deployment of nodes, made if it does not exist.

    `node/<pool>` is used as it is if a person deployed it, for example for an image. Otherwise, on a `process` pool,
    each checkout has a deployment of its own, because a worker runs the code of the folder that the deployment names.

    Args:
        kind: type of the pool. Only a `process` worker needs the code's folder; elsewhere the image holds the code.
    """
    known = find_deployment(client, f"{FLOW}/{pool}")
    if known is not None and OURS not in known.tags:
        return known.id
    name, steps = pool, checkout_steps(kind)
    if kind == PROCESS:
        name = f"{pool}-{digest(str(CODE_ROOT))[:8]}"
        known = find_deployment(client, f"{FLOW}/{name}")
    now = known and (known.entrypoint, known.work_pool_name, known.pull_steps or [])
    if known is not None and now == (ENTRYPOINT, pool, steps):
        return known.id
    place = f" It runs the code in {CODE_ROOT}." if steps else ""
    return client.create_deployment(
        client.create_flow_from_name(FLOW),
        name,
        description=f"One node of a gang. Started by the run that trains, never by hand.{place}",
        work_pool_name=pool,
        entrypoint=ENTRYPOINT,
        pull_steps=steps,
        tags=["trainwright", OURS],
        parameter_openapi_schema=SCHEMA,
        enforce_parameter_schema=True,
    )


@dataclass(frozen=True, kw_only=True)
class PipelineDeployment:
    """A pipeline's deployment `retrain/<name>`: a flow run of it conducts one run of the pipeline.

    Attributes:
        pool: the work pool whose workers conduct.
        spec: the spec's path as the worker finds it.
        parameters: further parameters of the flow, such as `window`.
        schema: the flow's parameters as JSON Schema, for the launch form.
        cron: when it runs by itself; `off`: only on demand; None: as before, or only on demand if it is new.
        timezone: of `cron`; None: UTC.
        tags: of the deployment, beside that of Trainwright; Prefect gives each of its runs these when it is scheduled.
        replaces: whether it takes the place of any deployment of this name, of which nothing stays.
    """

    name: str
    pool: str
    spec: str
    schema: dict[str, Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    cron: str | None = None
    timezone: str | None = None
    tags: tuple[str, ...] = ()
    replaces: bool = False

    @property
    def title(self) -> str:
        """Its name in Prefect."""
        return f"retrain/{self.name}"


def deploy_pipeline(client: SyncPrefectClient, wanted: PipelineDeployment) -> list[str]:
    """Make the deployment, or change what is wanted otherwise; returns its schedules in words.

    Raises:
        UsageError: there is no such pool, the schedule is not one, or the name is taken by another spec or pool.
    """
    kind = find_pool(client, wanted.pool, "--pool").type
    known = None if wanted.replaces else find_deployment(client, wanted.title)
    if known is not None:
        _refuse_another(known, wanted)
    schedules = _schedules(wanted, known)
    client.create_deployment(
        client.create_flow_from_name("retrain"),
        wanted.name,
        description=f"Runs the pipeline of {wanted.spec}.",
        work_pool_name=wanted.pool,
        entrypoint=CONDUCTOR,
        pull_steps=checkout_steps(kind),
        parameters={**(known.parameters if known else {}), "spec": wanted.spec, **wanted.parameters},
        job_variables=known.job_variables if known else None,
        schedules=schedules,
        paused=known.paused if known else None,
        tags=["trainwright", *wanted.tags],
        parameter_openapi_schema=wanted.schema,
        enforce_parameter_schema=True,
    )
    return [_in_words(one.schedule) for one in schedules if one.active]


def _refuse_another(known: Any, wanted: PipelineDeployment) -> None:
    """UsageError if a deployment of this name is another team's or pipeline's: of another spec, or on another pool."""
    spec = str(known.parameters.get("spec", "no spec"))
    folders = [str(step.get("directory")) for steps in known.pull_steps or [] for step in steps.values()]
    if os.path.join(*folders[-1:], spec) == wanted.spec and known.work_pool_name == wanted.pool:
        return
    raise UsageError(
        f"This Prefect server has a deployment {wanted.title} already: it runs {spec} on the work pool "
        f"{known.work_pool_name}.",
        remedy="Give this one another name with --name, or put it in the place of that one with --replace.",
    )


def why_nobody_conducts(client: SyncPrefectClient, pool: str) -> GangIncomplete | None:
    """The error that the pool's runs would wait, because it is paused or no worker is online; None if one takes them.

    UsageError if there is no such pool.
    """
    obstacle = obstacle_of(client, find_pool(client, pool))
    return None if obstacle is None else GangIncomplete(obstacle.sentence, remedy=obstacle.remedy)


def checkout_steps(kind: str) -> list[dict[str, Any]]:
    """The steps by which a worker finds the code."""
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(CODE_ROOT)}}
    return [step] if kind == PROCESS else []


def find_deployment(client: SyncPrefectClient, name: str) -> Any:
    """The deployment `FLOW/NAME`; None if there is none."""
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None


def kept_schedules(known: Any) -> list[Any]:
    """A deployment's schedules, to be given again: Prefect drops those that a changed deployment does not repeat."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    return [_copied(DeploymentScheduleCreate, one) for one in known.schedules]


def _copied(kind: Any, schedule: Any) -> Any:
    known = {name: getattr(schedule, name, None) for name in kind.model_fields}
    return kind(**{name: value for name, value in known.items() if value is not None})


def _in_words(schedule: Any) -> str:
    cron = getattr(schedule, "cron", None)
    return f"at `{cron}` ({schedule.timezone or 'UTC'})" if cron else "on a schedule"


def _schedules(wanted: PipelineDeployment, known: Any) -> list[Any]:
    """The schedules that are wanted; Prefect would drop those that a changed deployment does not repeat."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    if wanted.cron is None:
        return [] if known is None else kept_schedules(known)
    if wanted.cron.lower() == OFF:
        return []
    cron, timezone = wanted.cron, "UTC" if wanted.timezone is None else wanted.timezone
    try:
        if len(cron.split()) != 5 or not timezone:  # Prefect takes a sixth field for seconds
            raise _not_valid("--cron", cron) if timezone else _not_valid("--timezone", timezone)
        schedule = CronSchedule(cron=cron, timezone=timezone)
        _refuse_dateless(cron, timezone)
        return [DeploymentScheduleCreate(schedule=schedule, active=True)]
    except ValidationError as error:
        where = error.errors(include_input=False)[0]["loc"]
        raise (_not_valid("--timezone", timezone) if "timezone" in where else _not_valid("--cron", cron)) from error


def _refuse_dateless(cron: str, timezone: str) -> None:
    """UsageError if Prefect's scheduler, which would only log it, finds no next date of a schedule."""
    from prefect.server.schemas.schedules import CronSchedule

    try:
        asyncio.run(CronSchedule(cron=cron, timezone=timezone).get_dates(1))
    except ValueError as error:
        raise UsageError(
            f"--cron: {cron!r} has no next date, so it would never start a run.",
            remedy="Give a day that its months have, such as '0 3 28 2 *'.",
        ) from error


def _not_valid(option: str, value: str) -> UsageError:
    """The error for a schedule or a time zone that is not one."""
    example = (
        "such as Europe/Berlin" if option == "--timezone" else "such as '0 3 * * *' (every night at three), or off"
    )
    return UsageError(f"{option}: {value!r} is not valid.", remedy=f"Give a value {example}.")
