"""Where a stage's work is done, as its `launcher` says; decides nothing of what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from data_contracts.spec.placed import Placed
from infra.cost import cost
from infra.launch.child import run_child
from infra.launch.errand import Place, laid_out, run_errand
from infra.launch.generation import Progress
from infra.store import layout
from tasks.run import Run, slug

log = logging.getLogger("trainwright")


def placed(run: Run, section: str, uri: str) -> dict[str, Any]:
    """What starts the nodes of a section's gang and admits them; nothing for processes on this machine.

    Args:
        uri: where the gang reports in the store.
    """
    spec: Placed = getattr(run.spec, section)
    if spec.pool is None:
        return {}
    # Prefect is not imported where a spec does without.
    from infra.orchestrator.gang import PoolGang, WorkPool
    from tasks.policies import run_tags

    tags = ("trainwright", f"pipeline:{slug(run.spec.name)}", f"stage:{section}", *run_tags(run.spec.tags))
    devices = run.spec.train.devices if section == "train" else 1
    pool = WorkPool(spec.pool, section, tags, run.spec.tags, run.spec.train.rollcall_timeout_s, devices)
    gang = PoolGang(run.store, uri, pool)
    return {"start": gang.start, "room": gang.room}


def done_by_child(
    run: Run, section: str, name: str, module: str, request: dict[str, Any], places: Sequence[Place]
) -> dict[str, Any]:
    """What a child process answers to a request: here, or on a node of the section's pool.

    Args:
        name: of this piece of work in the run; the same when the run is gone on with.
        places: what the request names by its place on the machine that does the work; the first is the project.
    """
    uri = layout.errand(run.run_id, name)
    elsewhere = placed(run, section, uri)
    if not elsewhere:
        project = laid_out(run.store, request, places, run.project)
        return run_child(module, request, project=project)

    def show(progress: Progress) -> None:
        if progress.sentence:
            log.info("  %s: %s", section, progress.sentence)

    return run_errand(
        *(run.store, uri, module, request, places),
        holder=run.run_id,
        retry=run.spec.retry,
        rollcall_timeout_s=run.spec.train.rollcall_timeout_s,
        on_progress=_once(show),
        on_spent=lambda seconds: run.spent.append(cost(seconds, run.resolved.price)),
        **elsewhere,
    )


def _once(show: Any) -> Any:
    """Calls `show` when the sentence is another than before."""
    last = ""

    def once(progress: Progress) -> None:
        nonlocal last
        if progress.sentence != last:
            last = progress.sentence
            show(progress)

    return once
