"""The processes that carry out a run: one at a time, each recorded; and how the run goes on when one of them died.

`attach`: a second process that is started for the same run waits for the first one's verdict, and continues the run if
there is none.

`reap` finds runs whose process died without a report, and has them resumed within their budget `retry.crashed`. The
lease of such a run has a dead holder, or none, if its process died before it took the lease. Runs that ended only
because the Prefect server was away are resumed, too. A reaper takes the lease as any conductor would, so two reapers
cannot answer one crash, and a process that was only stopped is fenced. Each answered crash is a record, created once
before the reaper requests a new execution. If the reaper is killed in between, the next one repeats the request, and
no crash counts twice.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import uuid
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Protocol

from data_contracts.canonical import is_name
from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Crashed,
    Fenced,
    Interrupted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
)
from data_contracts.executions import Crash, Execution, FlowRunState, resume_key
from data_contracts.messages.commands import REAP, Reaped, ReapRequest, RunBegun, RunReaped
from data_contracts.pipeline_spec.data import MEMORY_SHARE
from data_contracts.run_report import RunReport, StageResult
from infra import stopping
from infra.audit import now
from infra.child import Handlers, run_child
from infra.garbage import note_names
from infra.orchestrator.events import announce_stall
from infra.processes.environment import IdleLimit
from infra.processes.processes import ProcessId, uninterrupted
from infra.records.nodes import note_earlier
from infra.stopping import HandedOver
from infra.store import Lease, Store, Versioned, layout
from infra.store.lease import PATIENCE_S, LeaseKeeper, held_lease, process_of, standing_still, with_process
from tasks.run.progress import on_page
from tasks.run.report import finished_report, latest_report, num_attempts, report
from tasks.run.resolve import read_inputs
from tasks.run.run import Run, artifact_key

LOOK_EVERY_S = 0.2
log = logging.getLogger("trainwright")
# For a reaper's child between two runs; a run takes a few requests to the store and to Prefect.
IDLE = IdleLimit(hang_s=600.0)
# A run without a lease that is older is not resumed.
OLD = timedelta(days=3)
# A reaper looks at this many runs, the newest first: run ids sort by time.
NEWEST = 1000


def attach(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap the function that carries out a run: return a finished run's report, and wait for a run in progress.

    A run that ended without a final verdict, or whose process died, continues here. If a run ends while this process
    waits, it has ended for both, unless the cause lay outside (exit code 5). Attaching saves work and gives one report.
    Work that must not happen twice is fenced elsewhere (by a training's lease, by create-once).
    """

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        if done := final_report(run):
            return done
        place = layout.lease(layout.run(run.run_id))
        holder = f"{run.run_id}/{uuid.uuid4().hex[:12]}"
        # The keeper's thread does not know the flow run otherwise.
        context = contextvars.copy_context()
        keeper = LeaseKeeper(run.store, place, holder, on_away=lambda error: context.run(_tell_of_stall, run, error))
        token: int | None = None
        announced, goes_on, before = False, False, num_attempts(run)
        try:
            keeper.start()
            while (token := keeper.token(LOOK_EVERY_S)) is None:
                stopping.check()
                if done := final_report(run):
                    return done
                if keeper.is_waiting and not announced:
                    log.info("another process carries out the run %s; waiting for its verdict", run.run_id)
                    announced = True
            if done := final_report(run) or _ended_meanwhile(run, before):
                return done
            before = num_attempts(run)
            begin_execution(run, token)
            try:
                return work(run)
            except HandedOver:
                note_handed_over(run, token)
                raise
        except HandedOver:  # the next process need not wait
            goes_on = True
            raise
        finally:
            with uninterrupted():
                reported = not goes_on and _has_reported(run, before)
                if reported and token is not None:
                    with contextlib.suppress(TrainwrightError, FileNotFoundError):  # gc then reads the records itself
                        note_names(run.store, run.run_id, token, run.key)
                keeper.stop(abandon=not goes_on and not reported)

    return carry_out


def _tell_of_stall(run: Run, error: StorageUnavailable) -> None:
    """Say that the run's store takes nothing, such as a full disk: its stage waits, and nothing else can say so."""
    log.warning("%s waits: %s", run.run_id, error)
    announce_stall(run.spec.name, run.run_id, error)


def _has_reported(run: Run, before: int) -> bool:
    """Whether the store says how the run ended; without that, whatever ends this process is a crash."""
    try:
        return finished_report(run) is not None or num_attempts(run) > before
    except TrainwrightError:
        return False


def final_report(run: Run) -> RunReport | None:
    """The run's report if it has a final verdict; UsageError if such a run was asked to go back to a step."""
    done = finished_report(run)
    if done is not None and run.from_step is not None:
        raise UsageError(
            f"The run {run.run_id} has ended ({done.verdict}) and cannot continue from step {run.from_step:,}.",
            remedy="Leave --from out, or run the spec with --new to train again.",
        )
    return done


def _ended_meanwhile(run: Run, before: int) -> RunReport | None:
    """The report of the process that this one waited for, if it ended this run and no retry is needed."""
    if num_attempts(run) == before or run.from_step is not None:
        return None
    report = latest_report(run.store, run.run_id)
    return None if report is None or report.exit_code == Interrupted.exit_code else report


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
    def parse(value: dict[str, object]) -> Execution:
        found = Execution.from_json(value)
        _refuse_other((found.run_id, found.token), (run_id, token))
        return found

    return store.read_as(layout.execution(run_id, token), parse)


def crashes_of(store: Store, run_id: str) -> list[Crash]:
    """The run's crashes that were answered, from 0; CorruptError for one of another run, which could name any."""

    def read(n: int) -> Crash:
        def parse(value: dict[str, object]) -> Crash:
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


def _refuse_other(subject: tuple[str, int], expected: tuple[str, int]) -> None:
    if subject != expected:
        raise ValueError(f"it is about {subject[0][:80]!a}, number {subject[1]}")


def _numbers(names: list[str]) -> list[int]:
    stems = (name.removesuffix(".json") for name in names)
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def _flow_run() -> str | None:
    """Id of the flow run that this process executes."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    return None if context is None or context.flow_run is None else str(context.flow_run.id)


class Resumer(Protocol):
    """Has runs resumed by any available worker. All methods may raise StorageUnavailable."""

    def state_of(self, flow_run: str | None, run_id: str) -> FlowRunState:
        """How a flow run stands; None: the one that the server says is of this run."""

    def requested(self, crash: Crash, key: str) -> FlowRunState:
        """The state of the flow run that was requested after a crash; `gone` if none was requested."""

    def resume(self, crash: Crash, store: str, pipeline: str, key: str) -> str | None:
        """Request that the run is resumed, once for each `key`; returns how, or None if the caller must resume it."""

    def release(self, leases: list[str]) -> None:
        """Free the slots of a dead gang at once; otherwise they expire after a while."""

    def end_nodes(self, store: str, training: str) -> None:
        """Cancel the flow runs of a dead gang's nodes that no worker has begun."""

    def end_cancelled(self, report: RunReport, flow_run: str | None) -> None:
        """Tell people that a run ended as cancelled, and end its flow run. Raises nothing."""

    def gave_up(self, run_id: str, pipeline: str, flow_run: str | None, sentence: str) -> None:
        """Tell people that a run is not resumed by itself. Raises nothing."""


def reap_stores(
    stores: Iterable[Store], look: Callable[[Store], list[Reaped]]
) -> tuple[list[Reaped], list[Interrupted]]:
    """`look` at each store; returns what was done, and the errors of stores that could not be looked at."""
    reaped: list[Reaped] = []
    away: list[Interrupted] = []
    for store in stores:
        try:
            reaped += look(store)
        except Interrupted as error:
            log.warning("%s was not looked at: %s", store.uri, error)
            away.append(error)
    return reaped, away


def reap_apart(store: Store, pool: str, *, here: bool = False) -> list[Reaped]:
    """`reap` in a child process, with a new child for the other runs if a run's records end one. StorageUnavailable.

    Args:
        pool, here: as for `infra.orchestrator.resuming.PrefectResumer`.
    """
    reaped: list[Reaped] = []
    begun: list[str] = []
    handlers: Handlers = {
        RunBegun: lambda message: begun.append(message.run_id),
        RunReaped: lambda message: reaped.append(message.reaped),
    }
    while True:
        num_begun, request = len(begun), ReapRequest(store=store.address, pool=pool, here=here, skipped=begun)
        try:
            run_child(REAP, request, memory_share=MEMORY_SHARE, limit=IDLE, on_report=handlers)
            return reaped
        except TrainwrightError as error:
            if len(begun) == num_begun:  # no run's records are the reason
                raise error if isinstance(error, Interrupted) else StorageUnavailable(error.message) from error
            reaped.append(_lost(store, begun[-1], error))
            log.warning("%s", reaped[-1].sentence)


def reap(
    store: Store,
    resumer: Resumer,
    *,
    patience_s: float = PATIENCE_S,
    skipped: Collection[str] = (),
    on_begun: Callable[[str], None] = lambda _: None,
    on_reaped: Callable[[Reaped], None] = lambda _: None,
) -> list[Reaped]:
    """Look for dead runs in a store and have each resumed, or end it; returns what was done. StorageUnavailable.

    Args:
        skipped: runs that are not looked at.
        on_begun: called with each run before its records are read.
        on_reaped: called with each outcome.
    """
    runs = [run_id for run_id in unfinished_runs(store) if run_id not in skipped]
    paths = {layout.lease(layout.run(run_id)): run_id for run_id in runs}
    damaged: dict[str, TrainwrightError] = {}
    still = standing_still(
        store,
        paths,
        patience_s=patience_s,
        unreadable=damaged.__setitem__,
        is_missed=lambda path: _never_began(store, paths[path]),
    )
    reaped: list[Reaped] = []
    for path, run_id in paths.items():
        on_begun(run_id)
        error = damaged.get(path)
        outcome = None
        if error is not None:
            outcome = _lost(store, run_id, error)
        elif path in still or store.list(layout.crashes(run_id)) or _lacked_server(store, run_id):
            outcome = _reap_one(store, run_id, still.get(path), resumer)
        if outcome is not None:
            on_reaped(outcome)
            reaped.append(outcome)
    return reaped


def unfinished_runs(store: Store) -> Iterable[str]:
    """The newest runs without a final verdict."""
    for run_id in sorted(store.list(layout.runs()), reverse=True)[:NEWEST]:
        # Trainwright did not make entries that are not valid names.
        if is_name(run_id) and not store.exists(layout.report(run_id)) and store.exists(layout.resolved(run_id)):
            yield run_id


def _never_began(store: Store, run_id: str) -> bool:
    """Whether a run whose lease is free has neither ended nor been resumed, by the names of its records alone.

    An old one is left to a person: an earlier version kept no report of a run that was stopped between two stages.
    """
    is_old = run_id < f"{datetime.now(UTC) - OLD:%Y%m%d-%H%M%S}"
    return not is_old and not store.list(layout.run_attempts(run_id)) and not store.list(layout.crashes(run_id))


def _lacked_server(store: Store, run_id: str) -> bool:
    """Whether a run ended only because the Prefect server was away; what is damaged did not."""
    with contextlib.suppress(TrainwrightError):
        last = latest_report(store, run_id)
        return last is not None and last.lacked_server
    return False


def _reap_one(store: Store, run_id: str, seen: Versioned | None, resumer: Resumer) -> Reaped | None:
    """Handle one run, whatever is wrong with it: the other runs must be handled, too."""
    try:
        return _DeadRun(store, run_id, resumer).answer(seen)
    except Fenced:
        return None
    except Interrupted as error:
        return Reaped(run_id, store.uri, "left", f"{run_id} could not be resumed now: {error.message}")
    except TrainwrightError as error:
        return _lost(store, run_id, error)
    except Exception as error:  # records of a form that nobody foresaw
        log.debug("%s", run_id, exc_info=True)
        return _lost(store, run_id, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _lost(store: Store, run_id: str, why: object) -> Reaped:
    return Reaped(run_id, store.uri, "lost", f"{run_id} cannot be resumed: {why}")


class _DeadRun:
    def __init__(self, store: Store, run_id: str, resumer: Resumer) -> None:
        self.store, self.run_id, self.resumer = store, run_id, resumer
        self.run = Run(read_inputs(store, run_id), store)
        self.lease_path = layout.lease(layout.run(run_id))

    def answer(self, seen: Versioned | None) -> Reaped | None:
        """Take the lease and decide; None if the run turns out to be alive, ended, or stopped by a person."""
        execution = newest_execution(self.store, self.run_id)
        flow_run = None if execution is None else execution.flow_run
        flow_run_state = self.resumer.state_of(flow_run, self.run_id)
        if flow_run_state.state in ("stopped", "asked"):
            return None
        # A cancelled flow run is executed by nobody any more: its run ends here.
        holder = with_process(f"reaper/{uuid.uuid4().hex[:12]}")
        if seen is None:
            seen = self.store.pointer(self.lease_path).read()
            if (seen is not None and not seen.value["released"]) or not self._is_forgotten(execution):
                return None
        lease = Lease.seize(self.store, self.lease_path, holder, seen)
        if lease is None:
            return None
        try:
            self._free(None if seen is None else process_of(seen.value["holder"]))
            return self._decide(lease, execution, flow_run_state)
        finally:
            lease.release()

    def _is_forgotten(self, execution: Execution | None) -> bool:
        """Whether no report ends the run, and no process was asked for that is about to take its free lease."""
        crash = self._unbegun(execution)
        if crash is None:
            return not self._has_ended(execution, num_ends(self.store, self.run_id))
        return self.resumer.requested(crash, resume_key(self.run_id, crash.n)).state in ("gone", "ended", "cancelled")

    def _decide(self, lease: Lease, execution: Execution | None, flow_run_state: FlowRunState) -> Reaped | None:
        ends = num_ends(self.store, self.run_id)
        if self.store.exists(layout.report(self.run_id)) or self._has_ended(execution, ends):
            return None
        crash, asked = self._unbegun(execution), ""
        if crash is not None:
            asked = self.resumer.requested(crash, resume_key(self.run_id, crash.n)).state
            if asked in ("asked", "running", "stopped"):
                return None
        flow_run = None if execution is None else execution.flow_run
        if "cancelled" in (flow_run_state.state, asked):
            return self._cancel(lease, flow_run)
        if crash is not None and asked == "gone":  # the reaper died before it asked
            return self._ask(lease, crash)
        earlier = crashes_of(self.store, self.run_id)
        used, budget = sum(one.ends == ends for one in earlier), self.run.spec.retry.crashed
        if used >= budget:
            return self._give_up(lease, used, flow_run)
        crash = Crash(
            run_id=self.run_id,
            n=len(earlier),
            token=lease.token,
            ends=ends,
            flow_run=flow_run,
            run_count=flow_run_state.run_count,
            at=now(),
            by=lease.holder,
        )
        lease.confirm()
        if not self.store.create_once(layout.crash(self.run_id, crash.n), crash.to_json()):
            return None  # another reaper was faster
        return self._ask(lease, crash)

    def _has_ended(self, execution: Execution | None, ends: int) -> bool:
        """Whether the dead process had reported the end of the run, so that only its lease was left."""
        if execution is not None:
            return ends > execution.ends
        # Of an earlier version, which recorded no executions.
        return latest_report(self.store, self.run_id) is not None

    def _unbegun(self, execution: Execution | None) -> Crash | None:
        """The crash that was answered last, if no process has begun to carry out the run since."""
        crashes = crashes_of(self.store, self.run_id)
        if not crashes or (execution is not None and execution.token > crashes[-1].token):
            return None
        return crashes[-1]

    def _ask(self, lease: Lease, crash: Crash) -> Reaped:
        lease.confirm()
        how = self.resumer.resume(crash, self.store.uri, self.run.spec.name, resume_key(self.run_id, crash.n))
        which = f"crash {crash.n + 1}; {self.run.spec.retry.crashed} are retried in a row"
        why = "lacked the Prefect server" if _lacked_server(self.store, self.run_id) else "had lost its process"
        sentence = f"{self.run_id} of {self.run.spec.name} {why} ({which}); {how or 'resuming it here'}"
        log.info("%s", sentence)
        return Reaped(self.run_id, self.store.uri, "here" if how is None else "resumed", sentence)

    def _give_up(self, lease: Lease, used: int, flow_run: str | None) -> Reaped:
        times = {0: "is never resumed by itself", 1: "was resumed once"}.get(used, f"was resumed {used} times")
        happened = f"The process that carried out the run {self.run_id} died without a report"
        if _lacked_server(self.store, self.run_id):
            happened = f"The run {self.run_id} ended because the Prefect server was away"
        error = Crashed(f"{happened}, and the run {times} (retry.crashed: {self.run.spec.retry.crashed}).")
        self._report(lease, error)
        self.resumer.gave_up(self.run_id, self.run.spec.name, flow_run, str(error))
        log.warning("%s", error)
        return Reaped(self.run_id, self.store.uri, "ended", str(error))

    def _cancel(self, lease: Lease, flow_run: str | None) -> Reaped:
        error = Cancelled(f"The run {self.run_id} was cancelled in Prefect, and its process died before that.")
        self.resumer.end_cancelled(self._report(lease, error), flow_run)
        log.info("%s", error)
        return Reaped(self.run_id, self.store.uri, "cancelled", str(error))

    def _report(self, lease: Lease, error: TrainwrightError) -> RunReport:
        """Record the end of the run, with the stages that it carried out."""
        lease.confirm()
        for name in self.store.list(layout.stages(self.run_id)):
            told = self.store.read_as(f"{layout.stages(self.run_id)}/{name}", StageResult.model_validate)
            self.run.live.add_result(told)
        return report(self.run, error=error)

    def _free(self, process: ProcessId | None) -> None:
        """Fence the dead process's trainings, so that their nodes end, and free their slots."""
        if process is None:
            return
        for training in self._trainings():
            path = layout.lease(training)
            held = held_lease(self.store, path)
            if held is None or process_of(held.value["holder"]) != process:
                continue
            lease = Lease.seize(self.store, path, with_process("reaper"), held)
            if lease is not None:
                lease.release()
                with contextlib.suppress(Interrupted):  # slots are free by themselves later, and nodes see the token
                    self.resumer.release(self.store.list(layout.slots(training)))
                    self.resumer.end_nodes(self.store.uri, training)

    def _trainings(self) -> Iterable[str]:
        """The directories with a lease of their own: of trainings, and of the run's jobs on nodes elsewhere."""
        yield from (f"{layout.trainings()}/{name}" for name in self.store.list(layout.trainings()))
        remote_jobs = layout.remote_jobs(self.run_id)
        yield from (f"{remote_jobs}/{name}" for name in self.store.list(remote_jobs))
