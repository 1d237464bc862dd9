"""Turns: what a run that a schedule or an event started does while an earlier run of its pipeline is unfinished.

Such runs of a pipeline hold one lease in the store, the *turn*, one after the other. Two that begin at once cannot both
find nobody, and a holder that died is found as for any lease. A run that a person or CI started takes no turn, but its
own lease counts: the others skip or wait for it, and never cancel it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, Interrupted, UsageError
from data_contracts.pipeline_spec.operations import Overlap
from infra import stopping
from infra.audit import now
from infra.processes.processes import uninterrupted
from infra.store import Store, layout
from infra.store.lease import PATIENCE_S, RENEW_EVERY_S, LeaseKeeper, held_lease, standing_still, with_process
from tasks.run.executions import unfinished_runs

LOOK_EVERY_S = 2.0
# A gang ends within seconds of a cancel; after this time people are told that it does not.
SLOW_S = 120.0

log = logging.getLogger("trainwright")


class Skipped(Exception):
    """An earlier run of the pipeline is unfinished, and this one is not to wait."""


@dataclass(frozen=True)
class Turn:
    """One run's claim to the turn of its pipeline.

    Attributes:
        key: the run's idempotency key: an execution of the same run is never skipped because of the other one.
        waits: whether it waits in any case: it continues a run that was begun before.
        scheduled_s: when it was meant to start; a run never cancels one that was meant to start later.
        patience_s: how long a lease must stand still before its holder counts as dead.
    """

    store: Store
    pipeline: str
    overlap: Overlap
    key: str
    waits: bool = False
    scheduled_s: int = 0
    patience_s: float = PATIENCE_S
    renew_s: float = RENEW_EVERY_S
    look_every_s: float = LOOK_EVERY_S

    @contextlib.contextmanager
    def hold(self, stop: Callable[[], None]) -> Iterator[threading.Event]:
        """Wait for the turn and hold it; yields the event that a newer run asked this one to end.

        Args:
            stop: called once, in a thread of its own, when a newer run asks (`cancel_old`).

        Raises:
            Skipped: with `skip`, if an earlier run lives.
            HandedOver: the worker is stopped as planned while this run waits.
        """
        holder = f"{self._mark}{self.scheduled_s}/{uuid.uuid4().hex[:12]}"
        keeper = LeaseKeeper(self.store, self._path, holder, patience_s=self.patience_s, renew_s=self.renew_s)
        asked, over = threading.Event(), threading.Event()
        try:
            keeper.start()
            token = self._take(keeper)
            self._wait_for_others()
            path = layout.end_request(self.pipeline, token, with_process(holder))
            watch = threading.Thread(target=self._watch, args=(path, asked, over, stop), daemon=True)
            if self.overlap == "cancel_old":
                watch.start()
            yield asked
        finally:
            over.set()
            with uninterrupted():
                keeper.stop()

    @property
    def _path(self) -> str:
        return layout.turn(self.pipeline)

    @property
    def _mark(self) -> str:
        """How a holder begins that carries out the same run."""
        return f"{digest(self.key)[:16]}/"

    def _take(self, keeper: LeaseKeeper) -> int:
        """Wait until the turn is ours; its fencing token."""
        first, since, said = None, time.monotonic(), ""
        while (token := keeper.token(self.look_every_s)) is None:
            stopping.check()
            with contextlib.suppress(Interrupted):
                current = held_lease(self.store, self._path)
                if current is None:
                    continue
                if first is None or first.value["token"] != current.value["token"]:
                    first, since, said = current, time.monotonic(), ""
                if first == current:
                    continue  # its holder may be dead; one whose beat moves lives
                said = said or self._meet(current.value["holder"], current.value["token"])
                if said == "asked" and time.monotonic() - since > SLOW_S:
                    log.warning("The earlier run of %s was asked to end and has not ended yet.", self.pipeline)
                    since = time.monotonic()
        return token

    def _meet(self, holder: str, token: int) -> str:
        """What to do about a turn whose holder lives: `asked` it to end, or `waits`; Skipped."""
        same = self.waits or holder.startswith(self._mark)
        if self.overlap == "skip" and not same:
            raise Skipped(self._unfinished(self._living_runs()))
        if self.overlap == "cancel_old" and not same:
            if _time_in(holder) > self.scheduled_s:
                raise Skipped(f"A newer run of {self.pipeline} is at work (schedule.overlap: cancel_old).")
            record = {"schema_version": 1, "at": now()}
            self.store.create_once(layout.end_request(self.pipeline, token, holder), record)
            log.info("%s It is cancelled.", self._unfinished([]))
            return "asked"
        log.info("%s This one waits.", self._unfinished([]))
        return "waits"

    def _wait_for_others(self) -> None:
        """Wait for runs that hold no turn, because a person or CI started them; Skipped with `skip`."""
        has_said = False
        while living := self._living_runs():
            if self.overlap == "skip" and not self.waits:
                raise Skipped(self._unfinished(living))
            if not has_said:
                log.info("%s This one waits.", self._unfinished(living))
                has_said = True
            stopping.check()
            time.sleep(self.look_every_s)

    def _living_runs(self) -> list[str]:
        """The unfinished runs of the pipeline whose process lives, apart from this one."""
        paths = {}
        for run_id in unfinished_runs(self.store):
            path = layout.lease(layout.run(run_id))
            with contextlib.suppress(CorruptError, UsageError):  # the reaper reports damage
                if held_lease(self.store, path) is not None and self._is_another(run_id):
                    paths[path] = run_id
        dead = standing_still(self.store, paths, patience_s=self.patience_s, unreadable=lambda *_: None)
        return [run_id for path, run_id in paths.items() if path not in dead and self._is_held(path)]

    def _is_held(self, path: str) -> bool:
        with contextlib.suppress(CorruptError, UsageError):
            return held_lease(self.store, path) is not None
        return False

    def _is_another(self, run_id: str) -> bool:
        pipeline = self.store.read_as(layout.resolved(run_id), lambda value: str(value["spec"]["name"]))
        mine = self.store.find_as(layout.trigger(self.key), lambda value: value["run_id"])
        return pipeline == self.pipeline and run_id != mine

    def _unfinished(self, living: list[str]) -> str:
        which = f"The run {living[0]}" if living else "An earlier run"
        return f"{which} of {self.pipeline} is unfinished (schedule.overlap: {self.overlap})."

    def _watch(self, path: str, asked: threading.Event, over: threading.Event, stop: Callable[[], None]) -> None:
        while not over.wait(self.look_every_s):
            with contextlib.suppress(Interrupted):
                if self.store.exists(path):
                    asked.set()
                    log.info("A newer run of %s takes the place of this one (schedule.overlap).", self.pipeline)
                    stop()
                    return


def _time_in(holder: str) -> int:
    """When the holder of a turn was meant to start; 0 if it does not say so."""
    parts = holder.split("/")
    return int(parts[1]) if len(parts) > 2 and parts[1].isascii() and parts[1].isdigit() else 0
