"""The conductor of a training: holds its lease, launches one generation after another, commits checkpoints.

It starts no process itself: `start` does, on this machine or elsewhere, and everything else goes through the store.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from data_contracts.errors import Cancelled, Interrupted, StorageUnavailable, TrainwrightError, UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.spec import RetrySpec
from data_contracts.spec.model import SelectSpec
from infra import stopping
from infra.launch.generation import Generation, Progress
from infra.launch.keeper import Keeper
from infra.launch.local import Room, Start, local
from infra.launch.patience import patiently
from infra.launch.processes import terminable, uninterrupted
from infra.launch.recovery import Recovery
from infra.launch.shelf import why_from
from infra.launch.trail import Trail
from infra.store import Store, layout
from infra.store.lease import RENEW_EVERY_S

WAIT_S = 0.2
MAX_BACKOFF_S = 30.0
# What a launch says unless its caller says otherwise; see `conduct`.
DEFAULTS: dict[str, Any] = {
    "schema_version": 1,
    "entry": "training.rank",
    "heartbeat_s": 1.0,
    "poll_s": 0.1,
    # Another 3 s pass until the other nodes have said what they know: 15 s in all.
    "silence_s": 12.0,
    "lease_silence_s": 60.0,
    "hang_s": 45.0,
    "stall_s": 1800.0,
    "grace_s": 30.0,
    "code": None,
    "dataset": None,
    "mixture": {},
    "begin": None,
}


@dataclass(frozen=True)
class GangOutcome:
    """What conducting a training came to.

    Attributes:
        checkpoint: the one handed over.
        node_seconds: from launch to release, over the nodes of every generation that this conductor launched.
        generations: how many there have been, other conductors' included.
        dropped_rows: rows of the last incomplete global batch that training left out.
        wait_share: share of the last generation's time that rank 0 waited for data; 0 where it was not trained here.
        wait_cause: what took longest in preparing the data.
        begun_with: what was and was not loaded from `train.init_from`; "" without one.
        happened: sentences about what makes it differ from an undisturbed training.
    """

    checkpoint: Checkpoint
    node_seconds: float
    generations: int
    dropped_rows: int
    wait_share: float = 0.0
    wait_cause: str = ""
    begun_with: str = ""
    happened: list[str] = field(default_factory=list)


def conduct(
    store: Store,
    training: str,
    launch: dict[str, Any],
    *,
    holder: str,
    retry: RetrySpec,
    keep: int,
    select: SelectSpec | None,
    rollcall_timeout_s: float,
    from_step: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    start: Start | None = None,
    room: Room | None = None,
    patience_s: float = 30.0,
) -> GangOutcome:
    """Train to the end, over as many generations as the budgets allow; return a finished training's result.

    While another conductor holds the lease this one waits, and returns the other's result.

    Args:
        launch: what each generation is told: `nodes`, `devices`, `train`, `dataset` (Dataset or None), `mixture` (name
            → Dataset that its rows are mixed with), `begin` (Checkpoint of an earlier attempt, until one of its own
            is committed), `code` (Ref of the bundle or None), `code_digest`,
            `data_external`, `provenance`. Optional: `entry` (module of a rank), `heartbeat_s`, `poll_s`, `grace_s` (for
            a checkpoint after SIGTERM), `min_nodes` (to go on with; default all), `silence_s` (of a node's beats, after
            which it is lost), `lease_silence_s` (of the conductor's lease, after which its nodes end), `hang_s` (in
            which a rank does nothing, after which it is hung), `stall_s` (the same before its first step and while a
            checkpoint is saved).
        holder: who conducts, as another conductor that waits is told; made unique here.
        keep: how many of the newest checkpoints stay, besides the one that `select` prefers.
        from_step: go on from the committed checkpoint of this step; later ones are set aside.
        start: launches a node; default: as a process on this machine.
        room: admits the nodes of a generation, whole or not at all; held to the end. Default: there is room.
        patience_s: how long the lease of another must stand still before it is taken over.

    Raises:
        Cancelled: KeyboardInterrupt, SIGTERM, or another signal's exception; no process is left, the lease is free.
        TrainwrightError: the cause, once its budget is spent; `details["node_seconds"]` says what was used.
    """
    launch = {**DEFAULTS, **launch, "training": training}
    start = start or local(store.uri, store.storage_options, training)
    unique = f"{holder}/{uuid.uuid4().hex[:12]}"
    conductor = _Conductor(store, training, launch, unique, start, room, on_progress, from_step)
    try:
        with terminable():
            return conductor.run(retry, keep, select, rollcall_timeout_s, patience_s)
    except TrainwrightError as error:
        error.details.setdefault("node_seconds", conductor.node_seconds)
        raise
    except Exception:
        raise
    except BaseException as signal:
        # KeyboardInterrupt, or what an orchestrator raises for a signal of its own: someone wants this to end.
        details = {"node_seconds": conductor.node_seconds}
        raise Cancelled(f"{training} was cancelled; no process is left.", details=details) from signal


def finished(training: str, checkpoint: Checkpoint) -> UsageError:
    """The answer to who would go back in a training that has handed its checkpoint over."""
    return UsageError(
        f"{training} is finished: it handed over step {checkpoint.step:,}, which is never taken back.",
        remedy="Leave --from out, or run the spec with --new to train again.",
    )


class _Conductor:
    def __init__(
        self,
        store: Store,
        training: str,
        launch: dict[str, Any],
        holder: str,
        start: Start,
        room: Room | None,
        on_progress: Callable[[Progress], None],
        from_step: int | None,
    ) -> None:
        self.store, self.training, self.launch = store, training, launch
        self.from_step, self.first = from_step, True
        self.holder, self.start, self.room, self.on_progress = holder, start, room, on_progress
        self.node_seconds = 0.0
        self.happened: list[str] = []

    def run(
        self,
        retry: RetrySpec,
        keep: int,
        select: SelectSpec | None,
        rollcall_timeout_s: float,
        patience_s: float,
    ) -> GangOutcome:
        if self._result() is not None:
            return self._attached()
        # Nodes give up after `lease_silence_s`; four beats within it.
        renew_s = min(RENEW_EVERY_S, float(self.launch["lease_silence_s"]) / 4)
        path = layout.lease(self.training)
        keeper = Keeper(self.store, path, self.holder, patience_s=patience_s, renew_s=renew_s)
        try:
            keeper.start()
            while (token := keeper.token(WAIT_S)) is None:
                if self._result() is not None:
                    return self._attached()
                sentence = "another run trains this; waiting for it"
                self.on_progress(Progress(self._next() - 1, "waiting", sentence=sentence))
            if self._result() is not None:
                return self._attached()
            if patiently(lambda: self.store.exists(layout.tombstone(self.training))):
                raise Interrupted(f"{self.training} was deleted meanwhile.", remedy="Resume: another takes its place.")
            trail = patiently(lambda: Trail(self.store, self.training, token))
            if trail.handed_over is not None:
                # By one that was ended before it could write so.
                self._write_result(trail.handed_over)
                return self._attached()
            if (step := self.from_step) is not None:
                patiently(lambda: trail.go_back(step, by=self.holder.rpartition("/")[0]))
            patiently(lambda: trail.delete_retired(by=self.holder))
            answer = self._generations(trail, keeper, retry, keep, select, rollcall_timeout_s)
            checkpoint = trail.chosen(select)
            patiently(lambda: trail.retire(keep, select, by=self.holder))
            patiently(lambda: trail.hand_over(checkpoint))
            self._write_result(checkpoint)
            plan = answer.get("plan") or {}
            dropped = int(plan.get("dropped_rows", checkpoint.dropped_rows))
            waits = (float(plan.get("wait_share", 0.0)), str(plan.get("wait_cause", "")))
            begun_with = str(plan.get("begun_with", ""))
            return GangOutcome(checkpoint, self.node_seconds, self._next(), dropped, *waits, begun_with, self.happened)
        finally:
            with uninterrupted():
                if self.room is not None:
                    self.room.give_back()
                keeper.stop()

    def _generations(
        self,
        trail: Trail,
        keeper: Keeper,
        retry: RetrySpec,
        keep: int,
        select: SelectSpec | None,
        rollcall_timeout_s: float,
    ) -> dict[str, Any]:
        """Launch generations until one is done; rank 0's answer. Raises the cause whose budget is spent."""
        recovery = Recovery(retry, self.launch, trail.skipped)
        self.happened = recovery.happened
        # Whether to wait for all nodes as long as for those that must be there.
        patient = True

        def commit(checkpoint: Checkpoint) -> None:
            if trail.commit(checkpoint):
                trail.retire(keep, select, by=self.holder)

        while True:
            generation: Generation | None = None
            try:
                self._admit(recovery.nodes, keeper)
                generation = Generation(
                    self.store,
                    self._tell(trail, recovery),
                    self.start,
                    commit=commit,
                    check=keeper.check,
                    on_progress=self.on_progress,
                )
                return generation.run(rollcall_timeout_s, patient=patient)
            except TrainwrightError as error:
                nodes, micro_batch = ({}, 0) if generation is None else (generation.nodes, generation.micro_batch)
                how = recovery.after(error, nodes, micro_batch)
                if recovery.skipped != trail.skipped:
                    patiently(lambda: trail.skip(list(recovery.skipped)))
                at = trail.newest.step if trail.newest else 0
                number = -1 if generation is None else generation.number
                what = "no generation began" if generation is None else f"generation {number} ended"
                sentence = f"{what} ({error.cause}): {error.message} {how + ' ' if how else ''}Going on from step {at}."
                self.on_progress(Progress(number, "ended", step=at, sentence=sentence))
                patient = bool(error.details.get("grows"))
                if isinstance(error, StorageUnavailable):
                    self._back_off(min(MAX_BACKOFF_S, 2.0 ** recovery.used(error)), keeper)
            finally:
                self.node_seconds += 0.0 if generation is None else generation.node_seconds

    def _admit(self, nodes: int, keeper: Keeper) -> None:
        """Wait until there is room for all nodes; what is held from the generation before counts."""
        last = self._next() - 1
        while self.room is not None and (waits := self.room.take(nodes)) is not None:
            stopping.check()
            keeper.check()
            self.on_progress(Progress(last, "waiting", sentence=waits))
            time.sleep(WAIT_S)

    def _tell(self, trail: Trail, recovery: Recovery) -> dict[str, Any]:
        """Write what the next generation is told."""
        resume = patiently(lambda: trail.resume_from(self.launch.get("sealed")))
        if resume is None and self.launch["begin"] is not None:
            resume = Checkpoint.from_json(self.launch["begin"])
        if resume is not None and self.first:
            why = patiently(lambda: why_from(self.store, self.training, resume.step, trail.aside))
            sentence = f"goes on from step {resume.step:,} ({why})"
            self.on_progress(Progress(self._next(), "starting", step=resume.step, sentence=sentence))
        self.first = False
        while True:
            number = self._next()
            told = {
                **self.launch,
                **recovery.told(),
                "generation": number,
                "token": trail.token,
                "resume": None if resume is None else resume.to_json(),
            }
            path = layout.launch(self.training, number)
            # Taken by a fenced conductor, or by this call, whose answer was lost: the number is left out then.
            with contextlib.suppress(FileExistsError):
                patiently(partial(self.store.create_json, path, told))
                return told

    def _write_result(self, checkpoint: Checkpoint) -> None:
        """Write what the trail says is handed over."""
        # There already: written by this very call, whose answer was lost, or by one that was fenced since.
        with contextlib.suppress(FileExistsError):
            patiently(lambda: self.store.create_json(layout.result(self.training), checkpoint.to_json()))

    def _result(self) -> Checkpoint | None:
        try:
            found = patiently(lambda: self.store.read_json(layout.result(self.training)))
        except FileNotFoundError:
            return None
        return Checkpoint.from_json(found)

    def _attached(self) -> GangOutcome:
        checkpoint = self._result()
        assert checkpoint is not None, "only called once result.json is there"
        if self.from_step is not None:
            raise finished(self.training, checkpoint)
        return GangOutcome(checkpoint, 0.0, self._next(), checkpoint.dropped_rows)

    def _next(self) -> int:
        """The first number that no generation has."""
        names = patiently(lambda: self.store.list(self.training))
        return 1 + max((int(name[1:]) for name in names if name[:1] == "g" and name[1:].isdigit()), default=-1)

    def _back_off(self, seconds: float, keeper: Keeper) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            keeper.check()
            time.sleep(0.1)
