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
    Fenced,
    GangIncomplete,
    Hung,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
    from_json,
)
from data_contracts.handoffs import Checkpoint
from infra import stopping
from infra.launch.local import Handle, Start
from infra.launch.patience import Outage, patiently
from infra.launch.processes import uninterrupted
from infra.store import Store, layout

log = logging.getLogger(__name__)
# After the first node failed, the others get this long to say why they ended too.
SETTLE_S = 3.0
# Which of several nodes' errors is the cause: a node's user code failing loses its peers their connections, not the
# other way round.
_PRECEDENCE = (
    Fenced,
    Cancelled,
    UserCodeError,
    UsageError,
    CorruptError,
    Preempted,
    StorageUnavailable,
    Hung,
    NodeLost,
)


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


@dataclass
class _Node:
    handle: Handle
    started: float
    released: float | None = None
    joined: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    beats: int = 0
    heard: float = 0.0
    lost: NodeLost | None = None

    @property
    def over(self) -> bool:
        return self.exit is not None or self.lost is not None


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
        self._nodes: list[_Node] = []
        self._outage = Outage()
        # What each rank has done so far, and when that last changed for any of them.
        self._done: dict[int, tuple[Any, ...]] = {}
        self._moved = time.monotonic()
        self._progress = Progress(self.number, "starting")

    @property
    def node_seconds(self) -> float:
        """Seconds from launch to release, added up over the nodes."""
        now = time.monotonic()
        return sum((node.released or now) - node.started for node in self._nodes)

    def run(self, rollcall_timeout_s: float) -> dict[str, Any]:
        """Start the nodes, follow them to the end and return rank 0's answer; raises the cause of a failure."""
        failed: BaseException | None = None
        try:
            for number in range(int(self.launch["nodes"])):
                # A signal that came between the start and this list would leave a node that nobody knows.
                with uninterrupted():
                    self._nodes.append(_Node(self._start(self.number, number), time.monotonic()))
            self._roll_call(rollcall_timeout_s)
            return self._follow()
        except BaseException as error:
            failed = error
            # The marker first: nodes elsewhere watch it, whatever becomes of this process.
            cause = error.cause if isinstance(error, TrainwrightError) else Cancelled.cause
            marker = {"schema_version": 1, "cause": cause}
            with uninterrupted(), contextlib.suppress(TrainwrightError, FileExistsError):
                self.store.create_json(layout.cancel(self.training, self.number), marker)
            raise
        finally:
            with uninterrupted():
                unkilled = self._release()
            if unkilled is not None and failed is None:
                raise unkilled

    def _release(self) -> Exception | None:
        """End every node, whatever becomes of the others; the first failure to do so."""
        first: Exception | None = None
        for number, node in enumerate(self._nodes):
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

    def _roll_call(self, timeout_s: float) -> None:
        """Wait until every node has joined, then fix where they meet; GangIncomplete names who is missing."""
        self._on_progress(self._progress)
        deadline = time.monotonic() + timeout_s
        while any(node.joined is None for node in self._nodes):
            stopping.check()
            self._check()
            self._reach(self._hear_roll)
            if any(node.over for node in self._nodes):
                raise self._cause()
            missing = [str(number) for number, node in enumerate(self._nodes) if node.joined is None]
            if missing and time.monotonic() > deadline:
                raise GangIncomplete(
                    f"Node {', '.join(missing)} of {len(self._nodes)} had not answered the roll-call of generation "
                    f"{self.number} after {timeout_s:g} s.",
                    details={"missing": missing, "log": "\n".join(n.handle.log() for n in self._nodes if not n.joined)},
                )
            if missing:
                time.sleep(self.poll_s)
        everyone = [node.joined for node in self._nodes]
        first = everyone[0] or {}
        meeting = {"schema_version": 1, "address": first["address"], "port": first["port"], "nodes": everyone}

        def fix() -> None:
            # There already: written by this very call, whose answer was lost.
            with contextlib.suppress(FileExistsError):
                self.store.create_json(layout.rollcall(self.training, self.number), meeting)

        while not self._reach(fix):
            time.sleep(self.poll_s)

    def _hear_roll(self) -> None:
        for number, node in enumerate(self._nodes):
            if node.joined is None:
                node.joined = self._read(layout.joined(self.training, self.number, number))
                node.heard = time.monotonic()
        self._hear()

    def _follow(self) -> dict[str, Any]:
        self._say(phase="training")
        self._moved = time.monotonic()
        settled: float | None = None
        while True:
            stopping.check()
            self._check()
            self._reach(self._hear)
            if all(node.exit is not None and node.exit["status"] == "done" for node in self._nodes):
                return patiently(self._answer)
            if any(node.lost is not None or (node.exit or {}).get("status") == "failed" for node in self._nodes):
                settled = settled or time.monotonic() + SETTLE_S
                if all(node.over for node in self._nodes) or time.monotonic() > settled:
                    raise self._cause()
            elif time.monotonic() - self._moved > float(self.launch["stall_s"]):
                raise self._hung()
            time.sleep(self.poll_s)

    def _hung(self) -> Hung:
        """No rank made a step or a checkpoint for `stall_s`: the one that is furthest behind is named."""
        behind = min(self._done, key=lambda rank: (self._done[rank], rank), default=None)
        who = "No rank has reported" if behind is None else f"Rank {behind} stands at step {self._done[behind][0]}"
        return Hung(
            f"{who}, and none made a step or a checkpoint for {float(self.launch['stall_s']):g} s.",
            remedy="Resume; if it stands there again, look at the rank's log and the batch it reads.",
            details={} if behind is None else {"rank": behind},
        )

    def _reach(self, work: Callable[[], None]) -> bool:
        """Do `work` on the store; False, and the cause shown, while it is away."""
        reached = self._outage.tolerate(work)
        self._say(sentence="" if reached or self._outage.error is None else f"waiting: {self._outage.error.message}")
        if not reached:
            # Silence counts only while the store answers.
            self._moved = time.monotonic()
            for node in self._nodes:
                node.heard = time.monotonic()
        return reached

    def _hear(self) -> None:
        """Read what the nodes have published since, and commit the checkpoints that it names."""
        for number, node in enumerate(self._nodes):
            if node.over:
                continue
            # First whether it ended, then what it wrote: it may do both in between.
            ended = node.handle.ended()
            last = self._read(layout.node_exit(self.training, self.number, number))
            while (beat := self._read(layout.beat(self.training, self.number, number, node.beats))) is not None:
                self._take_in(beat["ranks"])
                node.beats += 1
                node.heard = time.monotonic()
            if last is not None:
                self._take_in([entry["report"] for entry in last["ranks"] if entry["report"] is not None])
            if last is not None or ended is not None:
                node.released = time.monotonic()
            silence_s = float(self.launch["silence_s"])
            if ended is not None and last is None:
                node.lost = NodeLost(f"The supervisor of node {number} {ended}.", details={"log": node.handle.log()})
            elif last is None and node.joined is not None and time.monotonic() - node.heard > silence_s:
                node.lost = NodeLost(f"Node {number} has published no heartbeat for {silence_s:g} s.")
            # Last, so that all of this is done again if the store went away in between.
            node.exit = last

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            return self.store.read_json(path)
        except FileNotFoundError:
            return None

    def _take_in(self, reports: list[dict[str, Any]]) -> None:
        for report in reports:
            done = (report.get("step", 0), len(report.get("checkpoints", [])))
            if self._done.get(report["rank"]) != done:
                self._done[report["rank"]], self._moved = done, time.monotonic()
            for checkpoint in report.get("checkpoints", []):
                self._commit_one(Checkpoint.from_json(checkpoint))
            if report["rank"] == 0:
                told = {name: report[name] for name in ("step", "epoch", "samples", "metrics") if name in report}
                self._say(**told)

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
        done = next(entry["done"] for node in self._nodes for entry in (node.exit or {})["ranks"] if entry["rank"] == 0)
        if done["checkpoint"] is not None:
            self._commit_one(Checkpoint.from_json(done["checkpoint"]))
        return done

    def _cause(self) -> TrainwrightError:
        """The error that explains the others: a supervisor that vanished, else the first of `_PRECEDENCE`."""
        errors: list[TrainwrightError] = [node.lost for node in self._nodes if node.lost is not None]
        if errors:
            return errors[0]
        errors = [from_json(node.exit["error"]) for node in self._nodes if node.exit and node.exit["error"]]

        def rank(error: TrainwrightError) -> int:
            # An internal error stands before the consequences that it has elsewhere.
            places = [place for place, kind in enumerate(_PRECEDENCE) if isinstance(error, kind)]
            return places[0] if places else _PRECEDENCE.index(UsageError)

        return min(errors, key=rank)
