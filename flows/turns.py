"""Flow runs that take turns: `schedule.overlap`, for runs that a schedule or an event started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect.exceptions import Abort
from prefect.states import Cancelled, Completed, State

from data_contracts.errors import TrainwrightError
from data_contracts.load import load_spec
from data_contracts.run_report import RunReport
from flows.flow_runs import overrides, started_by
from infra.orchestrator.flow_runs import stop_this_process
from infra.stopping import HandedOver
from infra.store import layout
from tasks.run.resolve import SENSOR_KEY
from tasks.run.run import Run, open_spec_store
from tasks.schedules.turns import Skipped, Turn

# Nobody watches these: a person or CI that starts a run means now.
BY_ITSELF = ("schedule", "automation")
_GAVE_WAY = "A newer run took its place (schedule.overlap: cancel_old)."


def first_turn(spec: str, set: str, store: str | None, key: str | None) -> Turn | None:
    """The turn of a flow run that begins; None if it takes none, or if its spec or store cannot be opened.

    An error is left to the flow itself, which reports it.
    """
    started = started_by(key)
    if started["trigger"] not in BY_ITSELF:
        return None
    try:
        path = Path(spec).resolve()
        loaded = load_spec(path, overrides(set))
        if loaded.schedule.overlap is None:
            return None
        opened = open_spec_store(loaded, path.parent, store)
        known = opened.exists(layout.trigger(started["key"]))
    except TrainwrightError:
        return None
    scheduled, overlap = started["scheduled"], loaded.schedule.overlap
    if overlap == "skip" and started["key"].startswith(SENSOR_KEY):
        overlap = "queue"  # the sensor has moved on: nobody would train on what arrived
    return Turn(
        opened,
        loaded.name,
        overlap,
        started["key"],
        waits=known,
        scheduled_s=0 if scheduled is None else int(scheduled.timestamp()),
    )


def work_in_turn(work: Callable[[Run], RunReport], run: Run) -> RunReport:
    """Continue a run that nobody continues by hand: it waits for its turn, if the pipeline's runs take turns."""
    overlap = run.spec.schedule.overlap
    if overlap is None or run.resolved.trigger not in BY_ITSELF or started_by(None)["trigger"] in ("cli", "ci"):
        return work(run)
    with Turn(run.store, run.spec.name, overlap, f"resume:{run.run_id}", waits=True).hold(stop_this_process):
        return work(run)


def in_turn(turn: Turn | None, work: Callable[[], State[Any]]) -> State[Any]:
    """The state of `work`, which begins when it is its turn; `Skipped` if an earlier run is unfinished."""
    if turn is None:
        return work()
    try:
        with turn.hold(stop_this_process) as asked:
            return _worked(work, asked.is_set)
    except HandedOver as error:  # it waited; its worker gives the flow run to another one
        raise Abort(error.message) from error
    except Skipped as skipped:
        return Completed(name="Skipped", message=str(skipped), data={"verdict": "skipped", "sentence": str(skipped)})


def _worked(work: Callable[[], State[Any]], gave_way: Callable[[], bool]) -> State[Any]:
    try:
        state = work()
    except BaseException as signal:  # it came before there was a run
        if gave_way() and not isinstance(signal, Exception):
            return Cancelled(message=_GAVE_WAY)
        raise
    if state.is_cancelled() and gave_way():
        return state.model_copy(update={"message": f"{state.message} {_GAVE_WAY}"})
    return state
