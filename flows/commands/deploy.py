"""`deploy`: make a pipeline a Prefect deployment, which a worker runs on a schedule or on demand."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from data_contracts.canonical import valid_name
from data_contracts.errors import SpecError, UsageError
from data_contracts.load import load_store
from data_contracts.messages.children import StoreAddress
from flows.commands.guard import Answer, log
from flows.commands.server import connect, flow_parameters
from infra.budgets import refuse_by_policy
from infra.orchestrator.automations import (
    find_blocks,
    notify_tags,
    retrain_when_drifted,
    stop_retraining,
    tell_people,
    watch,
)
from infra.orchestrator.deployments import (
    POOL,
    PipelineDeployment,
    deploy_pipeline,
    ensure_sensor,
    ensure_system,
    ensure_upkeep,
    stop_sensor,
    why_nobody_conducts,
)
from infra.orchestrator.worker import ensure_pool
from infra.store import absolute_address, open_at
from tasks.policies import pipeline_tags
from tasks.run.spec_check import LoadedSpec, read_spec

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

    from data_contracts.pipeline_spec import PipelineSpec


def deploy(arguments: argparse.Namespace) -> Answer:
    """The `deploy` command; GangIncomplete with `--start` if no worker would carry out the run."""
    path = Path(arguments.spec).resolve()
    _refuse_without_effect(arguments)
    loaded = read_spec(path, arguments.set)
    loaded.check(arguments.window)
    store = _store_address(loaded, arguments.store)
    _refuse_by_policy_of_store(loaded, store)
    spec = loaded.spec
    _refuse_never(spec)
    name = _name(arguments.name or spec.name)
    ui = connect("cli")
    from prefect.client.orchestration import get_client
    from prefect.utilities.callables import parameter_schema

    from flows.retrain import retrain

    wanted = PipelineDeployment(
        name=name,
        pool=arguments.pool,
        spec=str(path),
        schema=parameter_schema(retrain).model_dump_for_openapi(),
        parameters=flow_parameters(arguments),
        cron=arguments.cron,
        timezone=arguments.timezone,
        tags=(*pipeline_tags(spec.name, spec.tags), *notify_tags(spec.notify)),
        replaces=arguments.replace,
    )
    if wanted.pool == POOL:
        ensure_pool()
    with get_client(sync_client=True) as client:
        blocks = find_blocks(client, spec.notify)
        schedules = deploy_pipeline(client, wanted)
        ensure_system(wanted.pool)
        log.info("upkeep of %s, each day: %s", store.uri, ensure_upkeep(client, wanted.pool, store))
        _automate(client, wanted.title, spec, blocks)
        _look_for_data(client, wanted, spec)
        for automation in watch(client):
            log.info("automation: %s", automation)
        nobody = why_nobody_conducts(client, wanted.pool)
        if nobody is not None and arguments.start:
            raise nobody
    if nobody is not None:
        log.warning("%s %s", nobody.message, nobody.remedy)
    return _answer(arguments, wanted, " and ".join([*schedules, "on demand"]), sorted(blocks), worker=not nobody, ui=ui)


def _answer(
    arguments: argparse.Namespace,
    deployment: PipelineDeployment,
    when: str,
    receivers: list[str],
    *,
    worker: bool,
    ui: str,
) -> Answer:
    """What was deployed, who is told if it fails, and with `--start` the flow run that is started now."""
    from prefect.deployments import run_deployment

    value: dict[str, object] = {
        "deployment": deployment.title,
        "pool": deployment.pool,
        "spec": deployment.spec,
        "worker": worker,
    }
    lines = [f"{deployment.title} runs {deployment.spec} on the work pool {deployment.pool}: {when}."]
    value["told"] = receivers
    if receivers:
        lines.append(
            f"If a run fails, or no worker of {deployment.pool} is left, the server tells {' and '.join(receivers)}."
        )
    else:
        lines.append("Nobody is told if a run fails or its worker dies: notify is not set (docs/notifications.md).")
    if arguments.start:
        run = run_deployment(deployment.title, timeout=0)
        value["flow_run"] = {"name": run.name, "id": str(run.id)}  # type: ignore[union-attr]
        lines.append(f"Started the flow run {run.name}: {ui}/runs/flow-run/{run.id}")  # type: ignore[union-attr]
    else:
        named = ["--name", arguments.name] if arguments.name else []
        pool = ["--pool", arguments.pool] if arguments.pool != POOL else []
        command = shlex.join(["trainwright", "deploy", arguments.spec, *named, *pool, "--start"])
        lines.append(f"To start a run: {command}")
    return Answer("\n".join(lines), value, line=lines[-1] if arguments.start else lines[0])


def _store_address(loaded: LoadedSpec, named: str | None) -> StoreAddress:
    """The store of the deployment's runs: the spec's, or the one that is named to be used instead."""
    store = loaded.spec.store
    uri = absolute_address(store.uri, loaded.root) if named is None else absolute_address(named)
    return StoreAddress(uri=uri, options=store.storage_options, pointers=store.pointers if named is None else None)


def _refuse_by_policy_of_store(loaded: LoadedSpec, address: StoreAddress) -> None:
    """SpecError for a tag that the policy of the store forbids. A store that is not there yet has none."""
    try:
        store = open_at(address)
    except UsageError:
        return
    refuse_by_policy(loaded.spec, loaded.path, store)


def _automate(client: SyncPrefectClient, title: str, spec: PipelineSpec, blocks: Mapping[str, UUID]) -> None:
    """Make the automations that `contract.drift.retrain` and `notify` ask for, and delete those of earlier specs."""
    if spec.contract and spec.contract.drift and spec.contract.drift.retrain:
        log.info("automation: %s", retrain_when_drifted(client, title, spec.name))
    elif deleted := stop_retraining(client, title):
        log.info("automation deleted, because contract.drift.retrain is no longer set: %s", deleted)
    for automation in tell_people(client, spec.name, f"{spec.model_name}@{spec.promote.alias}", spec.notify, blocks):
        log.info("automation: %s", automation)


def _look_for_data(client: SyncPrefectClient, deployment: PipelineDeployment, spec: PipelineSpec) -> None:
    """Make the deployment that `schedule.sensor` asks for, or delete it if the spec no longer asks."""
    if spec.schedule.sensor is not None:
        given = {name: value for name, value in deployment.parameters.items() if name in ("set", "store")}
        log.info(
            "sensor: %s", ensure_sensor(client, deployment.name, deployment.pool, {"spec": deployment.spec, **given})
        )
    elif deleted := stop_sensor(client, deployment.name):
        log.info("sensor deleted, because schedule.sensor is no longer set: %s", deleted)


def _refuse_never(spec: PipelineSpec) -> None:
    """SpecError for an automation that nothing would ever start."""
    drift = None if spec.contract is None else spec.contract.drift
    if drift is not None and drift.retrain and drift.fail_on == "never":
        raise SpecError(
            "contract.drift.retrain: a retraining starts when drift rejects the data, and fail_on is never.",
            remedy="Set contract.drift.fail_on to critical or warning, or leave retrain out.",
        )


def _refuse_without_effect(arguments: argparse.Namespace) -> None:
    """UsageError for a time zone without a schedule, and for a store's address that a spec could not have."""
    if arguments.timezone is not None and arguments.cron in (None, "off"):
        raise UsageError(
            "--timezone has no effect without --cron.", remedy="Give the schedule, too: --cron '0 3 * * *'."
        )
    if arguments.store is not None:
        load_store(arguments.store, None)


def _name(name: str) -> str:
    try:
        return valid_name(name)
    except ValueError as error:
        raise UsageError(f"--name: {error}.", remedy="Choose another name for the deployment.") from error
