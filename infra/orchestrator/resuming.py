"""Has dead runs and lost flow runs carried out again by Prefect, or ends them; and kills conductors on game days.

A flow run with a deployment is executed again as it is, so that its name, deployment and trigger stay; a worker of its
pool takes it. A run that was started by hand, or whose pool has no worker online, is resumed by a flow run of the
deployment `resume/POOL` of the reaper's own pool.

A flow run is lost if its process died where no store says so. A worker that dies leaves its flow runs `Pending` or
`Running` for ever, and one that lives says `Crashed` of a process that died before it opened a run. No worker takes
such a flow run again, and a reaper of stores finds no run, or one whose verdict Prefect does not know. Executed again,
it opens the run by its key, or reports its verdict. One that a command carried out itself, or that only looks at
something, is ended. What is `Cancelling`, Prefect's server ends by itself after 300 s.

The owner of a work pool agrees to game days by naming the pool in a Prefect variable.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from data_contracts.errors import Crashed as CrashedError
from data_contracts.errors import Fenced, StorageUnavailable, UsageError
from data_contracts.executions import Crash, FlowRunState, resume_key
from data_contracts.run_report import RunReport
from infra.orchestrator.api import asking, if_there, unreachable_is_unavailable
from infra.orchestrator.automations import is_watched
from infra.orchestrator.deployments import (
    DAY_PAGE,
    REAPER,
    SENSOR,
    UPKEEP,
    ensure_resume_deployment,
    find_pool,
    lacks_worker,
)
from infra.orchestrator.events import announce_end, announce_not_resumed, announce_resumed, announce_unopened

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


T = TypeVar("T")
# The tag of a flow run that a CI job waits for.
CI_TAG = "trainwright-ci"
_STATES: dict[str, Literal["asked", "cancelled", "stopped", "ended"]] = {
    **dict.fromkeys(("SCHEDULED", "PENDING"), "asked"),
    **dict.fromkeys(("CANCELLED", "CANCELLING"), "cancelled"),
    "PAUSED": "stopped",
    **dict.fromkeys(("COMPLETED", "FAILED", "CRASHED"), "ended"),
}
_AGAIN = "AwaitingRetry"
_DIED = "ProcessDied"
# As `tasks.run.run.new_run_id` makes them: no other flow run's name has such a word.
_RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")

# Crashes of one run that are looked through; the default budget is three in a row.
_MOST_CRASHES = 100
# So many of Prefect's heartbeats that did not come mean that a process is dead: with the default of 180 s, longer than
# an image takes to be fetched. If it lives nevertheless, the second process attaches to the first.
MISSED_HEARTBEATS = 5
# A flow run is given back so often; what kills its process each time would kill the next one, too.
MOST_STARTS = 5
# An older crash is left to a person, as what an earlier version left.
CRASHED_S = 3 * 86400.0
_RUNS = ("retrain", "resume")
_LOOKS = (REAPER.flow, DAY_PAGE.flow, SENSOR.flow, UPKEEP.flow)
_PROCESS_DIED = "Its process died."
GAME_DAY_VARIABLE = "trainwright_gameday"

log = logging.getLogger("trainwright")


class PrefectResumer:
    """Implements `tasks.run.executions.Resumer` with the Prefect server that this process uses.

    Args:
        pool: the work pool whose workers resume runs that cannot be executed again where they were.
        here: whether the caller may resume a run itself if no worker of that pool is online.
    """

    def __init__(self, pool: str, *, here: bool = False) -> None:
        self._pool, self._here = pool, here

    def state_of(self, flow_run: str | None, run_id: str) -> FlowRunState:
        """How a flow run stands; None: the one that the server says is of this run. StorageUnavailable."""
        return _ask_server(lambda client: _state_of(_flow_run(client, flow_run) or _own_flow_run(client, None, run_id)))

    def requested(self, crash: Crash, key: str) -> FlowRunState:
        """How the flow run stands that was asked for after a crash; `gone` if nothing was. StorageUnavailable."""

        def look(client: SyncPrefectClient) -> FlowRunState:
            if (made := _by_key(client, key)) is not None:
                return _state_of(made)
            same = _state_of(_own_flow_run(client, crash.flow_run, crash.run_id))
            return same if same.state == "asked" or same.run_count > crash.run_count else FlowRunState("gone")

        return _ask_server(look)

    def resume(self, crash: Crash, store: str, pipeline: str, key: str) -> str | None:
        """Ask for the run to be resumed; returns how, or None if the caller must do it itself.

        Raises:
            Fenced: a person cancelled or suspended its flow run since the caller looked.
            StorageUnavailable: the server does not answer.
        """

        def ask(client: SyncPrefectClient) -> str | None:
            same = _own_flow_run(client, crash.flow_run, crash.run_id)
            if _state_of(same).state in ("cancelled", "stopped"):
                raise Fenced(f"The flow run of {crash.run_id} was cancelled or suspended meanwhile.")
            if same is not None and _is_served(client, same):
                return _execute_again(client, same, crash)
            if same is not None and _state_of(same).state == "running":
                end_dead(client, same.id, "Its process died; another flow run resumes the run.")
            pool = if_there(lambda: client.read_work_pool(self._pool)) if self._here else find_pool(client, self._pool)
            if pool is None or (self._here and lacks_worker(client, pool)):
                return None
            made = client.create_flow_run_from_deployment(
                ensure_resume_deployment(client, pool.name, pool.type),
                parameters={"run_id": crash.run_id, "store": store},
                idempotency_key=key,
                # A CI job that waits for the run follows it, and needs its report.
                tags=[CI_TAG] if same is not None and CI_TAG in same.tags else None,
            )
            return f"the flow run {made.name} on the work pool {pool.name} resumes it"

        notified = _ask_server(lambda client: _server_told(client, crash))
        how = _ask_server(ask)
        sentence = f"{crash.run_id} had lost its process: {how or 'it is resumed by hand'}."
        announce_resumed(pipeline, crash.run_id, crash.n, crash.flow_run, sentence, key, notified=notified)
        return how

    def release(self, leases: list[str]) -> None:
        """Free the slots of a dead gang; a lease that has ended frees nothing more. StorageUnavailable."""
        for lease in leases:
            with contextlib.suppress(ValueError):  # not an id
                number = UUID(lease)
                _ask_server(lambda client, number=number: client.release_concurrency_slots_with_lease(number))  # type: ignore[misc]

    def end_nodes(self, store: str, training: str) -> None:
        """Cancel the flow runs of a dead gang's nodes that no worker has begun. StorageUnavailable."""
        from prefect.states import Cancelled

        def end(client: SyncPrefectClient) -> None:
            for one in _nodes_waiting(client, store, training):
                client.set_flow_run_state(one.id, Cancelled(message="Its conductor died."), force=True)

        _ask_server(end)

    def gave_up(self, run_id: str, pipeline: str, flow_run: str | None, sentence: str) -> None:
        """Tell people that a run is not resumed by itself."""
        announce_not_resumed(pipeline, run_id, flow_run, sentence)
        with contextlib.suppress(Exception), asking(retries=1) as client:
            same = _own_flow_run(client, flow_run, run_id)
            if same is not None and _state_of(same).state == "running":
                end_dead(client, same.id, sentence)

    def end_cancelled(self, report: RunReport, flow_run: str | None) -> None:
        """Tell people that a run ended as cancelled, and end its flow run; the next look does what fails here."""
        from prefect.states import Cancelled

        announce_end(report, flow_run)
        with contextlib.suppress(Exception), asking(retries=1) as client:
            same = _own_flow_run(client, flow_run, report.run_id)
            if same is not None and same.state is not None and same.state.is_cancelling():
                client.set_flow_run_state(same.id, Cancelled(message=report.sentence), force=True)


def _ask_server(question: Callable[[SyncPrefectClient], T]) -> T:
    """The server's answer; StorageUnavailable if it does not answer."""
    with unreachable_is_unavailable(), asking(retries=2) as client:
        return question(client)


def _is_served(client: SyncPrefectClient, flow_run: FlowRun) -> bool:
    """Whether a worker can take the flow run again: its deployment is there, and its pool has one online."""
    deployment, name = flow_run.deployment_id, flow_run.work_pool_name
    if deployment is None or name is None or if_there(lambda: client.read_deployment(deployment)) is None:
        return False
    pool = if_there(lambda: client.read_work_pool(name))
    return pool is not None and not lacks_worker(client, pool)


def _flow_run(client: SyncPrefectClient, flow_run: str | None) -> FlowRun | None:
    with contextlib.suppress(ValueError):  # not an id
        number = UUID(flow_run or "")
        return if_there(lambda: client.read_flow_run(number))
    return None


def _own_flow_run(client: SyncPrefectClient, flow_run: str | None, run_id: str) -> FlowRun | None:
    """A flow run, if the server says itself that it is of this run; None if not.

    Its id comes from the store: whoever can write there could have any flow run of the server executed again or ended.
    The server is asked for it if the store names none: its process died before it began.
    """
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
    from prefect.client.schemas.sorting import FlowRunSort

    if flow_run is None:
        named = FlowRunFilter(name=FlowRunFilterName(like_=run_id))
        found = client.read_flow_runs(flow_run_filter=named, sort=FlowRunSort.EXPECTED_START_TIME_ASC)
    else:
        found = [one for one in [_flow_run(client, flow_run)] if one is not None]
    return next((one for one in found if run_id in run_ids_of(one)), None)


def run_ids_of(flow_run: FlowRun) -> list[str]:
    """The runs that the server itself says a flow run is of: at most one, in its name or as what it resumes."""
    # The run's id is in the name from the time when the run was opened (`flows.flow_runs.name_flow_run`).
    named = [*flow_run.name.split(), str(flow_run.parameters.get("run_id"))]
    return [word for word in named if _RUN_ID.fullmatch(word)]


def resumption_of(client: SyncPrefectClient, flow_run: FlowRun) -> FlowRun | None:
    """The flow run that a reaper made since this one ended, to resume its run; None if there is none."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
    from prefect.client.schemas.sorting import FlowRunSort

    keys = [resume_key(run_id, n) for run_id in run_ids_of(flow_run) for n in range(_MOST_CRASHES)]
    if not keys or flow_run.state is None:
        return None
    wanted = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys))
    made = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.START_TIME_DESC)
    ended = flow_run.state.timestamp
    return next((one for one in made if one.created is not None and one.created >= ended), None)


def _server_told(client: SyncPrefectClient, crash: Crash) -> bool:
    """Whether the server told people of a crash by itself, when the flow run's worker reported it."""
    same = _own_flow_run(client, crash.flow_run, crash.run_id)
    if same is None or same.state is None or same.state.name != "Crashed":
        return False
    deployment = same.deployment_id
    return deployment is not None and bool(if_there(lambda: is_watched(client, deployment)))


def _by_key(client: SyncPrefectClient, key: str) -> FlowRun | None:
    """The flow run that was made with an idempotency key."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey

    wanted = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
    return next(iter(client.read_flow_runs(flow_run_filter=wanted, limit=1)), None)


def _nodes_waiting(client: SyncPrefectClient, store: str, training: str) -> list[FlowRun]:
    """The nodes of a gang that no worker has begun. Gangs of other stores and runs may have the same tag."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        FlowRunFilterTags,
    )
    from prefect.client.schemas.objects import StateType

    waits = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING]))
    tags = FlowRunFilterTags(all_=[f"training:{training.rpartition('/')[2]}"])
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags, state=waits))
    asked = store, training
    return [one for one in found if (one.parameters.get("store"), one.parameters.get("training")) == asked]


def _state_of(flow_run: FlowRun | None) -> FlowRunState:
    if flow_run is None:
        return FlowRunState("gone")
    kind = "" if flow_run.state is None else flow_run.state.type.value
    return FlowRunState(_STATES.get(kind, "running"), flow_run.run_count)


def _execute_again(client: SyncPrefectClient, flow_run: FlowRun, crash: Crash) -> str:
    """Let a worker of its pool execute a flow run once more, unless somebody has asked for that already."""
    from prefect.states import Scheduled

    if _state_of(flow_run).state != "asked" and flow_run.run_count <= crash.run_count:
        message = f"The process that carried it out died (crash {crash.n + 1})."
        client.set_flow_run_state(flow_run.id, Scheduled(name=_AGAIN, message=message), force=True)
    return f"its flow run {flow_run.name} is executed again by a worker of {flow_run.work_pool_name}"


def end_dead(client: SyncPrefectClient, flow_run: UUID, sentence: str) -> None:
    """Say of a flow run whose process is dead that it crashed: the server would list it as running for ever.

    Under another name than a worker's, because the reaper tells people of it itself (`automations.watch`).
    """
    from prefect.states import Crashed

    client.set_flow_run_state(flow_run, Crashed(name=_DIED, message=sentence), force=True)


def start_lost_again(silent_s: float | None = None) -> list[str]:
    """Let workers take flow runs again whose process is lost, or end them; what was done, in sentences.

    Raises: StorageUnavailable.

    Args:
        silent_s: how long a process must have been silent; default: `MISSED_HEARTBEATS` of Prefect's heartbeats.
    """
    from prefect.settings import get_current_settings

    every_s = get_current_settings().flows.heartbeat_frequency
    if silent_s is None:
        silent_s = MISSED_HEARTBEATS * (every_s or 180)
    with unreachable_is_unavailable(), asking(retries=2) as client:
        return [
            answer(client, one)
            for flows, answer in ((_RUNS, _start_again), (_LOOKS, _end_lost))
            for one in _unended(client, flows)
            if _is_lost(client, one, silent_s, beats=every_s is not None) and _is_as_seen(client, one)
        ]


def _unended(client: SyncPrefectClient, flows: Collection[str]) -> Iterable[FlowRun]:
    """The flow runs of some flows that no process may be carrying out."""
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    kinds = [StateType.PENDING, StateType.RUNNING, StateType.CRASHED]
    ours = FlowFilter(name=FlowFilterName(any_=list(flows)))
    states = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=kinds)))
    newest = FlowRunSort.EXPECTED_START_TIME_DESC
    found = client.read_flow_runs(flow_filter=ours, flow_run_filter=states, sort=newest)
    # Nobody starts a look again, nor what a command carried out itself, and what that opened is its store's matter.
    return (
        one
        for one in found
        if one.state is not None
        and ((flows is _RUNS and one.deployment_id is not None) or not (one.state.is_crashed() or run_ids_of(one)))
    )


def _is_lost(client: SyncPrefectClient, flow_run: FlowRun, silent_s: float, *, beats: bool) -> bool:
    """Whether a flow run's process is lost.

    Args:
        beats: whether processes of flow runs send heartbeats.
    """
    assert flow_run.state is not None
    now, since = datetime.now(UTC), flow_run.state.timestamp
    if flow_run.state.is_crashed():  # one that had opened a run is its store's matter
        recent = since > now - timedelta(seconds=CRASHED_S)
        return recent and not run_ids_of(flow_run) and not (flow_run.state.message or "").startswith(_PROCESS_DIED)
    before = now - timedelta(seconds=silent_s)
    if flow_run.state.is_pending() or since > before:
        return since <= before
    return beats and not _has_beaten(client, flow_run, before)


def _has_beaten(client: SyncPrefectClient, flow_run: FlowRun, since: datetime) -> bool:
    """Whether the server has had a heartbeat of a flow run's process since a time."""
    wanted = {
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{flow_run.id}"]},
        # The clock of its machine may be ahead.
        "occurred": {"since": since.isoformat(), "until": (since + timedelta(days=7)).isoformat()},
    }
    return bool(client.request("POST", "/events/filter", json={"filter": wanted, "limit": 1}).json()["events"])


def _is_as_seen(client: SyncPrefectClient, seen: FlowRun) -> bool:
    """Whether a flow run is still in the state that it was seen in: somebody may have cancelled it since."""
    current = client.read_flow_run(seen.id).state
    return current is not None and seen.state is not None and current.id == seen.state.id


def _end_lost(client: SyncPrefectClient, flow_run: FlowRun) -> str:
    assert flow_run.state is not None
    end_dead(client, flow_run.id, _PROCESS_DIED)
    said = f"the flow run {flow_run.name} was {flow_run.state.type.value.lower()} without a process, and is ended"
    log.info("%s", said)
    return said


def _start_again(client: SyncPrefectClient, flow_run: FlowRun) -> str:
    """Have a lost flow run executed again if it has a deployment, else end it; what was done."""
    from prefect.states import Crashed, Scheduled

    if flow_run.deployment_id is None:
        return _end_lost(client, flow_run)
    assert flow_run.state is not None
    starts = sum((state.message or "") == _PROCESS_DIED for state in client.read_flow_run_states(flow_run.id))
    was = flow_run.state.type.value.lower()
    if starts >= MOST_STARTS:
        error = CrashedError(
            f"{_PROCESS_DIED} The flow run {flow_run.name} was given to workers {starts} times before."
        )
        client.set_flow_run_state(flow_run.id, Crashed(message=error.message), force=True)
        announce_unopened(client.read_deployment(flow_run.deployment_id).name, str(flow_run.id), error)
        return error.message
    client.set_flow_run_state(flow_run.id, Scheduled(name="AwaitingRetry", message=_PROCESS_DIED), force=True)
    said = f"the flow run {flow_run.name} was {was} without a process, and is given to a worker again"
    log.info("%s", said)
    return said


def agreed(value: Any, pool: str) -> bool:
    """Whether the variable's value, a list of names or one name, has the pool."""
    return pool == value or (isinstance(value, list) and pool in value)


def refuse_without_consent(pool: str) -> None:
    """UsageError if nobody has named the pool in the variable; StorageUnavailable if the server does not answer."""
    with unreachable_is_unavailable(), asking(retries=2) as client:
        find_pool(client, pool, "train.pool")
        variable = client.read_variable_by_name(GAME_DAY_VARIABLE)
    if variable is None or not agreed(variable.value, pool):
        raise UsageError(
            f"train.pool: nobody has agreed to game days on the work pool {pool}.",
            remedy=f"""Whoever owns the pool does so with: prefect variable set {GAME_DAY_VARIABLE} '["{pool}"]'.""",
        )


def end_dead_conductor(pool: str, flow_run: str, store: str, training: str, leases: list[str]) -> None:
    """What the reaper does for a dead run: free the slots of its gang, and end the flow runs that nobody ends now.

    Args:
        flow_run: the conductor's, "" if it had none yet; leases: the concurrency leases that it took.
    """
    from prefect.states import Crashed

    # Without an answer, slots are free two minutes later, and waiting nodes are fenced.
    with contextlib.suppress(StorageUnavailable):
        resumer = PrefectResumer(pool)
        resumer.release(leases)
        resumer.end_nodes(store, training)
    with contextlib.suppress(Exception), asking(retries=1) as client:
        client.set_flow_run_state(UUID(flow_run), Crashed(message="A game day killed its process."), force=True)
