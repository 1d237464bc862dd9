"""The processes that carried out a run, by the store's records: when each began, and which of them died."""

from __future__ import annotations

import contextlib
import logging
from itertools import pairwise
from typing import Any

from data_contracts.errors import CorruptError, Fenced, TrainwrightError
from data_contracts.executions import Crash, Execution
from data_contracts.run_report import RunReport
from infra.audit import now
from infra.records.nodes import note_earlier
from infra.store import Store, layout
from tasks.run.progress import on_page
from tasks.run.run import Run, artifact_key

log = logging.getLogger("trainwright")


def begin_execution(run: Run, token: int) -> None:
    """Record that this process carries out the run; it holds the run's lease with this fencing token.

    If the process before it ended without a verdict, a warning says so, unless it handed the run over.
    """
    mine = Execution(
        run_id=run.run_id, token=token, ends=num_ends(run.store, run.run_id), flow_run=_flow_run(), started=now()
    )
    try:
        before = newest_execution(run.store, run.run_id)
    except CorruptError as error:  # it decides nothing here
        log.warning("%s", error)
        before = None
    if before is not None and before.ends == mine.ends and not _was_handed_over(run.store, before):
        log.warning(
            "the process that began to carry out %s at %s has ended without a verdict (crashed); this process "
            "continues with what the store has",
            run.run_id,
            before.started or "an unknown time",
            extra=on_page(artifact_key(run, "gang")),
        )
    run.store.create_once(layout.execution(run.run_id, token), mine.to_json())
    if token:
        note_earlier(run.store, run.run_id)
    run.note_environments()


def note_handed_over(run: Run, token: int) -> None:
    """Record that the process with this token handed the run over, because its worker was stopped as planned."""
    # Without the record it counts as a crash, which loses nothing.
    with contextlib.suppress(TrainwrightError):
        run.store.create_once(layout.handed_over(run.run_id, token), {"time": now()})


def _was_handed_over(store: Store, execution: Execution) -> bool:
    return store.exists(layout.handed_over(execution.run_id, execution.token))


def newest_execution(store: Store, run_id: str) -> Execution | None:
    """The newest process that began to carry out the run; None for a run of an earlier version."""
    tokens = _numbers(store.list(layout.executions(run_id)))
    return _execution(store, run_id, tokens[-1]) if tokens else None


def num_crashed(store: Store, run_id: str) -> int:
    """How many processes of the run ended without a verdict and did not hand it over, and another one followed."""
    tokens = _numbers(store.list(layout.executions(run_id)))
    executions = [_execution(store, run_id, token) for token in tokens]
    return sum(one.ends == after.ends and not _was_handed_over(store, one) for one, after in pairwise(executions))


def _execution(store: Store, run_id: str, token: int) -> Execution:
    def parse(value: dict[str, Any]) -> Execution:
        found = Execution.from_json(value)
        _refuse_other((found.run_id, found.token), (run_id, token))
        return found

    return store.read_as(layout.execution(run_id, token), parse)


def crashes_of(store: Store, run_id: str) -> list[Crash]:
    """The run's crashes that were answered, from 0; CorruptError for one of another run, which could name any."""

    def read(n: int) -> Crash:
        def parse(value: dict[str, Any]) -> Crash:
            found = Crash.from_json(value)
            _refuse_other((found.run_id, found.n), (run_id, n))
            return found

        return store.read_as(layout.crash(run_id, n), parse)

    return [read(n) for n in _numbers(store.list(layout.crashes(run_id)))]


def num_ends(store: Store, run_id: str) -> int:
    """How often the run has ended without a final verdict.

    The end of a fenced process, or for want of the Prefect server, does not count: another process continues the run.
    """
    attempts = range(len(store.list(layout.run_attempts(run_id))))
    reports = (store.read_as(layout.run_attempt(run_id, n), RunReport.from_json) for n in attempts)
    return sum((one.error or {}).get("cause") != Fenced.cause and not one.lacked_server for one in reports)


def _refuse_other(found: tuple[str, int], expected: tuple[str, int]) -> None:
    if found != expected:
        raise ValueError(f"it is about {found[0][:80]!a}, number {found[1]}")


def _numbers(names: list[str]) -> list[int]:
    stems = (name.removesuffix(".json") for name in names)
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def _flow_run() -> str | None:
    """Id of the flow run that this process executes."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    return None if context is None or context.flow_run is None else str(context.flow_run.id)
