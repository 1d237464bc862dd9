"""A training's trail of committed checkpoints: its `latest` pointer, which only the conductor moves.

The pointer holds the fencing token of whoever may move it and the checkpoints kept, oldest first. A new conductor
rewrites it with its own token before it reads it, so that an older one's next move fails. Checkpoints that are being
deleted stay in it, as `retiring`, until they are, and those that are being marked as broken, as `broken`: whoever is
cut off, the next one finishes that. Those that someone went back behind stay in it, as `aside`, with the reason: they
are kept, and never resumed from. So do the samples that are passed over, as `skipped`, and at the end the checkpoint
that is handed over: decided here, where a conductor that lost the training moves nothing, before it is written.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, Fenced, UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.spec.model import SelectSpec
from infra import audit
from infra.checkpoints import check_told, read_trained_with, verify_checkpoint
from infra.launch.shelf import Aside
from infra.store import PointerMoved, Store, Versioned, layout

log = logging.getLogger(__name__)
# A claim stands for the day on which it was made and for as long after it.
IN_USE_S = 86_400.0


class Trail:
    """The committed checkpoints of one training, held by one conductor."""

    def __init__(self, store: Store, training: str, token: int) -> None:
        self.store, self.training, self.token = store, training, token
        self._pointer = store.pointer(layout.latest(training))
        self._retiring: list[str] = []
        self._broken: list[tuple[str, str]] = []
        self.aside: list[Aside] = []
        self.skipped: list[tuple[int, int]] = []
        self.handed_over: Checkpoint | None = None
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
            check_told(self.store.manifest(checkpoint.ref), checkpoint)
        except FileNotFoundError as error:
            raise CorruptError(f"{checkpoint.ref.uri} was reported as a checkpoint, but it is not sealed.") from error
        self._move([*self.checkpoints, checkpoint])
        return True

    def resume_from(self, sealed: dict[str, Any] | None = None) -> Checkpoint | None:
        """The newest checkpoint whose every byte is as sealed; None if none was ever committed.

        Broken ones are quarantined and leave the trail. CorruptError if none is left.

        Args:
            sealed: what this training trains with, which its checkpoints must say, too.
        """
        self._quarantine()
        good = list(self.checkpoints)
        broken: list[Checkpoint] = []
        reasons: list[str] = []
        while good:
            try:
                self._verify(good[-1], sealed)
                break
            except (CorruptError, FileNotFoundError) as error:
                log.warning("the checkpoint %s is not used: %s", good[-1].ref.uri, error)
                reasons.append(error.message if isinstance(error, CorruptError) else "it is gone.")
                broken.append(good.pop())
        if broken:
            # The pointer first: a conductor that lost the training marks nothing, and one that took it marks the rest.
            self._broken += zip([checkpoint.ref.uri for checkpoint in broken], reasons, strict=True)
            self._move(good or self.checkpoints)
        self._quarantine()
        if broken and not good:
            names = ", ".join(checkpoint.ref.uri for checkpoint in broken)
            raise CorruptError(
                f"No committed checkpoint of {self.training} is whole: {names}.",
                remedy="Restore one of them from a copy, or run with --new to train from the start.",
            )
        return good[-1] if good else None

    def go_back(self, step: int, *, by: str) -> None:
        """Make the committed checkpoint of `step` the newest; later ones are set aside, all in one move.

        UsageError naming the committed steps if it is none of them; CorruptError if its bytes are not as sealed.
        """
        chosen = at_step(self.checkpoints, step, self.training)
        try:
            self.store.verify(chosen.ref)
        except FileNotFoundError as error:
            raise CorruptError(f"The checkpoint {chosen.ref.uri} is gone.") from error
        end = self.checkpoints.index(chosen) + 1
        reason = f"was set aside at {audit.now()}: {by} went back to step {step:,}"
        later = [Aside(checkpoint, reason) for checkpoint in self.checkpoints[end:]]
        if later:
            self._move(self.checkpoints[:end], aside=later)

    def retire(self, keep: int, select: SelectSpec | None, *, by: str) -> None:
        """Delete older checkpoints: all but the `keep` newest, the one that `select` prefers so far, and those in use.

        The newest one always stays.
        """
        best = self.best(select)
        kept = [*self.checkpoints[-max(keep, 1) :], *([] if best is None else [best])]
        retired = [one for one in self.checkpoints if one not in kept and not self._in_use(one.ref.uri)]
        if retired:
            # Out of the trail first: what it names is there at any moment.
            stay = [checkpoint for checkpoint in self.checkpoints if checkpoint not in retired]
            self._move(stay, [checkpoint.ref.uri for checkpoint in retired])
        self.delete_retired(by=by)

    def delete_retired(self, *, by: str) -> None:
        """Delete what was retired, by this conductor or one before it; may be repeated if it fails."""
        while self._retiring:
            uri = self._retiring[0]
            why = "older than the checkpoints that are kept"
            self.store.remove(uri, why=why, by=by, unless=partial(self._in_use, uri))
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

    def skip(self, samples: list[tuple[int, int]]) -> None:
        """Remember which samples (from, to) are passed over from now on."""
        self.skipped = samples
        self._move(self.checkpoints)

    def hand_over(self, checkpoint: Checkpoint) -> None:
        """Decide that this is what the training comes to; Fenced unless this conductor still owns it."""
        self.handed_over = checkpoint
        self._move(self.checkpoints)

    def _verify(self, checkpoint: Checkpoint, sealed: dict[str, Any] | None) -> None:
        manifest = verify_checkpoint(self.store, checkpoint)
        if sealed and canonical(read_trained_with(self.store, manifest)) != canonical(sealed):
            raise CorruptError(f"{checkpoint.ref.uri} was trained with other settings, code or data.")

    def _in_use(self, uri: str) -> bool:
        """Whether a checkpoint is verified, so that a model version may point to it, or was taken up for use lately."""
        recent = time.time() - IN_USE_S
        return self.store.exists(layout.verified(uri)) or self.store.last_claim_s(uri) > recent

    def _take_over(self) -> Versioned:
        while True:
            at = self._pointer.read()
            if at is not None and at.value["token"] > self.token:
                raise Fenced(f"{self.training} was taken over by another conductor.")
            self._retiring = [] if at is None else list(at.value.get("retiring", []))
            self.aside = [] if at is None else [Aside.from_json(one) for one in at.value.get("aside", [])]
            self._broken = [] if at is None else [(uri, reason) for uri, reason in at.value.get("broken", [])]
            self.skipped = [] if at is None else [(first, end) for first, end in at.value.get("skipped", [])]
            told = None if at is None else at.value.get("handed_over")
            self.handed_over = None if told is None else Checkpoint.from_json(told)
            value = self._value([] if at is None else at.value["checkpoints"], self._retiring, self.aside)
            try:
                return self._pointer.create(value) if at is None else self._pointer.swap(at, value)
            except PointerMoved:
                continue

    def _move(self, checkpoints: list[Checkpoint], retired: Sequence[str] = (), *, aside: Sequence[Aside] = ()) -> None:
        retiring, aside = [*self._retiring, *retired], [*self.aside, *aside]
        value = self._value([checkpoint.to_json() for checkpoint in checkpoints], retiring, aside)
        while True:
            try:
                self._at = self._pointer.swap(self._at, value)
                break
            except PointerMoved as moved:
                if moved.current is None or moved.current.value["token"] != self.token:
                    raise Fenced(f"{self.training} was taken over by another conductor.") from moved
                # A move of ours that had seemed to fail did arrive: go on from it.
                self._at = moved.current
        self.checkpoints, self._retiring, self.aside = checkpoints, retiring, aside

    def _value(self, checkpoints: list[dict[str, Any]], retiring: list[str], aside: list[Aside]) -> dict[str, Any]:
        value = {"schema_version": 1, "token": self.token, "checkpoints": checkpoints, "retiring": retiring}
        told: dict[str, Any] = {"skipped": self.skipped} if self.skipped else {}
        told |= {"broken": list(self._broken)} if self._broken else {}
        told |= {"handed_over": self.handed_over.to_json()} if self.handed_over else {}
        return {**value, "aside": [one.to_json() for one in aside], **told}

    def _quarantine(self) -> None:
        """Mark what was found broken, by this conductor or one before it; may be repeated if it fails."""
        while self._broken:
            uri, reason = self._broken[0]
            with contextlib.suppress(FileExistsError):
                self.store.create_json(layout.quarantined(uri), {"schema_version": 1, "reason": reason})
            self._broken.pop(0)


def at_step(checkpoints: Sequence[Checkpoint], step: int, training: str) -> Checkpoint:
    """The committed checkpoint of `step`, the newest of several; UsageError naming the steps that are committed."""
    found = [checkpoint for checkpoint in checkpoints if checkpoint.step == step]
    if not found:
        steps = ", ".join(dict.fromkeys(f"{checkpoint.step:,}" for checkpoint in checkpoints)) or "none"
        raise UsageError(
            f"{training} has no committed checkpoint of step {step:,}; committed steps: {steps}.",
            remedy="Name one of these, or leave --from out. `trainwright checkpoints RUN` lists all.",
        )
    return found[-1]
