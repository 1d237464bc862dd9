"""The conductor of a training: it holds the lease, launches one generation after another and commits checkpoints.

A generation's nodes are started, roll-called, followed and ended, and a failure's cause is found. The conductor starts
no process itself: a launcher does, on this machine or elsewhere. It hears its nodes through a hub, keeps in the store
what decides, and never controls a rank directly.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    GangIncomplete,
    Hung,
    Interrupted,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
)
from data_contracts.executions import GangUsage
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import (
    CancelMarker,
    GangBeat,
    Heartbeat,
    Joined,
    Launch,
    Meeting,
    NodeBeat,
    NodeExit,
    RankAnswer,
    Retries,
    TrainingSummary,
    reports_of,
)
from data_contracts.pipeline_spec import RetrySpec
from data_contracts.pipeline_spec.train import SelectSpec
from data_contracts.records import FailureEvent, FailureKind
from infra import stopping
from infra.audit import now
from infra.gang.hub import Ended, Hub, News
from infra.gang.ledger import Ledger, adoptable, begun_generations, refuse_forged_result, why_from
from infra.gang.members import SLOW_S, Activity, Members, Node, OnMessage, Progress, RankReports
from infra.gang.membership import Launcher, Membership
from infra.gang.node import LOCAL, LocalLauncher
from infra.gang.rank_files import FIELD, Codes, codes_of_generation, generation_key
from infra.gang.recovery import (
    UNLIMITED,
    BudgetGuard,
    Over,
    Recovery,
    Replay,
    raise_why_over,
    restore_budgets,
)
from infra.processes.processes import terminable, uninterrupted
from infra.processes.this_process import now_s, wall_s
from infra.records.nodes import drained_nodes, record_failure, this_node
from infra.store import Store, layout
from infra.store.lease import PATIENCE_S, RENEW_EVERY_S, LeaseKeeper, Outage, patiently
from infra.store.records import parsed

log = logging.getLogger("trainwright")
# After the first node failed, the others get this long to report why they ended too.
SETTLE_S = 3.0
# A later generation waits at most this long for optional nodes: a Prefect worker polls every 10 s.
REGATHER_S = 15.0
# The nodes of a hung generation get this long to save their ranks' stacks.
STACKS_S = 8.0
# A node whose process runs on this machine may be silent this many times longer: the machine is busy.
BUSY_TIMES = 5
# So often what is known of the nodes is written to the store.
BEAT_EVERY_S = 10.0
# At most so many ranks are looked at in a second.
RANKS_PER_S = 20_000
WAIT_S = 0.2
MAX_BACKOFF_S = 30.0


@dataclass(frozen=True, kw_only=True)
class GangRequest:
    """What a training and a job on nodes have in common.

    Attributes:
        holder: who conducts; shown to another conductor that waits. `conduct` makes it unique.
        retry: how often each cause of failure is retried.
        rollcall_timeout_s: seconds within which the nodes of a generation must join.
        on_usage: called with what a generation's nodes used, once they are released.
        launcher: starts the nodes, all of a generation once its slots admit them.
        budget_guard: what the nodes may use; a gang that may use no more ends with a checkpoint.
        secret: of the machines that may conduct the training, see `infra.gang.rank_files`; None: of this machine alone.
    """

    holder: str
    retry: RetrySpec
    rollcall_timeout_s: float
    on_usage: Callable[[GangUsage], None] = lambda usage: None
    launcher: Launcher = LOCAL
    budget_guard: BudgetGuard = UNLIMITED
    secret: bytes | None = field(default=None, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether the nodes are processes on this machine."""
        return isinstance(self.launcher, LocalLauncher)


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(GangRequest):
    """A training to conduct.

    Attributes:
        launch: the settings of every generation.
        keep: how many of the newest checkpoints are kept, besides the one that `select` prefers.
        select: which checkpoint is handed over; None: the last.
        from_step: resume from the committed checkpoint of this step; later checkpoints are set aside.
        replay: how an earlier training went, to be made again in the same way; see `infra.gang.recovery`.
        on_progress: called with each progress report.
        on_launch: called with the launch of each generation, and with a function that returns what its nodes have used.
        on_message: called with each heartbeat, or end, of a node by its number, after the conductor has acted on it.
        patience_s: how long another conductor's lease must stand still before it is taken over.
    """

    launch: Launch
    keep: int
    select: SelectSpec | None
    from_step: int | None = None
    replay: Replay | None = None
    on_progress: Callable[[Progress], None] = lambda progress: None
    on_launch: Callable[[Launch, Callable[[], GangUsage]], None] = lambda launch, usage: None
    on_message: OnMessage = lambda node, message: None
    patience_s: float = PATIENCE_S

    @property
    def training(self) -> str:
        """The training's directory in the store."""
        return self.launch.training


@dataclass(frozen=True)
class GangOutcome:
    """The result of conducting a training.

    Attributes:
        checkpoint: the checkpoint that was handed over.
        node_seconds: from launch to release, summed over the nodes of every generation that this conductor
            launched.
        generations: how many generations there have been, including other conductors'.
        summary: rank 0's, of the last generation; its defaults if this conductor did not train.
        happened: sentences about what makes this training differ from an undisturbed training.
    """

    checkpoint: Checkpoint
    node_seconds: float
    generations: int
    summary: TrainingSummary = field(default_factory=TrainingSummary)
    happened: list[str] = field(default_factory=list)

    @property
    def dropped_rows(self) -> int:
        """Rows of the last incomplete global batch, which training left out."""
        known = self.summary.dropped_rows
        return self.checkpoint.dropped_rows if known is None else known


def conduct(store: Store, request: TrainingRequest) -> GangOutcome:
    """Train to the end, within the retry budgets; a training that is already finished returns its result.

    While another conductor holds the lease, this call waits, and returns that conductor's result.

    Raises:
        Cancelled: on KeyboardInterrupt, SIGTERM or another signal's exception; all processes have ended and the
            lease is free.
        TrainwrightError: the cause, once its retry budget is spent; `details["node_seconds"]` holds the time used.
    """
    conductor = _Conductor(store, request)
    try:
        with terminable():
            return conductor.run()
    except TrainwrightError as error:
        error.details.setdefault("node_seconds", conductor.node_seconds)
        raise
    except Exception:
        raise
    except BaseException as signal:
        # KeyboardInterrupt, or an exception that an orchestrator raises for its own signal: the training is to end.
        details = {"node_seconds": conductor.node_seconds}
        raise Cancelled(f"{request.training} was cancelled; no process is left.", details=details) from signal


@contextlib.contextmanager
def keeping_lease(
    store: Store, path: str, holder: str, request: GangRequest, launch: Launch, patience_s: float = PATIENCE_S
) -> Iterator[LeaseKeeper]:
    """Take a lease, or wait for it; in the end the slots are given back, then the lease is released."""
    # Nodes give up after `lease_silence_s`, so the lease is renewed four times within it.
    renew_s = min(RENEW_EVERY_S, launch.lease_silence_s / 4)
    keeper = LeaseKeeper(store, path, holder, patience_s=patience_s, renew_s=renew_s)
    try:
        keeper.start()
        yield keeper
    finally:
        with uninterrupted():
            if request.launcher.slots is not None:
                request.launcher.slots.give_back()
            keeper.stop()


def admit(request: GangRequest, nodes: int, keeper: LeaseKeeper, on_wait: Callable[[str], None]) -> None:
    """Wait until all nodes are admitted; slots still held from the previous generation count."""
    slots = request.launcher.slots
    while slots is not None and (waits := slots.take(nodes)) is not None:
        stopping.check()
        keeper.check()
        on_wait(waits)
        time.sleep(WAIT_S)


class _Conductor:
    def __init__(self, store: Store, request: TrainingRequest) -> None:
        self.store, self.request, self.training = store, request, request.training
        self.launch = request.launch
        self.holder = f"{request.holder}/{uuid.uuid4().hex[:12]}"
        # Whether the next generation is the first that this conductor launches.
        self.first = True
        self.node_seconds = 0.0
        self.happened: list[str] = []

    def run(self) -> GangOutcome:
        if self._result() is not None:
            return self._attached()
        path = layout.lease(self.training)
        with keeping_lease(self.store, path, self.holder, self.request, self.launch, self.request.patience_s) as keeper:
            while (token := keeper.token(WAIT_S)) is None:
                if self._result() is not None:
                    return self._attached()
                if keeper.is_waiting:
                    sentence = "another run trains this; waiting for it"
                    self.on_progress(Progress(self._next() - 1, "waiting", sentence=sentence))
            if self._result() is not None:
                return self._attached()
            if patiently(lambda: self.store.exists(layout.tombstone(self.training))):
                raise Interrupted(
                    f"{self.training} was deleted while it was waited for.",
                    remedy="Resume the run: it starts another training.",
                )
            secret = self.request.secret
            return self._train(patiently(lambda: Ledger(self.store, self.training, token, secret)), keeper)

    def _train(self, ledger: Ledger, keeper: LeaseKeeper) -> GangOutcome:
        """Train from the last committed checkpoint to the checkpoint that is handed over."""
        if ledger.handed_over is not None:
            # The previous conductor died before it wrote result.json.
            self._write_result(ledger.handed_over)
            return self._attached()
        if ledger.checkpoints and not ledger.is_checked:
            sentence = "this machine cannot check who committed its checkpoints; they are taken by their seals alone"
            self.on_progress(Progress(self._next() - 1, "starting", sentence=sentence))
        self._adopt(ledger)
        if (step := self.request.from_step) is not None:
            patiently(lambda: ledger.go_back(step, by=self.holder.rpartition("/")[0]))
            # Going back to a step resets the budgets.
            patiently(lambda: ledger.record_recovery(ledger.skipped, Retries()))
        patiently(lambda: ledger.delete_retired(by=self.holder))
        plan = self._generations(ledger, keeper).plan
        summary = parsed(f"{self.training}: the ranks' answer", TrainingSummary.model_validate, plan)
        if ledger.newest is not None and not summary.ended_early:
            refuse_short(self.launch, ledger.newest, knows_length=bool(summary.steps_per_epoch))
        checkpoint = ledger.chosen(self.request.select)
        patiently(lambda: self._retire(ledger))
        patiently(lambda: ledger.hand_over(checkpoint))
        self._write_result(checkpoint)
        return GangOutcome(checkpoint, self.node_seconds, self._next(), summary, self.happened)

    def _adopt(self, ledger: Ledger) -> None:
        """Adopt the checkpoints that the last generation sealed and its conductor did not commit before it died.

        This is safe because it happens before the next generation is launched, and in one move of the pointer, which
        also records that the generation's checkpoints were adopted.
        """
        last = self._next() - 1
        if last < 0 or (ledger.settled is not None and ledger.settled >= last):
            return
        newest = -1 if ledger.newest is None else ledger.newest.step
        found: list[Checkpoint] = []
        with contextlib.suppress(CorruptError):  # a damaged launch file: the generation's steps are taken again
            path = layout.launch(self.training, last)
            value = patiently(lambda: self.store.find_as(path, dict))
            # Otherwise the generation trained on samples that are skipped now.
            if value is not None and parsed(path, Launch.from_json, value).skip == ledger.skipped:
                found = patiently(lambda: adoptable(self.store, self.training, last, newest))
        # The ranks of an earlier version wrote no codes.
        if found and value is not None and (ledger.is_launched_here or FIELD in value):
            found = [checkpoint for checkpoint in found if self._is_own(ledger, checkpoint)]
        if new := patiently(lambda: ledger.adopt(last, found)):
            sentence = adopted_sentence([checkpoint.step for checkpoint in new])
            self.on_progress(Progress(last, "starting", step=new[-1].step, sentence=sentence))

    def _is_own(self, ledger: Ledger, checkpoint: Checkpoint) -> bool:
        """Whether a rank of its generation sealed it, by its code; CorruptError if not and this machine launched it."""
        codes = Codes(tuple(generation_key(key, checkpoint.generation) for key in ledger.codes.keys))
        manifest = patiently(lambda: self.store.manifest(checkpoint.ref))
        path, value = layout.manifest(manifest.uri), {"id": manifest.id, FIELD: manifest.provenance.get(FIELD)}
        return codes.are_right(path, codes.checked(path, value) if ledger.is_launched_here else value)

    def _generations(self, ledger: Ledger, keeper: LeaseKeeper) -> RankAnswer:
        """Launch generations until one is done; returns rank 0's answer. Raises a cause whose retry budget is spent."""
        replay, retry, budget_guard = self.request.replay, self.request.retry, self.request.budget_guard
        retry = retry if replay is None else replay.with_stops(retry)
        recovery = Recovery(retry, self.launch, ledger.skipped, ledger.retries)
        self.happened = recovery.happened
        # Whether to wait for optional nodes as long as for those that are required.
        patient = True

        def commit(checkpoint: Checkpoint) -> None:
            if ledger.commit(checkpoint):
                self._retire(ledger)

        while True:
            generation: Generation | None = None
            failed: TrainwrightError | None = None
            try:
                admit(self.request, recovery.nodes, keeper, partial(self._say_waiting, self._next() - 1))
                budget_guard.admit(recovery.nodes)
                with contextlib.closing(Hub(self.request.launcher.address)) as hub:
                    launch = self._launch_next(ledger, recovery, hub)
                    generation = Generation(
                        self.request.launcher(self.store, launch, hub),
                        commit=commit,
                        check=keeper.check,
                        unwritable=lambda: keeper.away,
                        on_progress=self.on_progress,
                        over=budget_guard.over,
                    )
                    generation.activity.on_message = self.request.on_message
                    usage = partial(generation.activity.usage, self.request.is_local)
                    budget_guard.launched(usage)
                    self.request.on_launch(generation.launch, usage)
                    return generation.run(self.request.rollcall_timeout_s, patient=patient)
            except TrainwrightError as error:
                # Nodes may have noticed first that another conductor has taken over, and ended.
                keeper.confirm()
                failed = error
                self._recover(error, generation, ledger, recovery)
                patient = bool(error.details.get("grows"))
                if isinstance(error, StorageUnavailable):
                    self._back_off(min(MAX_BACKOFF_S, 2.0 ** min(recovery.used(error), 10)), keeper)
            finally:
                if generation is not None:
                    self.node_seconds += generation.node_seconds
                    self.request.on_usage(generation.activity.usage(self.request.is_local))
                    budget_guard.released()
                    remember(self.store, generation, failed)

    def _say_waiting(self, generation: int, sentence: str) -> None:
        self.on_progress(Progress(generation, "waiting", sentence=sentence))

    def _launch_next(self, ledger: Ledger, recovery: Recovery, hub: Hub) -> Launch:
        """Write the launch file of the next generation and return its contents."""
        resume = patiently(lambda: ledger.resume_from(self.launch.sealed))
        if resume is None:
            resume = self.launch.begin
        if resume is not None and self.first:
            why = patiently(lambda: why_from(self.store, self.training, resume.step, ledger.aside))
            sentence = f"continues from step {resume.step:,} ({why})"
            self.on_progress(Progress(self._next(), "starting", step=resume.step, sentence=sentence))
        self.first = False
        while True:
            launch = without_drained(self.store, recovery.launch, here=self.request.is_local)
            launch = launch.for_generation(self._next(), ledger.token, resume)
            if self.request.replay is not None:
                launch = self.request.replay.launch(launch)
            # Otherwise the number is taken, by a fenced conductor or by this call when its answer was lost: try the
            # next.
            if (written := write_launch(self.store, launch, hub)) is not None:
                return written

    def _recover(
        self, error: TrainwrightError, generation: Generation | None, ledger: Ledger, recovery: Recovery
    ) -> None:
        """Decide how training continues after a failed generation and report it; else raise `error`."""
        nodes, micro_batch = ({}, 0) if generation is None else (generation.nodes, generation.reports.micro_batch)
        is_quarantined = self._quarantines(ledger, error)
        # A time limit shorter than a start would be tried again for ever.
        if error.details.get("planned") and generation is not None and not generation.has_progressed:
            del error.details["planned"]
        try:
            raise_why_over(self.request.budget_guard, error)
            how = "It is quarantined." if is_quarantined else recovery.after(error, nodes, micro_batch)
        except TrainwrightError:
            restore_budgets(ledger, error)
            raise
        if (recovery.skipped, recovery.retries) != (ledger.skipped, ledger.retries):
            patiently(lambda: ledger.record_recovery(list(recovery.skipped), recovery.retries))
        at = ledger.newest.step if ledger.newest else 0
        number, seconds = (-1, 0.0) if generation is None else (generation.number, generation.node_seconds)
        what = "no generation began" if generation is None else f"generation {number} ended"
        sentence = f"{what} ({error.cause}): {error.message} {how + ' ' if how else ''}Continuing from step {at}."
        cause = "" if error.details.get("grows") else error.cause
        self.on_progress(Progress(number, "ended", step=at, sentence=sentence, cause=cause, node_seconds=seconds))

    def _quarantines(self, ledger: Ledger, error: TrainwrightError) -> bool:
        """Quarantine the checkpoint that an error names as damaged; returns whether it did and an older one is left."""
        uri = error.details.get("checkpoint")
        return isinstance(error, CorruptError) and patiently(lambda: ledger.refuse(str(uri), error.message))

    def _back_off(self, seconds: float, keeper: LeaseKeeper) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            keeper.check()
            time.sleep(0.1)

    def _retire(self, ledger: Ledger) -> None:
        steps = () if self.request.replay is None else self.request.replay.keep_steps
        ledger.retire(self.request.keep, self.request.select, by=self.holder, also=steps)

    def _write_result(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint that the ledger hands over; a fenced conductor may have written the same file."""
        patiently(lambda: self.store.create_once(layout.result(self.training), checkpoint.to_json()))
        self._result()

    def _result(self) -> Checkpoint | None:
        result = patiently(lambda: self.store.find_as(layout.result(self.training), Checkpoint.from_json))
        if result is not None:
            patiently(lambda: refuse_forged_result(self.store, self.training, result))
        return result

    def _attached(self) -> GangOutcome:
        checkpoint = self._result()
        assert checkpoint is not None, "only called once result.json is there"
        if self.request.from_step is not None:
            raise finished(self.training, checkpoint)
        return GangOutcome(checkpoint, 0.0, self._next())

    def _next(self) -> int:
        """The number of the next generation."""
        return 1 + max(patiently(lambda: begun_generations(self.store, self.training)), default=-1)

    def on_progress(self, progress: Progress) -> None:
        """Report progress, with the node seconds of earlier generations added."""
        self.request.on_progress(replace(progress, node_seconds=self.node_seconds + progress.node_seconds))


def write_launch(store: Store, launch: Launch, hub: Hub) -> Launch | None:
    """Write a generation's launch, whose nodes the hub admits, and return it; None if its number is taken."""
    launch = launch.model_copy(update={"conductor": hub.at})
    path = layout.launch(launch.training, launch.generation)
    hub.codes = codes_of_generation(store.uri, launch.training, launch.generation)
    record = hub.codes.coded(path, launch.to_json())
    return launch if patiently(lambda: store.create_once(path, record)) else None


class Generation:
    """One generation of a training, whose launch is written. `run` starts and follows it, and leaves no process."""

    def __init__(
        self,
        membership: Membership,
        *,
        commit: Callable[[Checkpoint], None],
        check: Callable[[], None],
        on_progress: Callable[[Progress], None],
        over: Over = lambda: None,
        unwritable: Callable[[], StorageUnavailable | None] = lambda: None,
    ) -> None:
        self.membership, self.store, launch = membership, membership.store, membership.launch
        self.launch, self.training, self.number = launch, launch.training, launch.generation
        # To look at thousands of ranks takes milliseconds.
        self.poll_s = max(launch.poll_s, launch.nodes * launch.devices / RANKS_PER_S)
        self._check, self._on_progress, self._unwritable = check, on_progress, unwritable
        self._over, self._end_asked = over, False
        self.members = Members(launch, membership)
        # The gang grows after the first checkpoint past this step, once a node that missed the roll-call has joined.
        self._grows_after: int | None = None
        self._outage = Outage()
        self.reports = RankReports(launch, commit, self._say)
        self.activity = Activity(launch, self.members.nodes, self.reports)
        self._codes = codes_of_generation(self.store.uri, self.training, self.number)
        self._unread: deque[News] = deque()
        self._beats, self._next_beat = 0, 0.0
        self._progress = Progress(self.number, "starting")

    @property
    def node_seconds(self) -> float:
        """Seconds from launch to release, summed over the nodes."""
        now = time.monotonic()
        return sum((node.released or now) - node.started for node in self.members.nodes)

    @property
    def has_progressed(self) -> bool:
        """Whether a checkpoint beyond the one that it began with is committed."""
        begin = self.launch.resume or self.launch.begin
        return self.reports.checkpoint_step > (-1 if begin is None else begin.step)

    @property
    def nodes(self) -> dict[int, str]:
        """Hosts of the nodes that train or will train, by number."""
        return {number: node.host for number, node in self.members.active().items()}

    def run(self, rollcall_timeout_s: float, *, patient: bool = True) -> RankAnswer:
        """Start the nodes, follow them to the end and return rank 0's answer; raises the cause of a failure.

        Args:
            patient: whether to wait the full timeout for optional nodes, too; else REGATHER_S.
        """
        failed: BaseException | None = None
        try:
            self._roll_call(rollcall_timeout_s, rollcall_timeout_s if patient else REGATHER_S)
            self.activity.met = time.monotonic()
            return self.activity.note_done(self._follow())
        except BaseException as error:
            failed = error
            cause = error.cause if isinstance(error, TrainwrightError) else Cancelled.cause
            self.activity.ended = cause
            # What the store cannot take, the nodes have been told.
            with contextlib.suppress(TrainwrightError), uninterrupted():
                self._mark(CancelMarker(cause=cause, stacks=isinstance(error, Hung)))
            if isinstance(error, Hung):
                self._keep_stacks(error)
            raise
        finally:
            with uninterrupted():
                unkilled = self._release()
            if unkilled is not None and failed is None:
                raise unkilled

    def _mark(self, marker: CancelMarker) -> None:
        """Tell all nodes that the generation ends, and write it for those that hear nothing."""
        for number in range(len(self.members.nodes)):
            self.membership.tell(number, marker)
        self.store.create_once(layout.cancel(self.training, self.number), marker.to_json())

    def _ask_if_over(self) -> None:
        """Ask the nodes once for a checkpoint and their end, if a budget is used up or the worker is being stopped."""
        if not self._end_asked and (why := stopping.handed_over() or self._over()) is not None:
            self._mark(CancelMarker(cause=why.cause, saves=True))
            self._end_asked = True

    def _roll_call(self, timeout_s: float, brief_s: float) -> None:
        """Start the nodes, wait until all or enough of them have joined, and fix their meeting point and order.

        Raises:
            GangIncomplete: names the nodes that are missing.
            StorageUnavailable: the nodes' launcher or the store was unreachable at the deadline.
        """
        self._on_progress(self._progress)
        began = time.monotonic()
        enough: float | None = None
        while len(self.members.joined()) < self.launch.nodes:
            stopping.check()
            self._check()
            self._reach(self._start_and_hear)
            if self.membership.waits():
                began = time.monotonic()
                for node in self.members.nodes:
                    node.started = began
            coming = sum(not node.over for node in self.members.nodes) + len(self.members.unstarted())
            if coming < self.launch.least_nodes:
                raise self.members.cause()
            fits = self.members.fitting(joined := len(self.members.joined()))
            enough = (enough or time.monotonic()) if fits else None
            is_waited = enough is not None and time.monotonic() >= min(enough + brief_s, began + timeout_s)
            if is_waited or (fits and joined == coming) or joined == self.launch.nodes:
                break
            if time.monotonic() > began + timeout_s:
                if self._outage.error is not None:
                    raise self._outage.error
                raise self.members.incomplete(timeout_s)
            self._sleep()
        came = [node.joined for node in self.members.fix().values() if node.joined is not None]
        path = layout.rollcall(self.training, self.number)
        meeting = Meeting(address=came[0].address, port=came[0].port, nodes=came)
        record = self._codes.coded(path, meeting.to_json())
        while not self._reach(lambda: self.store.create_once(path, record)):
            self._sleep()
        for number, place in meeting.places().items():
            self.membership.tell(number, place)
        self._leave_out()

    def _start_and_hear(self) -> None:
        self.members.nodes.extend(Node(time.monotonic()) for _ in self.members.unstarted())
        self.membership.start([number for number, node in enumerate(self.members.nodes) if not node.over])
        self._hear()

    def _leave_out(self) -> None:
        """Release the nodes that this generation trains without, and report them.

        Nodes that have not answered yet cost nothing and may come later.
        """
        without = [number for number in range(len(self.members.nodes)) if number not in self.members.gang]
        came = [number for number in without if (node := self.members.nodes[number]).joined is not None or node.over]
        for number in without:
            self.membership.tell(number, CancelMarker(cause=Preempted.cause))
            self.members.nodes[number].released = time.monotonic()
        self.membership.end(came)
        asked = self.launch.asked_nodes
        if len(self.members.gang) < asked:
            names = f" (without node {', '.join(map(self.members.named, without))})" if without else ""
            ranks = len(self.members.gang) * self.launch.devices
            self._say(sentence=f"trains on {len(self.members.gang)} of {asked} nodes{names}: {ranks} ranks")

    def _follow(self) -> RankAnswer:
        self._say(phase="training")
        self.reports.liveness.paused()
        failed_at: float | None = None
        gang = self.members.gang.values()
        while True:
            # If the worker is stopped as planned, the nodes save a checkpoint first (`CancelMarker.saves`).
            stopping.check_signals()
            self._check()
            self._reach(self._hear)
            if all(node.is_done for node in gang):
                return patiently(self._answer)
            if any(node.lost is not None or node.has_failed for node in gang):
                failed_at = failed_at or time.monotonic()
                # The others of a gang that was asked to stop may still be saving the same checkpoint.
                settle_s = self.launch.grace_s if isinstance(self.members.cause(), Preempted) else SETTLE_S
                settled = time.monotonic() > failed_at + settle_s
                if all(node.over for node in gang) or (settled and not self.members.is_unexplained(failed_at)):
                    raise self._cause()
            elif (stuck := self.reports.liveness.stuck(self._cut_links(), len(gang))) is not None:
                raise self.members.placed(stuck)
            elif straggler := self.reports.liveness.straggler():
                self._say(sentence=straggler)
            if self._grows_after is not None and self.reports.checkpoint_step > self._grows_after:
                # The checkpoint is committed, so only the work since then is lost.
                raise Preempted("Nodes that were missing have come.", details={"grows": True})
            self._sleep()

    def _cause(self) -> TrainwrightError:
        """The error that caused the others; a collective that timed out says less than where the ranks stood."""
        cause = self.members.cause()
        is_waiting = isinstance(cause, Hung) and cause.details.get("link")
        laggard = self.reports.liveness.laggard() if is_waiting else None
        return cause if laggard is None else self.members.placed(laggard)

    def _cut_links(self) -> list[str]:
        return self.members.cut_links(time.monotonic() - max(3.0, 3 * self.launch.beat_s))

    def _hear(self) -> None:
        """Take in what the nodes have said since, and commit the checkpoints that they report."""
        self._ask_if_over()
        self._unread += self.membership.news()
        while self._unread:
            # What the store does not take now is taken in again.
            self._take_in(self._unread[0])
            self._unread.popleft()
        for number, node in self.members.active().items():
            if not node.over and node.joined is not None:
                self._find_silent(number, node)
        if self.members.gang and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + BEAT_EVERY_S
            self._write_beat()

    def _take_in(self, news: News) -> None:
        number, at, message = news
        node = self.members.nodes[number]
        if isinstance(message, Joined):
            node.heard = at
            node.clock_ahead_s = message.time - wall_s(at)
            if node.joined is None:
                node.joined, node.joined_at = message, at
                if self.members.gang:
                    self._grow_by(number)
        elif node.over or number not in self.members.active():
            return
        elif isinstance(message, Heartbeat | NodeExit):
            self.reports.take_in(reports_of(message), self.members.called(number))
            self.activity.take_in(number, message)
            node.heard = at
            if isinstance(message, Heartbeat):
                node.beat, node.clock_ahead_s = message, message.time - wall_s(at)
            else:
                node.released, node.exit = time.monotonic(), message
        elif isinstance(message, Ended):
            # Prefect's text about a run ends with a full stop of its own.
            sentence = f"The supervisor of {self.members.called(number)} {message.how.rstrip('. ')}."
            details = {
                "node": number,
                "log": self.membership.log(number),
                **({"is_sure": True} if message.is_sure else {}),
            }
            node.released, node.lost = time.monotonic(), message.cause(sentence, details=details)

    def _find_silent(self, number: int, node: Node) -> None:
        silent_s, silence_s = time.monotonic() - node.heard, self.launch.silence_s
        if silent_s > silence_s and self.membership.may_be_silent(number):
            silence_s *= BUSY_TIMES
        if silent_s > silence_s:
            if (last := self.membership.exit_of(number)) is not None:
                self._take_in(News(number, time.monotonic(), last))
                return
            sentence = f"{self.members.called(number).capitalize()} has sent no heartbeat for {silence_s:g} s."
            node.lost = NodeLost(sentence, details={"node": number, "silent": True})

    def _grow_by(self, number: int) -> None:
        """Look whether the gang can grow by a node that missed the roll-call."""
        larger = self.members.could_be()
        if number not in self.members.gang and larger > len(self.members.gang):
            self._grows_after = self.reports.checkpoint_step
            self._say(sentence=f"{self.members.called(number)} has come: {larger} nodes after the next checkpoint")

    def _write_beat(self) -> None:
        """Write what is known of the nodes, for those who look at the store."""
        nodes = [NodeBeat.of(number, node.beat) for number, node in self.members.gang.items() if node.beat is not None]
        path = layout.gang_beat(self.training, self.number, self._beats)
        self.store.create_once(path, self._codes.coded(path, GangBeat(time=now_s(), nodes=nodes).to_json()))
        self._beats += 1

    def _answer(self) -> RankAnswer:
        """Rank 0's answer, with its checkpoint committed."""
        answer = next(end.done for end in self.members.ends() if end.rank == 0)
        assert answer is not None, "a node is done only once all its ranks have answered"
        if answer.checkpoint is not None:
            self.reports.commit(answer.checkpoint)
        return answer

    def _reach(self, work: Callable[[], object]) -> bool:
        """Do `work` on the store; while it is unreachable or takes no writes, return False and show the cause."""

        def reach() -> None:
            # A store that can be read only, such as a full disk, takes no checkpoint.
            if (error := self._unwritable()) is not None:
                raise error
            work()

        reached = self._outage.tolerate(reach)
        waits = self.membership.waits() if reached or self._outage.error is None else self._outage.error.message
        self._say(sentence=f"waiting: {waits}" if waits else "")
        if not reached:
            # Ranks wait for the store as the conductor does.
            self.reports.liveness.paused()
        return reached

    def _sleep(self) -> None:
        """Wait until the next look. If that takes far too long, this machine stood still, and its nodes with it."""
        began = time.monotonic()
        time.sleep(self.poll_s)
        if (late_s := time.monotonic() - began - self.poll_s) > SLOW_S:
            for node in self.members.nodes:
                node.heard = min(node.heard + late_s, time.monotonic())

    def _keep_stacks(self, error: Hung) -> None:
        """Wait until the nodes have saved their ranks' stacks, at most STACKS_S, because a node may hang, too."""
        until = time.monotonic() + STACKS_S
        while time.monotonic() < until and not all(node.exit for node in self.members.gang.values()):
            with contextlib.suppress(TrainwrightError):
                for number, _, message in self.membership.news():
                    if isinstance(message, NodeExit):
                        self.members.nodes[number].exit = message
            time.sleep(self.launch.poll_s)
        error.details["stacks"] = {str(end.rank): end.stack for end in self.members.ends() if end.stack}

    def _release(self) -> Exception | None:
        """End every node; returns why one could not be ended."""
        failed: Exception | None = None
        try:
            self.membership.end(range(len(self.members.nodes)))
        except Exception as error:
            log.error("A node of generation %d could not be ended: %s", self.number, error)
            failed = error
        for node in self.members.nodes:
            node.released = node.released or time.monotonic()
        return failed

    def _say(self, **changes: Any) -> None:
        progress = replace(self._progress, node_seconds=self.node_seconds, **changes)
        if progress != self._progress:
            self._progress = progress
            self._on_progress(progress)


def finished(training: str, checkpoint: Checkpoint) -> UsageError:
    """The error for a request to go back in a training that has handed over its checkpoint."""
    return UsageError(
        f"{training} is finished: it handed over step {checkpoint.step:,}, which is never taken back.",
        remedy="Leave --from out, or run the spec with --new to train again.",
    )


def adopted_sentence(steps: list[int]) -> str:
    """The progress sentence about the checkpoints of `steps` that a conductor has adopted."""
    noun, they_are = ("step", "it is") if len(steps) == 1 else ("steps", "they are")
    numbers = ", ".join(f"{step:,}" for step in steps)
    return f"{noun} {numbers} had been sealed but not committed by the previous conductor; {they_are} committed now"


def refuse_short(launch: Launch, last: Checkpoint, *, knows_length: bool) -> None:
    """CorruptError if a training that nothing ended early says that it is complete before its last epoch or step.

    The plan is the Trainer's; without its own `max_epochs` or `max_steps` nothing is known.

    Args:
        knows_length: whether the loader has a length, as ours has. Else the last step's checkpoint may be written
            before the loader says that the epoch is over, and so be of the epoch before.
    """
    trainer = (launch.settings.get("lightning") or {}).get("trainer") or {}
    ends = [
        ("epoch", last.epoch + (not knows_length), trainer.get("max_epochs")),
        ("step", last.step, trainer.get("max_steps")),
    ]
    planned = [(what, done, end) for what, done, end in ends if isinstance(end, int) and end > 0]
    if planned and not trainer.get("fast_dev_run") and all(done < end for _, done, end in planned):
        what, done, end = planned[0]
        raise CorruptError(
            f"{last.ref.uri} was reported as the end of the training, but is of {what} {done:,} of {end:,}, and no "
            "callback ended the training early.",
            remedy="Find out who wrote the checkpoint, and run with --new to train again.",
            details={"file": layout.manifest(last.ref.uri)},
        )


def without_drained(store: Store, launch: Launch, *, here: bool) -> Launch:
    """The launch without the nodes that are drained now.

    Args:
        here: whether all nodes are processes of this machine.

    Raises: GangIncomplete if that leaves none; CorruptError if a decision about a node is damaged.
    """
    drained = patiently(lambda: drained_nodes(store))
    if here and (mine := drained.get(this_node())) is not None:
        raise GangIncomplete(
            f"Every node that could train is drained: {mine.sentence}.",
            remedy="Let one take part again with `trainwright restore NODE`, or train on other nodes.",
        )
    more = [name for name in sorted(drained) if name not in launch.left_out]
    return launch.model_copy(update={"left_out": [*launch.left_out, *more]}) if more else launch


def remember(store: Store, generation: Generation, error: TrainwrightError | None) -> None:
    """Record what a generation showed of its nodes; if the store does not answer, training continues all the same."""
    if isinstance(error, StorageUnavailable):
        return
    hosts = generation.nodes
    order = list(hosts)
    for rank in sorted(generation.reports.liveness.warned):
        place = rank // generation.launch.devices
        if place < len(order):
            _record(store, generation, hosts[order[place]], "straggler", "straggler", f"Rank {rank} was a straggler.")
    if isinstance(error, NodeLost | Hung):
        # The node that reports a broken connection may not be the one that broke it.
        number = error.details.get("node")
        if number in hosts and not error.details.get("link"):
            _record(store, generation, hosts[number], "failure", error.cause, error.message)
    elif isinstance(error, CorruptError):
        ranks = [rank for rank in error.details.get("ranks", []) if isinstance(rank, int)]
        if 2 * len(ranks) < len(order) * generation.launch.devices:  # without a majority, any of them may be right
            for place in sorted({rank // generation.launch.devices for rank in ranks}):
                _record(store, generation, hosts[order[place]], "corrupt_replica", error.cause, error.message)


def _record(store: Store, generation: Generation, host: str, kind: FailureKind, cause: str, sentence: str) -> None:
    event = FailureEvent(
        node=host,
        kind=kind,
        cause=cause,
        sentence=sentence,
        training=generation.training,
        generation=generation.number,
        at=now(),
    )
    with contextlib.suppress(TrainwrightError):
        if record_failure(store, event):
            log.info("%s is recorded of the node %s; `trainwright nodes` lists it", kind.replace("_", " "), host)
