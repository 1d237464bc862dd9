"""Runs a stage's work where its `launcher` says; the place does not affect the result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import Hung
from data_contracts.messages.children import A, Child, LaidOut, RemoteJob
from data_contracts.pipeline_spec.base import Placed
from data_contracts.resolved import Price
from infra.child import answer_of, run_child
from infra.gang.members import Progress
from infra.gang.remote_job import RemoteJobRequest, idle_limit, lay_out, run_remote_job, spent
from infra.orchestrator.launch_secret import launch_secret
from infra.store import layout
from infra.usage import cost
from tasks.budgets import allowance
from tasks.run.meter import follow, used_by_gang
from tasks.run.run import Run, slug
from tasks.stages.scoring_layout import RANK, ScoringLayout

if TYPE_CHECKING:
    from infra.orchestrator.gang import PoolGang

log = logging.getLogger("trainwright")


def pool_gang(run: Run, section: str, uri: str, devices: int = 1) -> PoolGang | None:
    """What starts and admits the nodes of a section's gang in its work pool; None without one: they run here.

    Args:
        uri: where the gang reports in the store.
        devices: of a node, where the section is not `train`.
    """
    spec: Placed = getattr(run.spec, section)
    if spec.pool is None:
        return None
    # Prefect is imported only for a spec that needs it.
    from infra.orchestrator.gang import PoolGang, WorkPool
    from tasks.policies import run_tags

    tags = ("trainwright", f"pipeline:{slug(run.spec.name)}", f"stage:{section}", *run_tags(run.spec.tags))
    devices = run.spec.train.devices if section == "train" else devices
    pool = WorkPool(spec.pool, section, tags, run.spec.tags, run.spec.train.rollcall_timeout_s, devices)
    return PoolGang(run.store, uri, pool)


def done_by_child(
    run: Run, section: str, name: str, child: Child[Any, A], request: LaidOut, gang: ScoringLayout | None = None
) -> A:
    """A child process's answer to a request; the child runs here, or on a node of the section's pool.

    Args:
        name: of this piece of work in the run; the same when the run continues.
        gang: the ranks that share the work; default one process.
    """
    uri = layout.errand(run.run_id, name)
    pool = pool_gang(run, section, uri, gang.devices if gang is not None else 1)
    if pool is None and (gang is None or not gang.is_gang):
        here = request.at(lay_out(run.store, request.needs, run.project))
        return run_here(run, child, here, project=here.project)

    follow(run, section, uri, local=pool is None)

    def show(progress: Progress) -> None:
        if progress.sentence:
            log.info("  %s: %s", section, progress.sentence)

    remote = RemoteJobRequest(
        uri=uri,
        job=RemoteJob.of(child.module, request),
        holder=run.run_id,
        retry=run.spec.retry,
        rollcall_timeout_s=run.spec.train.rollcall_timeout_s,
        withhold=run.withholds,
        secret=launch_secret(),
        hang_s=run.spec.train.hang_timeout_s,
        on_progress=_once(show),
        on_spent=lambda seconds: run.spent.append(cost(seconds, _price(run, section))),
        on_usage=lambda usage: used_by_gang(run, section, usage),
        allowance=allowance(run, section, local=pool is None),
        start=None if pool is None else pool.start,
        room=None if pool is None else pool.room,
    )
    if gang is not None and gang.is_gang:
        remote = replace(remote, nodes=gang.nodes, devices=gang.devices, entry=RANK, layout=gang.settings)
    return answer_of(child, run_remote_job(run.store, remote))


def _price(run: Run, section: str) -> Price:
    """What a node of a section costs. An earlier Trainwright recorded one price for all nodes of a run."""
    return run.resolved.price_of(section) or run.resolved.price


def run_here(
    run: Run, child: Child[Any, A], request: Any, *, project: Path | None = None, memory_share: float | None = None
) -> A:
    """Run the child on this machine, again after a hang while `retry.hung` lasts; see `infra.processes.environment`.

    Args:
        project, memory_share: as for `run_child`.
    """
    work = partial(run_child, child, request, project=project, withhold=run.withholds, memory_share=memory_share)
    return again_after_hangs(run, work)


def again_after_hangs(run: Run, work: Callable[..., A]) -> A:
    """What `work` returns, given the `limit` of a child's idle time; again after a hang while `retry.hung` lasts."""
    left = run.spec.retry.hung
    while True:
        try:
            return work(limit=idle_limit(run.store, run.spec.train.hang_timeout_s))
        except Hung as error:
            if not left:
                raise spent(error, run.spec.retry.hung) from error
            left -= 1
            log.warning("tried again (%s): %s", error.cause, error.message)


def _once(show: Any) -> Any:
    """Calls `show` only when the sentence changes."""
    last = ""

    def once(progress: Progress) -> None:
        nonlocal last
        if progress.sentence != last:
            last = progress.sentence
            show(progress)

    return once
