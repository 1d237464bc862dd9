"""A training's trail of committed checkpoints: its `latest` pointer, which only the conductor moves.

The pointer holds the fencing token of whoever may move it and the checkpoints kept, oldest first. A new conductor
rewrites it with its own token before it reads it, so that an older one's next move fails. Checkpoints that are being
deleted stay in it, as `retiring`, until they are: whoever is cut off, the next one finishes that.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Any

from data_contracts.errors import CorruptError, Fenced, UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.spec.model import SelectSpec
from infra.store import PointerMoved, Store, Versioned, layout

log = logging.getLogger(__name__)


class Trail:
    """The committed checkpoints of one training, held by one conductor."""

    def __init__(self, store: Store, training: str, token: int) -> None:
        self.store, self.training, self.token = store, training, token
        self._pointer = store.pointer(layout.latest(training))
        self._retiring: list[str] = []
        self._at = self._take_over()
        self.checkpoints = [Checkpoint.from_json(value) for value in self._at.value["checkpoints"]]

    @property
    def newest(self) -> Checkpoint | None:
        """The last one committed."""
        return self.checkpoints[-1] if self.checkpoints else None

    def commit(self, checkpoint: Checkpoint) -> bool:
        """Re-read a checkpoint's seal and move `latest` to it; False if it was committed before.

        Raises CorruptError if it is not what its rank sealed, Fenced if another conductor owns the training.
        """
        if any(known.ref.uri == checkpoint.ref.uri for known in self.checkpoints):
            return False
        if self.newest is not None and checkpoint.step < self.newest.step:
            # Of an earlier step than what is committed: reported again after it was retired.
            return False
        try:
            self.store.manifest(checkpoint.ref)
        except FileNotFoundError as error:
            raise CorruptError(f"{checkpoint.ref.uri} was reported as a checkpoint, but it is not sealed.") from error
        self._move([*self.checkpoints, checkpoint])
        return True

    def resume_from(self) -> Checkpoint | None:
        """The newest checkpoint whose every byte is as sealed; None if none was ever committed.

        Broken ones are quarantined and leave the trail. CorruptError if none is left.
        """
        good = list(self.checkpoints)
        broken: list[Checkpoint] = []
        while good:
            try:
                self.store.verify(good[-1].ref)
                break
            except (CorruptError, FileNotFoundError) as error:
                log.warning("the checkpoint %s is not used: %s", good[-1].ref.uri, error)
                self._quarantine(good[-1], str(error))
                broken.append(good.pop())
        if broken and not good:
            names = ", ".join(checkpoint.ref.uri for checkpoint in broken)
            raise CorruptError(
                f"No committed checkpoint of {self.training} is whole: {names}.",
                remedy="Restore one of them from a copy, or run with --new to train from the start.",
            )
        if broken:
            self._move(good)
        return good[-1] if good else None

    def retire(self, keep: int, select: SelectSpec | None, *, by: str) -> None:
        """Delete older checkpoints: all but the `keep` newest and the one that `select` prefers so far."""
        kept = self.checkpoints[-keep:]
        best = self.best(select)
        if best is not None and best not in kept:
            kept = [best, *kept]
        retired = [checkpoint for checkpoint in self.checkpoints if checkpoint not in kept]
        if retired:
            # Out of the trail first: what it names is there at any moment.
            self._move(kept, [checkpoint.ref.uri for checkpoint in retired])
        self.delete_retired(by=by)

    def delete_retired(self, *, by: str) -> None:
        """Delete what was retired, by this conductor or one before it; may be repeated if it fails."""
        while self._retiring:
            self.store.remove(self._retiring[0], why="older than the checkpoints that are kept", by=by)
            # The pointer may still name it until its next move; deleting it again does nothing.
            self._retiring.pop(0)

    def best(self, select: SelectSpec | None) -> Checkpoint | None:
        """The checkpoint with the best value of the selected metric, the earliest of equals; None if it has none."""
        if select is None:
            return None
        scored = [c for c in self.checkpoints if math.isfinite(c.metrics.get(select.metric, math.nan))]
        sign = 1 if select.mode == "min" else -1
        return min(scored, key=lambda c: sign * c.metrics[select.metric], default=None)

    def chosen(self, select: SelectSpec | None) -> Checkpoint:
        """What train hands over: the last checkpoint, or the one that `select` names; UsageError if it names none."""
        assert self.newest is not None, "a training that is done has committed its last step"
        if select is None:
            return self.newest
        best = self.best(select)
        if best is None:
            known = ", ".join(sorted(self.newest.metrics)) or "none"
            raise UsageError(
                f"train.select.metric: {select.metric} was not logged before any checkpoint; logged were: {known}.",
                remedy="Log it in the module (validation_step), or name one that is logged.",
            )
        return best

    def confirm(self) -> None:
        """Raise Fenced unless this conductor still owns the training."""
        self._move(self.checkpoints)

    def _take_over(self) -> Versioned:
        while True:
            at = self._pointer.read()
            if at is not None and at.value["token"] > self.token:
                raise Fenced(f"{self.training} was taken over by another conductor.")
            self._retiring = [] if at is None else list(at.value.get("retiring", []))
            value = self._value([] if at is None else at.value["checkpoints"], self._retiring)
            try:
                return self._pointer.create(value) if at is None else self._pointer.swap(at, value)
            except PointerMoved:
                continue

    def _move(self, checkpoints: list[Checkpoint], retired: Sequence[str] = ()) -> None:
        retiring = [*self._retiring, *retired]
        value = self._value([checkpoint.to_json() for checkpoint in checkpoints], retiring)
        while True:
            try:
                self._at = self._pointer.swap(self._at, value)
                break
            except PointerMoved as moved:
                if moved.current is None or moved.current.value["token"] != self.token:
                    raise Fenced(f"{self.training} was taken over by another conductor.") from moved
                # A move of ours that had seemed to fail did arrive: go on from it.
                self._at = moved.current
        self.checkpoints, self._retiring = checkpoints, retiring

    def _value(self, checkpoints: list[dict[str, Any]], retiring: list[str]) -> dict[str, Any]:
        return {"schema_version": 1, "token": self.token, "checkpoints": checkpoints, "retiring": retiring}

    def _quarantine(self, checkpoint: Checkpoint, reason: str) -> None:
        path = layout.quarantined(checkpoint.ref.uri)
        with contextlib.suppress(FileExistsError):
            self.store.create_json(path, {"schema_version": 1, "reason": reason})
