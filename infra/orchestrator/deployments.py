"""Work pools, whether their runs are carried out, and the deployments on them.

A gang's nodes (`node/POOL`) are deployed when first needed, a pipeline's conductor (`retrain/NAME`) by `trainwright
deploy`. Periodic deployments look at something now and then: the reaper (`reap/POOL`; `resume/POOL` resumes what it
finds), the page of the day (`day-page/POOL`), the sensor of a pipeline's data (`sensor/NAME`), and the upkeep of a
store (`upkeep/NAME`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.canonical import digest
from data_contracts.errors import GangIncomplete, UsageError
from data_contracts.messages.children import StoreAddress
from infra.orchestrator.api import asking, if_there, unreachable_is_unavailable
from infra.processes.processes import CODE_ROOT
from infra.store.s3 import credentials_sent

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


# The pool of `trainwright up`.
POOL = "trainwright"
# Pools whose workers start processes on their own machine; on all others, an image holds the code.
PROCESS = "process"
NODE_FLOW = "node"
# Modules, not files: a file's folder would come first on the import path and stay there.
NODE_ENTRYPOINT = "flows.node.node"
CONDUCTOR = "flows.retrain.retrain"
NODE_TAG = "trainwright-node"
# Of what looks after runs and belongs to no pipeline.
SYSTEM_TAGS = ("trainwright", "system")
# Instead of a schedule: none.
OFF = "off"
_NODE_PARAMETERS = {
    "store": {"title": "store", "description": "address of the store", "position": 0, "type": "string"},
    "training": {"title": "training", "description": "its URI in the store", "position": 1, "type": "string"},
    "generation": {"title": "generation", "description": "of the gang", "position": 2, "type": "integer"},
    "node": {"title": "node", "description": "its number in the gang", "position": 3, "type": "integer"},
}
NODE_SCHEMA: dict[str, Any] = {
    "title": "Parameters",
    "type": "object",
    "properties": _NODE_PARAMETERS,
    "required": list(_NODE_PARAMETERS),
}
# Looks of one deployment that may be at work at once. One may be dead: Prefect counts it for five more minutes. And a
# worker that was away for a night must not begin with a hundred looks.
MOST_LOOKS = 2
# A parameter that is a text or is left out, as JSON Schema.
OPTIONAL_TEXT: Mapping[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
RESUME_ENTRYPOINT = "flows.retrain.resume"
_RESUME_PARAMETERS = {
    "run_id": {"title": "run_id", "description": "the run", "position": 0, "type": "string"},
    "store": {"title": "store", "description": "address of the store", **OPTIONAL_TEXT, "position": 1},
}


@dataclass(frozen=True)
class Obstacle:
    """Why runs that should begin do not.

    Attributes:
        name: for programs, such as `pool_paused`.
        remedy: the command that removes it, on this server.
    """

    name: str
    sentence: str
    remedy: str


def find_pool(client: SyncPrefectClient, name: str, field: str | None = None) -> Any:
    """The work pool `name`; UsageError if the server has none of that name.

    Args:
        field: the field of the spec, or the option, that names it, for the message.
    """
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_work_pool(name)
    except ObjectNotFound:
        sentence = f"this Prefect server has no work pool {name}."
        raise UsageError(
            f"{field}: {sentence}" if field else sentence[0].upper() + sentence[1:],
            remedy=f"Create it with `prefect work-pool create {name} --type process`.",
        ) from None


def lacks_worker(client: SyncPrefectClient, pool: Any) -> bool:
    """Whether a pool's runs wait because none of its workers is online. A push or managed pool needs no worker."""
    if pool.is_push_pool or pool.is_managed_pool:
        return False
    return all(worker.status != "ONLINE" for worker in client.read_workers_for_work_pool(pool.name))


def obstacle_of(client: SyncPrefectClient, pool: Any) -> Obstacle | None:
    """Why none of a pool's runs begins; None if a worker takes them."""
    paused = next((queue.name for queue in client.read_work_queues(work_pool_name=pool.name) if queue.is_paused), None)
    if pool.is_paused:
        sentence = f"The work pool {pool.name} is paused, so its runs wait until it is resumed."
        return Obstacle("pool_paused", sentence, f"Resume it: `prefect work-pool resume {pool.name}`.")
    if pool.concurrency_limit == 0:
        remedy = f"Lift the limit: `prefect work-pool clear-concurrency-limit {pool.name}`."
        return Obstacle("pool_limit", f"The work pool {pool.name} has a limit of 0 runs, so its runs wait.", remedy)
    if paused is not None:
        sentence = f"The queue {paused} of the work pool {pool.name} is paused, so its runs wait until it is resumed."
        remedy = f"Resume it: `prefect work-queue resume {paused} --pool {pool.name}`."
        return Obstacle("queue_paused", sentence, remedy)
    if not lacks_worker(client, pool):
        return None
    here = "`trainwright up` here, or " if pool.name == POOL else ""
    return Obstacle(
        "no_worker",
        f"No worker of the work pool {pool.name} is online, so its runs wait until one is.",
        f"Start one: {here}`{worker_command(pool)}` on the machine that is to execute the runs.",
    )


def worker_command(pool: Any) -> str:
    """The command that starts a worker of a pool in the foreground."""
    return f"{'trainwright worker' if pool.type == PROCESS else 'prefect worker start'} --pool {pool.name}"


def ensure_node_deployment(client: SyncPrefectClient, pool: str, kind: str) -> UUID:
    """The id of the pool's deployment of nodes, made if it does not exist.

    `node/<pool>` is used as it is if a person deployed it, for example for an image. Otherwise, on a `process` pool,
    each checkout has a deployment of its own, because a worker runs the code of the folder that the deployment names.

    Args:
        kind: type of the pool. Only a `process` worker needs the code's folder; elsewhere the image holds the code.
    """
    known = find_deployment(client, f"{NODE_FLOW}/{pool}")
    if known is not None and NODE_TAG not in known.tags:
        return known.id
    name, steps = pool, checkout_steps(kind)
    if kind == PROCESS:
        name = f"{pool}-{digest(str(CODE_ROOT))[:8]}"
        known = find_deployment(client, f"{NODE_FLOW}/{name}")
    now = known and (known.entrypoint, known.work_pool_name, known.pull_steps or [])
    if known is not None and now == (NODE_ENTRYPOINT, pool, steps):
        return known.id
    place = f" It runs the code in {CODE_ROOT}." if steps else ""
    return client.create_deployment(
        client.create_flow_from_name(NODE_FLOW),
        name,
        description=f"One node of a gang. Started by the run that trains, never by hand.{place}",
        work_pool_name=pool,
        entrypoint=NODE_ENTRYPOINT,
        pull_steps=steps,
        tags=["trainwright", NODE_TAG],
        parameter_openapi_schema=NODE_SCHEMA,
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
    parameters: Mapping[str, object] = field(default_factory=dict)
    cron: str | None = None
    timezone: str | None = None
    tags: tuple[str, ...] = ()
    replaces: bool = False

    @property
    def title(self) -> str:
        """Its name in Prefect."""
        return f"retrain/{self.name}"


def deploy_pipeline(client: SyncPrefectClient, deployment: PipelineDeployment) -> list[str]:
    """Make the deployment, or change what is wanted otherwise; returns its schedules in words.

    Raises:
        UsageError: there is no such pool, the schedule is not one, or the name is taken by another spec or pool.
    """
    kind = find_pool(client, deployment.pool, "--pool").type
    existing = None if deployment.replaces else find_deployment(client, deployment.title)
    if existing is not None:
        _refuse_another(existing, deployment)
    schedules = _schedules(deployment, existing)
    client.create_deployment(
        client.create_flow_from_name("retrain"),
        deployment.name,
        description=f"Runs the pipeline of {deployment.spec}.",
        work_pool_name=deployment.pool,
        entrypoint=CONDUCTOR,
        pull_steps=checkout_steps(kind),
        parameters={**(existing.parameters if existing else {}), "spec": deployment.spec, **deployment.parameters},
        job_variables=existing.job_variables if existing else None,
        schedules=schedules,
        paused=existing.paused if existing else None,
        tags=["trainwright", *deployment.tags],
        parameter_openapi_schema=deployment.schema,
        enforce_parameter_schema=True,
    )
    return [_in_words(one.schedule) for one in schedules if one.active]


def _refuse_another(existing: Any, deployment: PipelineDeployment) -> None:
    """UsageError if a deployment of this name is another team's or pipeline's: of another spec, or on another pool."""
    spec = str(existing.parameters.get("spec", "no spec"))
    folders = [str(step.get("directory")) for steps in existing.pull_steps or [] for step in steps.values()]
    if os.path.join(*folders[-1:], spec) == deployment.spec and existing.work_pool_name == deployment.pool:
        return
    raise UsageError(
        f"This Prefect server has a deployment {deployment.title} already: it runs {spec} on the work pool "
        f"{existing.work_pool_name}.",
        remedy="Give this one another name with --name, or put it in the place of that one with --replace.",
    )


def why_nobody_conducts(client: SyncPrefectClient, pool: str) -> GangIncomplete | None:
    """The error that the pool's runs would wait, because it is paused or no worker is online; None if one takes them.

    UsageError if there is no such pool.
    """
    obstacle = obstacle_of(client, find_pool(client, pool))
    return None if obstacle is None else GangIncomplete(obstacle.sentence, remedy=obstacle.remedy)


def checkout_steps(kind: str) -> list[dict[str, dict[str, str]]]:
    """The steps by which a worker finds the code."""
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(CODE_ROOT)}}
    return [step] if kind == PROCESS else []


def find_deployment(client: SyncPrefectClient, name: str) -> Any:
    """The deployment `FLOW/NAME`; None if there is none."""
    return if_there(lambda: client.read_deployment_by_name(name))


def kept_schedules(deployment: Any) -> list[Any]:
    """A deployment's schedules, to be given again: Prefect drops those that a changed deployment does not repeat."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    return [DeploymentScheduleCreate.model_validate(one, from_attributes=True) for one in deployment.schedules]


def _in_words(schedule: Any) -> str:
    cron = getattr(schedule, "cron", None)
    return f"at `{cron}` ({schedule.timezone or 'UTC'})" if cron else "on a schedule"


def _schedules(deployment: PipelineDeployment, existing: Any) -> list[Any]:
    """The schedules that are wanted; Prefect would drop those that a changed deployment does not repeat."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    if deployment.cron is None:
        return [] if existing is None else kept_schedules(existing)
    if deployment.cron.lower() == OFF:
        return []
    cron, timezone = deployment.cron, "UTC" if deployment.timezone is None else deployment.timezone
    try:
        if len(cron.split()) != 5 or not timezone:  # Prefect takes a sixth field for seconds
            raise _not_valid("--cron", cron) if timezone else _not_valid("--timezone", timezone)
        schedule = CronSchedule(cron=cron, timezone=timezone)
        return [DeploymentScheduleCreate(schedule=schedule, active=True)]
    except ValidationError as error:
        where = error.errors(include_input=False)[0]["loc"]
        raise (_not_valid("--timezone", timezone) if "timezone" in where else _not_valid("--cron", cron)) from error


def _not_valid(option: str, value: str) -> UsageError:
    """The error for a schedule or a time zone that is not one."""
    example = (
        "such as Europe/Berlin" if option == "--timezone" else "such as '0 3 * * *' (every night at three), or off"
    )
    return UsageError(f"{option}: {value!r} is not valid.", remedy=f"Give a value {example}.")


@dataclass(frozen=True)
class Periodic:
    """What such a deployment does.

    Attributes:
        flow: name of the flow that is run from `entrypoint`.
        every: cron line of a new deployment, in UTC; a person may change it in Prefect.
        properties: the flow's parameters as properties of a JSON Schema; required: those without a default.
        queues: whether flow runs that are late follow each other; else those beyond MOST_LOOKS are left out.
    """

    flow: str
    entrypoint: str
    description: str
    every: str
    properties: Mapping[str, Any]
    required: tuple[str, ...] = ()
    queues: bool = False

    @property
    def most(self) -> int:
        """Flow runs of one deployment that may be at work at once."""
        return 1 if self.queues else MOST_LOOKS


def ensure_for_pool(
    client: SyncPrefectClient, pool: str, kind: str, periodic: Periodic, parameters: Mapping[str, Any] | None = None
) -> None:
    """Make the deployment `FLOW/POOL`, or let it run this checkout's code and take its flow's parameters.

    Args:
        kind: type of the pool.
        parameters: of a new deployment, and those that an existing one lacks.
    """
    existing: Any = find_deployment(client, f"{periodic.flow}/{pool}")
    if existing is None or not _is_as_wanted(existing, periodic, kind):
        # A parameter that a person set stays; one that the flow no longer takes would be refused.
        earlier = {} if existing is None else existing.parameters
        given = {**(parameters or {}), **{name: one for name, one in earlier.items() if name in periodic.properties}}
        make_periodic(client, pool, existing, periodic, pool=pool, kind=kind, parameters=given)


def _is_as_wanted(existing: Any, periodic: Periodic, kind: str) -> bool:
    """Whether a deployment runs this checkout's code, with the parameters that its flow takes."""
    schema = parameter_schema(periodic.properties, periodic.required)
    here = existing.pull_steps == checkout_steps(kind) and set(existing.tags) >= set(SYSTEM_TAGS)
    here = here and existing.entrypoint == periodic.entrypoint and existing.parameter_openapi_schema == schema
    return here and getattr(existing.global_concurrency_limit, "limit", None) == periodic.most


def make_periodic(
    client: SyncPrefectClient,
    name: str,
    existing: Any,
    periodic: Periodic,
    *,
    pool: str,
    kind: str,
    parameters: Mapping[str, Any],
) -> None:
    """Make the deployment `FLOW/NAME`, or change it: its schedule and its pause stay.

    Args:
        existing: the deployment as it is; None: it is new.
    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.client.schemas.schedules import CronSchedule

    if existing is not None:
        schedules = kept_schedules(existing)
    else:
        schedules = [DeploymentScheduleCreate(schedule=CronSchedule(cron=periodic.every, timezone="UTC"), active=True)]
    client.create_deployment(
        client.create_flow_from_name(periodic.flow),
        name,
        description=periodic.description,
        work_pool_name=pool,
        entrypoint=periodic.entrypoint,
        pull_steps=checkout_steps(kind),
        parameters=dict(parameters),
        schedules=schedules,
        paused=None if existing is None else existing.paused,
        concurrency_limit=periodic.most,
        concurrency_options=ConcurrencyOptions(
            collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
            if periodic.queues
            else ConcurrencyLimitStrategy.CANCEL_NEW
        ),
        tags=list(SYSTEM_TAGS),
        parameter_openapi_schema=parameter_schema(periodic.properties, periodic.required),
        enforce_parameter_schema=True,
    )


def parameter_schema(properties: Mapping[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    """A flow's parameters as JSON Schema."""
    return {"title": "Parameters", "type": "object", "properties": dict(properties), "required": list(required)}


REAPER = Periodic(
    flow="reap",
    entrypoint="flows.reap.reap",
    description="Finds runs whose process died without a report, and has them resumed (retry.crashed).",
    every="*/3 * * * *",
    properties={
        "store": {
            "title": "store",
            "description": "store to look at; default: those used from the worker's machine",
            **OPTIONAL_TEXT,
            "position": 0,
        },
        "pool": {"title": "pool", "description": "its workers resume", "type": "string", "default": "trainwright"},
    },
)


def ensure_resume_deployment(client: SyncPrefectClient, pool: str, kind: str) -> UUID:
    """The id of the pool's deployment that resumes runs, made if it does not exist."""
    known: Any = find_deployment(client, f"resume/{pool}")
    if known is not None and known.pull_steps == checkout_steps(kind):
        return known.id
    return client.create_deployment(
        client.create_flow_from_name("resume"),
        pool,
        description="Resumes a run whose process died. Started by the reaper, or from here with a run's id.",
        work_pool_name=pool,
        entrypoint=RESUME_ENTRYPOINT,
        pull_steps=checkout_steps(kind),
        tags=["trainwright"],
        parameter_openapi_schema=parameter_schema(_RESUME_PARAMETERS, ("run_id",)),
        enforce_parameter_schema=True,
    )


DAY_PAGE = Periodic(
    flow="day-page",
    entrypoint="flows.day_page.day_page",
    description="Writes the page of the day and what needs a person, each hour.",
    every="7 * * * *",  # not on the hour, when nightly runs begin
    properties={
        "store": {
            "title": "store",
            "description": "store to look at; default: those used here",
            **OPTIONAL_TEXT,
            "position": 0,
        },
        "objectives": {
            "title": "objectives",
            "description": "file of objectives on the worker's machine; default: those that Trainwright ships",
            **OPTIONAL_TEXT,
            "position": 1,
        },
    },
)


def ensure_system(pool: str) -> None:
    """Make what looks after runs on a pool, or let it run this checkout's code; a pause and a changed schedule stay."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        kind = find_pool(client, pool).type
        ensure_resume_deployment(client, pool, kind)
        ensure_for_pool(client, pool, kind, REAPER, {"pool": pool})
        ensure_for_pool(client, pool, kind, DAY_PAGE)
        if (dropped := find_deployment(client, f"cost-report/{pool}")) is not None:
            client.delete_deployment(dropped.id)


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


def ensure_sensor(client: SyncPrefectClient, name: str, pool: str, parameters: Mapping[str, object]) -> str:
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


UPKEEP = Periodic(
    flow="upkeep",
    entrypoint="flows.upkeep.upkeep",
    description="Cleans the store {} as `trainwright gc` does, and verifies a part of what is sealed there.",
    every="{} 1 * * *",
    properties={
        "store": {"title": "store", "description": "address of the store", "type": "string", "position": 0},
        "storage_options": {
            "title": "storage_options",
            "description": "how to reach it; credentials are named",
            "type": "object",
            "default": {},
            "position": 1,
        },
        "pointers": {"title": "pointers", "description": "its database of pointers", **OPTIONAL_TEXT, "position": 2},
    },
    required=("store",),
    queues=True,
)


def ensure_upkeep(client: SyncPrefectClient, pool: str, store: StoreAddress) -> str:
    """Make the deployment that cleans and verifies a store, or let it run this checkout's code; its title.

    A bucket is known by its server. A folder of the same path is another store on the machines of each pool.
    """
    server = credentials_sent(store.options)[1] if "://" in store.uri else pool
    identity = digest([store.uri.rstrip("/"), server])
    place = re.sub("[^a-z0-9]+", "-", store.uri.lower()).strip("-")[-40:].strip("-")
    name = f"{place or 'store'}-{identity[:8]}"
    title = f"{UPKEEP.flow}/{name}"
    # Not all stores at the same minute.
    daily = replace(
        UPKEEP,
        description=UPKEEP.description.format(store.uri),
        every=UPKEEP.every.format(int(identity, 16) % 60),
    )
    make_periodic(
        client,
        name,
        find_deployment(client, title),
        daily,
        pool=pool,
        kind=find_pool(client, pool).type,
        parameters={"store": store.uri, "storage_options": dict(store.options), "pointers": store.pointers},
    )
    return title


def start_once(title: str, key: str) -> str:
    """Start a flow run of a deployment, once for each key, which is its parameter, too; the flow run's name.

    Raises: UsageError if there is no such deployment; StorageUnavailable.
    """
    with unreachable_is_unavailable(), asking(retries=2) as client:
        known = find_deployment(client, title)
        if known is None:
            raise UsageError(
                f"This Prefect server has no deployment {title}.", remedy="Make it with `trainwright deploy SPEC`."
            )
        run = client.create_flow_run_from_deployment(known.id, parameters={"key": key}, idempotency_key=key)
        return str(run.name)
