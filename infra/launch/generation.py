"""One generation of a gang, seen from its conductor: started, called, followed, ended, and what its end means."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    GangIncomplete,
    Hung,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
)
from data_contracts.handoffs import Checkpoint
from infra import stopping
from infra.launch.local import Start
from infra.launch.members import Members, Node, first_cause, links_between
from infra.launch.pace import Pace, link_cut
from infra.launch.patience import Outage, patiently
from infra.launch.processes import uninterrupted
from infra.store import Store, layout

log = logging.getLogger(__name__)
# After the first node failed, the others get this long to say why they ended too.
SETTLE_S = 3.0
# A later generation waits no longer than this for nodes that it can do without: a Prefect worker looks every 10 s.
REGATHER_S = 15.0
# The nodes of a generation that hangs get this long to keep their ranks' stacks.
STACKS_S = 8.0
# A store that takes so long to answer was away meanwhile, and tried again by what is below us.
SLOW_S = 2.0


@dataclass(frozen=True)
class Progress:
    """How far a training is.

    Attributes:
        phase: `waiting` (another conductor trains it), `starting`, `training` or `ended` (of this generation).
        checkpoint_step: step of the newest committed checkpoint, -1 if there is none.
        sentence: what a person should know beyond the figures, such as why a generation ended; else "".
    """

    generation: int
    phase: str
    step: int = 0
    epoch: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint_step: int = -1
    sentence: str = ""


class Generation:
    """Generation `launch["generation"]` of a training. `run` starts and follows it; nothing of it is left after."""

    def __init__(
        self,
        store: Store,
        launch: dict[str, Any],
        start: Start,
        *,
        commit: Callable[[Checkpoint], None],
        check: Callable[[], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.store, self.launch, self._start = store, launch, start
        self.training, self.number = str(launch["training"]), int(launch["generation"])
        # A bucket is asked less often: each question costs.
        self.poll_s = float(launch["poll_s"]) * (1 if store.is_local else 5)
        self._commit, self._check, self._on_progress = commit, check, on_progress
        self.members = Members(launch)
        # The step after whose checkpoint the gang grows, once a node came that the roll-call went on without.
        self._grows_after: int | None = None
        self._outage = Outage()
        self.pace = Pace(float(launch["hang_s"]), float(launch["stall_s"]), float(launch["silence_s"]))
        # Rows that a device took at once, as the ranks tell; 0 while unknown.
        self.micro_batch = 0
        self._progress = Progress(self.number, "starting")
        self._begun_with = ""

    @property
    def node_seconds(self) -> float:
        """Seconds from launch to release, added up over the nodes."""
        now = time.monotonic()
        return sum((node.released or now) - node.started for node in self.members.nodes)

    @property
    def nodes(self) -> dict[int, str]:
        """Hosts of the nodes that train, or are to, by number."""
        return {number: node.host for number, node in self.members.active().items()}

    def run(self, rollcall_timeout_s: float, *, patient: bool = True) -> dict[str, Any]:
        """Start the nodes, follow them to the end and return rank 0's answer; raises the cause of a failure.

        Args:
            patient: whether to wait so long for nodes, too, that it can do without; else for REGATHER_S.
        """
        failed: BaseException | None = None
        try:
            self._roll_call(rollcall_timeout_s, rollcall_timeout_s if patient else REGATHER_S)
            return self._follow()
        except BaseException as error:
            failed = error
            # The marker first: nodes elsewhere watch it, whatever becomes of this process.
            cause = error.cause if isinstance(error, TrainwrightError) else Cancelled.cause
            stacks = isinstance(error, Hung)
            marker = {"schema_version": 1, "cause": cause, **({"stacks": True} if stacks else {})}
            try:
                with uninterrupted(), contextlib.suppress(FileExistsError):
                    self.store.create_json(layout.cancel(self.training, self.number), marker)
            except TrainwrightError as failure:
                # Who cannot write to the store is silent, too: its disk is full, say.
                silent = isinstance(error, NodeLost) and error.details.get("silent")
                if silent and isinstance(failure, StorageUnavailable):
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
            # A signal that came between the start and this list would leave a node that nobody knows.
            with uninterrupted():
                self.members.nodes.append(Node(self._start(self.number, number), time.monotonic()))

    def _keep_stacks(self, error: Hung) -> None:
        """Wait for what the nodes say of their ranks before those are killed; bounded, for a node may hang, too."""
        until = time.monotonic() + STACKS_S
        while time.monotonic() < until and not all(node.exit for node in self.members.gang.values()):
            for number, node in self.members.gang.items():
                with contextlib.suppress(TrainwrightError):
                    node.exit = node.exit or self._read(layout.node_exit(self.training, self.number, number))
            time.sleep(self.poll_s)
        answers = [entry for node in self.members.gang.values() for entry in (node.exit or {}).get("ranks", [])]
        error.details["stacks"] = {str(entry["rank"]): entry["stack"] for entry in answers if entry.get("stack")}

    def _release(self) -> Exception | None:
        """End every node, whatever becomes of the others; the first failure to do so."""
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
        progress = replace(self._progress, **changes)
        if progress != self._progress:
            self._progress = progress
            self._on_progress(progress)

    def _roll_call(self, timeout_s: float, brief_s: float) -> None:
        """Start the nodes, wait until all or enough of them have joined, fix where they meet and in which order.

        Raises:
            GangIncomplete: names who is missing.
            StorageUnavailable: what starts them, or the store, was away at the deadline.
        """
        self._on_progress(self._progress)
        began = time.monotonic()
        enough: float | None = None
        while len(self.members.joined()) < self.members.wanted:
            stopping.check()
            self._check()
            self._reach(self._start_and_hear)
            coming = sum(not node.over for node in self.members.nodes) + len(self.members.unstarted())
            if coming < self.members.least:
                raise self._cause()
            fits = self.members.fitting(len(self.members.joined()))
            enough = (enough or time.monotonic()) if fits else None
            if enough is not None and time.monotonic() >= min(enough + brief_s, began + timeout_s):
                break
            if len(self.members.joined()) == self.members.wanted:
                break
            if time.monotonic() > began + timeout_s:
                if self._outage.error is not None:
                    raise self._outage.error
                missing = self.members.missing()
                raise GangIncomplete(
                    f"Node {', '.join(missing)} of {self.members.wanted} had not answered the roll-call of generation "
                    f"{self.number} after {timeout_s:g} s.",
                    details={
                        "missing": missing,
                        "log": "\n".join(n.handle.log() for n in self.members.nodes if not n.joined),
                    },
                )
            time.sleep(self.poll_s)
        everyone = [node.joined for node in self.members.fix().values()]
        first = everyone[0] or {}
        meeting = {"schema_version": 1, "address": first["address"], "port": first["port"], "nodes": everyone}

        def fix() -> None:
            # There already: written by this very call, whose answer was lost.
            with contextlib.suppress(FileExistsError):
                self.store.create_json(layout.rollcall(self.training, self.number), meeting)

        while not self._reach(fix):
            time.sleep(self.poll_s)
        self._leave_out()

    def _leave_out(self) -> None:
        """Release the nodes that this generation goes on without, and say so.

        Those that have not answered yet cost nothing and may come later: `_hear_late` looks for them.
        """
        without = [number for number in range(len(self.members.nodes)) if number not in self.members.gang]
        for number in without:
            node = self.members.nodes[number]
            if node.joined is not None or node.over:
                node.handle.kill()
            node.released = time.monotonic()
        asked = int(self.launch.get("asked", self.members.wanted))
        if len(self.members.gang) < asked:
            names = f" (without node {', '.join(map(self.members.named, without))})" if without else ""
            ranks = len(self.members.gang) * int(self.launch["devices"])
            self._say(sentence=f"trains on {len(self.members.gang)} of {asked} nodes{names}: {ranks} ranks")

    def _start_and_hear(self) -> None:
        self._start_missing()
        for number, node in enumerate(self.members.nodes):
            if node.joined is None and not node.over:
                node.joined = self._read(layout.joined(self.training, self.number, number))
                node.heard = time.monotonic()
        self._hear()

    def _follow(self) -> dict[str, Any]:
        self._say(phase="training")
        self.pace.paused()
        settled: float | None = None
        gang = self.members.gang.values()
        while True:
            stopping.check()
            self._check()
            self._reach(self._hear)
            if all(node.exit is not None and node.exit["status"] == "done" for node in gang):
                return patiently(self._answer)
            if any(node.lost is not None or (node.exit or {}).get("status") == "failed" for node in gang):
                settled = settled or time.monotonic() + SETTLE_S
                if all(node.over for node in gang) or (time.monotonic() > settled and not self._unexplained(settled)):
                    raise self._cause()
            elif (stuck := self.pace.stuck(self._cut(), len(gang))) is not None:
                raise self._placed(stuck)
            elif straggler := self.pace.straggler():
                self._say(sentence=straggler)
            if self._grows_after is not None and self._progress.checkpoint_step > self._grows_after:
                # With nothing lost but what was done since.
                raise Preempted("Nodes that were missing have come.", details={"grows": True})
            time.sleep(self.poll_s)

    def _unexplained(self, settled: float) -> bool:
        """Whether connections broke, nobody ended first, and a node has been silent since: it may be what is gone."""
        silent = any(not node.over and node.heard < settled - SETTLE_S for node in self.members.gang.values())
        return silent and bool(first_cause(self.members.gang.values()).details.get("link"))

    def _cut(self) -> list[str]:
        """Links that one of their ends cannot use, while both ends are heard of."""
        fresh_s = max(3.0, 3 * float(self.launch["heartbeat_s"]))
        fresh = {
            n for n, node in self.members.gang.items() if not node.over and time.monotonic() - node.heard < fresh_s
        }
        return links_between(self.members.gang, fresh)

    def _placed(self, error: TrainwrightError) -> TrainwrightError:
        """The error, with the node of the rank that it names."""
        place = error.details.get("rank", -1) // int(self.launch["devices"])
        if 0 <= place < len(self.members.gang):
            error.details.setdefault("node", list(self.members.gang)[place])
        return error

    def _reach(self, work: Callable[[], None]) -> bool:
        """Do `work` on the store; False, and the cause shown, while it is away."""
        reached = self._outage.tolerate(work)
        self._say(sentence="" if reached or self._outage.error is None else f"waiting: {self._outage.error.message}")
        if not reached:
            self._unheard(float("inf"))
        return reached

    def _unheard(self, seconds: float) -> None:
        """Nothing could be heard for so long: silence counts only while the store answers."""
        self.pace.paused()
        for node in self.members.nodes:
            node.heard = min(node.heard + seconds, time.monotonic())

    def _hear(self) -> None:
        """Read what the nodes have published since, and commit the checkpoints that it names."""
        for number, node in self.members.active().items():
            if node.over:
                continue
            # First whether it ended, then what it wrote: it may do both in between.
            ended = node.handle.ended()
            last = self._read(layout.node_exit(self.training, self.number, number))
            while (beat := self._read(layout.beat(self.training, self.number, number, node.beats))) is not None:
                self._take_in(beat["ranks"], number)
                node.beats += 1
                node.unreachable = beat.get("unreachable", [])
                node.heard = time.monotonic()
            if last is not None:
                self._take_in([entry["report"] for entry in last["ranks"] if entry["report"] is not None], number)
            if last is not None or ended is not None:
                node.released = time.monotonic()
            silence_s = float(self.launch["silence_s"])
            if ended is not None and last is None:
                details = {"node": number, "log": node.handle.log()}
                # What Prefect says of a run ends with a full stop of its own.
                sentence = f"The supervisor of {self.members.called(number)} {ended.rstrip('. ')}."
                node.lost = NodeLost(sentence, details=details)
            elif last is None and node.joined is not None and time.monotonic() - node.heard > silence_s:
                sentence = f"{self.members.called(number).capitalize()} has published no heartbeat for {silence_s:g} s."
                node.lost = NodeLost(sentence, details={"node": number, "silent": True})
            # Last, so that all of this is done again if the store went away in between.
            node.exit = last
        if self.members.gang:
            self._hear_late()

    def _hear_late(self) -> None:
        """See whether nodes have come that the roll-call went on without, and whether the gang can grow by them."""
        for number, node in self.members.late().items():
            node.joined = self._read(layout.joined(self.training, self.number, number))
            larger = self.members.could_be()
            if node.joined is not None and larger > len(self.members.gang):
                self._grows_after = self._progress.checkpoint_step
                self._say(sentence=f"{self.members.called(number)} has come: {larger} nodes after the next checkpoint")

    def _read(self, path: str) -> dict[str, Any] | None:
        asked = time.monotonic()
        try:
            return self.store.read_json(path)
        except FileNotFoundError:
            return None
        finally:
            if (waited := time.monotonic() - asked) > SLOW_S:
                self._unheard(waited)

    def _take_in(self, reports: list[dict[str, Any]], node: int) -> None:
        for report in reports:
            self.pace.hear(report, self.members.called(node))
            self.micro_batch = report.get("micro_batch", 0) or self.micro_batch
            for checkpoint in report.get("checkpoints", []):
                self._commit_one(Checkpoint.from_json(checkpoint))
            if report["rank"] == 0:
                told: dict[str, Any] = {
                    name: report[name] for name in ("step", "epoch", "samples", "metrics") if name in report
                }
                if report.get("waits_for"):
                    told["sentence"] = f"waiting: {report['waits_for']}"
                self._say(**told)
                if report.get("begun_with", "") != self._begun_with:
                    self._begun_with = report["begun_with"]
                    self._say(sentence=f"init_from: {self._begun_with}")

    def _commit_one(self, checkpoint: Checkpoint) -> None:
        if checkpoint.training != self.training or checkpoint.generation > self.number:
            raise CorruptError(
                f"{checkpoint.ref.uri} was reported by generation {self.number}, which did not write it."
            )
        if checkpoint.generation < self.number:
            # The one it resumed from, at the last step already; what an older one left uncommitted is never read.
            return
        self._commit(checkpoint)
        if checkpoint.step > self._progress.checkpoint_step:
            self._say(checkpoint_step=checkpoint.step)

    def _answer(self) -> dict[str, Any]:
        """Rank 0's answer, its checkpoint committed."""
        answers = [entry for node in self.members.gang.values() for entry in (node.exit or {})["ranks"]]
        done = next(entry["done"] for entry in answers if entry["rank"] == 0)
        if done["checkpoint"] is not None:
            self._commit_one(Checkpoint.from_json(done["checkpoint"]))
        return done

    def _cause(self) -> TrainwrightError:
        cause = first_cause(self.members.active().values())
        # Connections broke, and nobody ended first: what the nodes can reach tells more.
        cut = links_between(self.members.gang, self.members.gang) if cause.details.get("link") else []
        return link_cut(cut) if cut else cause
