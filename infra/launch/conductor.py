"""The conductor of a training: holds its lease, launches one generation after another, commits checkpoints.

It starts no process itself: `start` does, on this machine or elsewhere, and everything else goes through the store.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from data_contracts.errors import Cancelled, StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.spec import RetrySpec
from data_contracts.spec.model import SelectSpec
from infra.launch.generation import Generation, Progress
from infra.launch.keeper import Keeper
from infra.launch.local import Start, local
from infra.launch.patience import patiently
from infra.launch.processes import terminable, uninterrupted
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
    "silence_s": 60.0,
    "stall_s": 1800.0,
    "grace_s": 30.0,
    "code": None,
    "dataset": None,
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
    """

    checkpoint: Checkpoint
    node_seconds: float
    generations: int
    dropped_rows: int
    wait_share: float = 0.0
    wait_cause: str = ""


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
    on_progress: Callable[[Progress], None] = lambda progress: None,
    start: Start | None = None,
    patience_s: float = 30.0,
) -> GangOutcome:
    """Train to the end, over as many generations as the budgets allow; return a finished training's result.

    While another conductor holds the lease this one waits, and returns the other's result.

    Args:
        launch: what each generation is told: `nodes`, `devices`, `train`, `dataset` (Dataset or None), `code` (Ref of
            the bundle or None), `code_digest`, `data_external`, `provenance`. Optional: `entry` (module of a
            rank), `heartbeat_s`, `poll_s`, `grace_s` (for a checkpoint after SIGTERM), `silence_s` (of a
            node's beats or the conductor's lease, after which the other side gives up), `stall_s` (in which no rank
            makes a step or a checkpoint, after which the generation is hung).
        holder: who conducts, as another conductor that waits is told; made unique here.
        keep: how many of the newest checkpoints stay, besides the one that `select` prefers.
        start: launches a node; default: as a process on this machine.
        patience_s: how long the lease of another must stand still before it is taken over.

    Raises:
        Cancelled: KeyboardInterrupt, SIGTERM, or another signal's exception; no process is left, the lease is free.
        TrainwrightError: the cause, once its budget is spent; `details["node_seconds"]` says what was used.
    """
    launch = {**DEFAULTS, **launch, "training": training}
    start = start or local(store.uri, store.storage_options, training)
    conductor = _Conductor(store, training, launch, f"{holder}/{uuid.uuid4().hex[:12]}", start, on_progress)
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


class _Conductor:
    def __init__(
        self,
        store: Store,
        training: str,
        launch: dict[str, Any],
        holder: str,
        start: Start,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.store, self.training, self.launch = store, training, launch
        self.holder, self.start, self.on_progress = holder, start, on_progress
        self.node_seconds = 0.0

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
        # Nodes give up after `silence_s`; four beats within it.
        renew_s = min(RENEW_EVERY_S, float(self.launch["silence_s"]) / 4)
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
            trail = patiently(lambda: Trail(self.store, self.training, token))
            patiently(lambda: trail.delete_retired(by=self.holder))
            answer = self._generations(trail, keeper, retry, keep, select, rollcall_timeout_s)
            checkpoint = trail.chosen(select)
            patiently(lambda: trail.retire(keep, select, by=self.holder))
            patiently(trail.confirm)
            # There already: written by this very call, whose answer was lost.
            with contextlib.suppress(FileExistsError):
                patiently(lambda: self.store.create_json(layout.result(self.training), checkpoint.to_json()))
            plan = answer.get("plan") or {}
            dropped = int(plan.get("dropped_rows", checkpoint.dropped_rows))
            waits = (float(plan.get("wait_share", 0.0)), str(plan.get("wait_cause", "")))
            return GangOutcome(checkpoint, self.node_seconds, self._next(), dropped, *waits)
        finally:
            with uninterrupted():
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
        used: Counter[str] = Counter()

        def commit(checkpoint: Checkpoint) -> None:
            if trail.commit(checkpoint):
                trail.retire(keep, select, by=self.holder)

        while True:
            generation: Generation | None = None
            try:
                generation = Generation(
                    self.store,
                    self._tell(trail),
                    self.start,
                    commit=commit,
                    check=keeper.check,
                    on_progress=self.on_progress,
                )
                return generation.run(rollcall_timeout_s)
            except TrainwrightError as error:
                key = error.retry_key
                budget = getattr(retry, key, 0) if key else 0
                used[key or ""] += 1
                if used[key or ""] > budget:
                    raise
                at = trail.newest.step if trail.newest else 0
                number = -1 if generation is None else generation.number
                what = "no generation began" if generation is None else f"generation {number} ended"
                sentence = f"{what} ({error.cause}): {error.message} Going on from step {at}."
                self.on_progress(Progress(number, "ended", step=at, sentence=sentence))
                if isinstance(error, StorageUnavailable):
                    self._back_off(min(MAX_BACKOFF_S, 2.0 ** used[key or ""]), keeper)
            finally:
                self.node_seconds += 0.0 if generation is None else generation.node_seconds

    def _tell(self, trail: Trail) -> dict[str, Any]:
        """Write what the next generation is told."""
        resume = patiently(trail.resume_from)
        while True:
            number = self._next()
            told = {
                **self.launch,
                "generation": number,
                "token": trail.token,
                "resume": None if resume is None else resume.to_json(),
            }
            path = layout.launch(self.training, number)
            # Taken by a fenced conductor, or by this call, whose answer was lost: the number is left out then.
            with contextlib.suppress(FileExistsError):
                patiently(partial(self.store.create_json, path, told))
                return told

    def _result(self) -> Checkpoint | None:
        try:
            found = patiently(lambda: self.store.read_json(layout.result(self.training)))
        except FileNotFoundError:
            return None
        return Checkpoint.from_json(found)

    def _attached(self) -> GangOutcome:
        checkpoint = self._result()
        assert checkpoint is not None, "only called once result.json is there"
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
