"""One generation of a gang: start its nodes, hold the roll-call, follow and end them, and find a failure's cause."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from data_contracts.errors import Cancelled, Hung, NodeLost, Preempted, StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import CancelMarker, Launch, Meeting, reports_of
from data_contracts.messages.ranks import RankAnswer
from infra import stopping
from infra.gang.codes import codes_of_generation
from infra.gang.conductor.activity import Activity
from infra.gang.conductor.allowance import EndEarly, Over
from infra.gang.conductor.members import Members, Node
from infra.gang.conductor.node_records import NodeRecords
from infra.gang.conductor.rank_reports import Progress, RankReports
from infra.gang.node.local import Start
from infra.processes.processes import uninterrupted
from infra.store import Store, layout
from infra.store.lease import Outage, patiently

log = logging.getLogger("trainwright")
# After the first node failed, the others get this long to report why they ended too.
SETTLE_S = 3.0
# A later generation waits at most this long for optional nodes: a Prefect worker polls every 10 s.
REGATHER_S = 15.0
# The nodes of a hung generation get this long to save their ranks' stacks.
STACKS_S = 8.0


class Generation:
    """Generation `launch.generation` of a training. `run` starts and follows it, and leaves no process behind."""

    def __init__(
        self,
        store: Store,
        launch: Launch,
        start: Start,
        *,
        commit: Callable[[Checkpoint], None],
        check: Callable[[], None],
        on_progress: Callable[[Progress], None],
        over: Over = lambda: None,
        unwritable: Callable[[], StorageUnavailable | None] = lambda: None,
    ) -> None:
        self.store, self.launch, self._start = store, launch, start
        self.training, self.number = launch.training, launch.generation
        # A bucket is polled less often, because each request costs money.
        self.poll_s = launch.poll_s * (1 if store.is_local else 5)
        self._check, self._on_progress, self._unwritable = check, on_progress, unwritable
        self._end_early = EndEarly(store, launch, over)
        self.members = Members(launch)
        # The gang grows after the first checkpoint past this step, once a node that missed the roll-call has joined.
        self._grows_after: int | None = None
        self._outage = Outage()
        self.reports = RankReports(launch, commit, self._say)
        self.activity = Activity(launch, self.members.nodes, self.reports)
        self._codes = codes_of_generation(store.uri, self.training, self.number)
        self._records = NodeRecords(store, launch, self._codes, on_slow=self._unheard)
        self._progress = Progress(self.number, "starting")

    @property
    def node_seconds(self) -> float:
        """Seconds from launch to release, summed over the nodes."""
        now = time.monotonic()
        return sum((node.released or now) - node.started for node in self.members.nodes)

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
            # Write the marker first: nodes elsewhere watch it, even if this process dies.
            cause = error.cause if isinstance(error, TrainwrightError) else Cancelled.cause
            self.activity.ended = cause
            marker = CancelMarker(cause=cause, stacks=isinstance(error, Hung))
            try:
                with uninterrupted():
                    self.store.create_once(layout.cancel(self.training, self.number), marker.to_json())
            except TrainwrightError as failure:
                # A node that cannot write to the store is silent, too, for example when the disk is full.
                silent = isinstance(error, NodeLost) and error.details.get("silent")
                if silent and isinstance(failure, StorageUnavailable):
                    self.activity.ended = failure.cause
                    raise failure from error
            if isinstance(error, Hung):
                self._keep_stacks(error)
            raise
        finally:
            with uninterrupted():
                unkilled = self._release()
            if unkilled is not None and failed is None:
                raise unkilled

    def _start_missing(self) -> None:
        for number in self.members.unstarted():
            # Without this guard, a signal between the start and the append would leave a node that nobody knows.
            with uninterrupted():
                self.members.nodes.append(Node(self._start(self.number, number), time.monotonic()))

    def _keep_stacks(self, error: Hung) -> None:
        """Wait until the nodes have saved their ranks' stacks, at most STACKS_S, because a node may hang, too."""
        until = time.monotonic() + STACKS_S
        while time.monotonic() < until and not all(node.exit for node in self.members.gang.values()):
            for number, node in self.members.gang.items():
                with contextlib.suppress(TrainwrightError):
                    node.exit = node.exit or self._records.exit(number)
            time.sleep(self.poll_s)
        error.details["stacks"] = {str(end.rank): end.stack for end in self.members.ends() if end.stack}

    def _release(self) -> Exception | None:
        """End every node, even if ending another one fails; returns the first failure."""
        first: Exception | None = None
        for number, node in enumerate(self.members.nodes):
            try:
                node.handle.kill()
            except Exception as error:
                log.error("node %d of generation %d could not be ended: %s", number, self.number, error)
                first = first or error
            node.released = node.released or time.monotonic()
        return first

    def _say(self, **changes: Any) -> None:
        progress = replace(self._progress, node_seconds=self.node_seconds, **changes)
        if progress != self._progress:
            self._progress = progress
            self._on_progress(progress)

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
            coming = sum(not node.over for node in self.members.nodes) + len(self.members.unstarted())
            if coming < self.launch.least_nodes:
                raise self.members.cause()
            fits = self.members.fitting(len(self.members.joined()))
            enough = (enough or time.monotonic()) if fits else None
            is_waited = enough is not None and time.monotonic() >= min(enough + brief_s, began + timeout_s)
            if is_waited or len(self.members.joined()) == self.launch.nodes:
                break
            if time.monotonic() > began + timeout_s:
                if self._outage.error is not None:
                    raise self._outage.error
                raise self.members.incomplete(timeout_s)
            time.sleep(self.poll_s)
        joined = [node.joined for node in self.members.fix().values() if node.joined is not None]
        path = layout.rollcall(self.training, self.number)
        meeting = Meeting(address=joined[0].address, port=joined[0].port, nodes=joined)
        record = self._codes.coded(path, meeting.to_json())
        while not self._reach(lambda: self.store.create_once(path, record)):
            time.sleep(self.poll_s)
        self._leave_out()

    def _leave_out(self) -> None:
        """Release the nodes that this generation trains without, and report them.

        Nodes that have not answered yet cost nothing and may come later: `_hear_late` looks for them.
        """
        without = [number for number in range(len(self.members.nodes)) if number not in self.members.gang]
        for number in without:
            node = self.members.nodes[number]
            if node.joined is not None or node.over:
                node.handle.kill()
            node.released = time.monotonic()
        asked = self.launch.asked_nodes
        if len(self.members.gang) < asked:
            names = f" (without node {', '.join(map(self.members.named, without))})" if without else ""
            ranks = len(self.members.gang) * self.launch.devices
            self._say(sentence=f"trains on {len(self.members.gang)} of {asked} nodes{names}: {ranks} ranks")

    def _start_and_hear(self) -> None:
        self._start_missing()
        for number, node in enumerate(self.members.nodes):
            if node.joined is None and not node.over:
                node.joined = self._records.joined(number)
                node.heard = time.monotonic()
                node.joined_at = None if node.joined is None else node.heard
        self._hear()

    def _follow(self) -> RankAnswer:
        self._say(phase="training")
        self.reports.liveness.paused()
        failed_at: float | None = None
        gang = self.members.gang.values()
        while True:
            # If the worker is stopped as planned, the nodes save a checkpoint first (`EndEarly`).
            stopping.check_signals()
            self._check()
            self._reach(self._hear)
            if all(node.is_done for node in gang):
                return patiently(self._answer)
            if any(node.lost is not None or node.has_failed for node in gang):
                failed_at = failed_at or time.monotonic()
                settled = time.monotonic() > failed_at + SETTLE_S
                if all(node.over for node in gang) or (settled and not self.members.is_unexplained(failed_at)):
                    raise self.members.cause()
            elif (stuck := self.reports.liveness.stuck(self._cut_links(), len(gang))) is not None:
                raise self.members.placed(stuck)
            elif straggler := self.reports.liveness.straggler():
                self._say(sentence=straggler)
            if self._grows_after is not None and self.reports.checkpoint_step > self._grows_after:
                # The checkpoint is committed, so only the work since then is lost.
                raise Preempted("Nodes that were missing have come.", details={"grows": True})
            time.sleep(self.poll_s)

    def _cut_links(self) -> list[str]:
        return self.members.cut_links(time.monotonic() - max(3.0, 3 * self.launch.heartbeat_s))

    def _reach(self, work: Callable[[], object]) -> bool:
        """Do `work` on the store; while it is unreachable or takes no writes, return False and show the cause."""

        def reach() -> None:
            # A store that can be read only, such as a full disk, has no news of its nodes.
            if (error := self._unwritable()) is not None:
                raise error
            work()

        reached = self._outage.tolerate(reach)
        self._say(sentence="" if reached or self._outage.error is None else f"waiting: {self._outage.error.message}")
        if not reached:
            self._unheard(float("inf"))
        return reached

    def _unheard(self, seconds: float) -> None:
        """Discount `seconds` in which the store was unreachable: silence counts only while the store answers."""
        self.reports.liveness.paused()
        for node in self.members.nodes:
            node.heard = min(node.heard + seconds, time.monotonic())

    def _hear(self) -> None:
        """Read what the nodes have published since, and commit the checkpoints that they report."""
        self._end_early.ask_if_over()
        for number, node in self.members.active().items():
            if node.over:
                continue
            # First whether the node ended, then what it wrote: it may do both in between.
            ended = node.handle.ended()
            last = self._records.exit(number)
            while (beat := self._records.beat(number, node.beats)) is not None:
                self.reports.take_in(beat.ranks, self.members.called(number))
                self.activity.take_in(number, beat)
                node.beats += 1
                node.unreachable = beat.unreachable
                node.heard = time.monotonic()
            if last is not None:
                self.reports.take_in(reports_of(last), self.members.called(number))
                self.activity.take_in(number, last)
            if last is not None or ended is not None:
                node.released = time.monotonic()
            silence_s = self.launch.silence_s
            if ended is not None and last is None:
                details = {"node": number, "log": node.handle.log()}
                # Prefect's text about a run ends with a full stop of its own.
                sentence = f"The supervisor of {self.members.called(number)} {ended.rstrip('. ')}."
                node.lost = NodeLost(sentence, details=details)
            elif last is None and node.joined is not None and time.monotonic() - node.heard > silence_s:
                sentence = f"{self.members.called(number).capitalize()} has published no heartbeat for {silence_s:g} s."
                node.lost = NodeLost(sentence, details={"node": number, "silent": True})
            # Set last, so that all of this is repeated if the store becomes unreachable in between.
            node.exit = last
        if self.members.gang:
            self._hear_late()

    def _hear_late(self) -> None:
        """Look for nodes that missed the roll-call and have joined since; check whether the gang can grow by them."""
        for number, node in self.members.late().items():
            node.joined = self._records.joined(number)
            larger = self.members.could_be()
            if node.joined is not None and larger > len(self.members.gang):
                self._grows_after = self.reports.checkpoint_step
                self._say(sentence=f"{self.members.called(number)} has come: {larger} nodes after the next checkpoint")

    def _answer(self) -> RankAnswer:
        """Rank 0's answer, with its checkpoint committed."""
        answer = next(end.done for end in self.members.ends() if end.rank == 0)
        assert answer is not None, "a node is done only once all its ranks have answered"
        if answer.checkpoint is not None:
            self.reports.commit(answer.checkpoint)
        return answer
