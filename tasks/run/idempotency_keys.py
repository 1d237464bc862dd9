"""Which run an idempotency key names: the first that claimed it. Two triggers with one key are one run."""

from __future__ import annotations

from typing import Any

from data_contracts.canonical import valid_name
from data_contracts.errors import UsageError
from data_contracts.executions import ScheduledTime
from data_contracts.resolved import Resolved
from infra.audit import now
from infra.store import Store, layout
from tasks.run.inputs import read_inputs
from tasks.run.options import SCHEDULE_KEY, RunOptions


def claim(store: Store, key: str, run_id: str) -> str:
    """The run id that owns this idempotency key: ours, or the first one's."""
    path = layout.trigger(key)
    if store.create_once(path, {"schema_version": 1, "run_id": run_id}):
        return run_id
    return store.read_as(path, _run_named)


def note_time(store: Store, pipeline: str, key: str, run_id: str) -> None:
    """Record that a scheduled time has its run, if the key is of one: `gc` deletes runs and their keys."""
    if key.startswith(SCHEDULE_KEY):
        record = ScheduledTime(key=key, run_id=run_id, at=now())
        store.create_once(layout.scheduled(pipeline, key), record.to_json())


def resolved_before(store: Store, key: str | None) -> Resolved | None:
    """The inputs of the run that owns this idempotency key; None if there is no such run yet."""
    run_id = None if key is None else store.find_as(layout.trigger(key), _run_named)
    if run_id is None or not store.claim(layout.run(run_id)):
        return None
    return read_inputs(store, run_id) if store.exists(layout.resolved(run_id)) else None


def of_pipeline(name: str, options: RunOptions, known: Resolved) -> Resolved:
    """The inputs of the run with this key; UsageError if a person chose the key, and its run is another pipeline's.

    A flow run's own key belongs to one pipeline, which may have been renamed between two executions.
    """
    if (other := known.spec["name"]) == name or options.has_own_key:
        return known
    raise UsageError(
        f"The key {options.key!r} is of the run {known.run_id} of the pipeline {other!r}, so {name!r} cannot use it.",
        remedy="Choose another --key: one key is one run, whatever the pipeline.",
    )


def _run_named(trigger: dict[str, Any]) -> str:
    return valid_name(trigger["run_id"])
