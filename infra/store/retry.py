"""Retry and watch against a store that may be unreachable for a while: silence counts only while the store answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from data_contracts.errors import Cancelled, Fenced, NodeLost, StorageUnavailable
from data_contracts.messages.gang import CancelMarker, Launch
from infra.processes.process_id import has_ended
from infra.store import Store, layout
from infra.store.lease import process_of

T = TypeVar("T")
# A store that is unreachable for longer does not recover by itself; holding machines any longer only costs.
STORE_PATIENCE_S = 900.0
RETRY_S = 0.5

log = logging.getLogger("trainwright")


def patiently(
    work: Callable[[], T],
    patience_s: float = STORE_PATIENCE_S,
    on_wait: Callable[[StorageUnavailable], None] = lambda error: None,
) -> T:
    """`work()`, retried while the store is unreachable; StorageUnavailable after more than `patience_s`.

    Args:
        on_wait: called with the reason before each further try.
    """
    deadline = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            return work()
        except StorageUnavailable as error:
            if time.monotonic() > deadline:
                raise
            if not is_told:
                log.warning("waiting for the store, at most %g s: %s", patience_s, error.message)
            is_told = True
            on_wait(error)
            time.sleep(RETRY_S)


class Outage:
    """How long the store has been unreachable, over several attempts."""

    def __init__(self, patience_s: float = STORE_PATIENCE_S) -> None:
        self.patience_s = patience_s
        self.since: float | None = None
        self.error: StorageUnavailable | None = None

    def tolerate(self, work: Callable[[], object]) -> bool:
        """Whether `work()` reached the store; raises StorageUnavailable once the outage is too long."""
        try:
            work()
        except StorageUnavailable as error:
            self.failed(error)
            return False
        self.answered()
        return True

    def failed(self, error: StorageUnavailable) -> None:
        """Record that the store did not answer; raises `error` once the outage is too long."""
        self.since = self.since if self.since is not None else time.monotonic()
        self.error = error
        if time.monotonic() - self.since > self.patience_s:
            raise error

    def answered(self) -> None:
        """Record that the store answered."""
        self.since = self.error = None


class ConductorWatch:
    """A node's view of its conductor: the cancel marker, the token, and whether it lives.

    A conductor has died if its lease's beat stands still. A conductor on this machine has also died if the process that
    its lease names has ended.
    """

    def __init__(self, store: Store, launch: Launch) -> None:
        self.store = store
        self.training, self.generation = launch.training, launch.generation
        self.token, self.silence_s = launch.token, launch.lease_silence_s
        # A request to a bucket costs money; a request to a folder costs only a little time of the ranks' cores.
        self.interval_s = launch.heartbeat_s / (2 if store.is_local else 1)
        self.outage = Outage()
        self._next = 0.0
        self._beat: Any = None
        self._heard = time.monotonic()
        # Whether the conductor asks the ranks to save a checkpoint and end.
        self.wants_end = False

    def tolerantly(self, work: Callable[[], object]) -> bool:
        """Whether `work()` reached the store. Where this node cannot write, its conductor may not be able to either."""
        reached = self.outage.tolerate(work)
        if not reached:
            self._heard = time.monotonic()
        return reached

    def look(self) -> None:
        """Read from the store whether this generation continues, at most once in `interval_s`.

        Raises:
            Cancelled: the generation has a cancel marker.
            Fenced: a newer conductor holds the lease.
            NodeLost: the conductor's process has ended on this machine, or the lease's beat stood still for `silence_s`
                while the store answered.
            StorageUnavailable: the store has not answered for too long.
        """
        if time.monotonic() < self._next:
            return
        self.tolerantly(self._look)
        self._next = time.monotonic() + self.interval_s

    def _look(self) -> None:
        path = layout.cancel(self.training, self.generation)
        if self.store.exists(path):
            marker = self.store.read_as(path, CancelMarker.from_json)
            self.wants_end = marker.saves
            if not marker.saves:
                details = {"stacks": marker.stacks}
                raise Cancelled(f"Generation {self.generation} of {self.training} was cancelled.", details=details)
        lease = self.store.pointer(layout.lease(self.training)).read()
        beat = None if lease is None else lease.value
        if beat is not None and beat["token"] > self.token:
            raise Fenced(f"Generation {self.generation} of {self.training} is over: the lease has a newer owner.")
        process = None if beat is None else process_of(str(beat.get("holder")))
        if process is not None and has_ended(process):
            raise NodeLost(f"The conductor of {self.training} has died: its process {process.pid} has ended.")
        if beat != self._beat:
            self._beat, self._heard = beat, time.monotonic()
        elif time.monotonic() - self._heard > self.silence_s:
            raise NodeLost(f"The conductor of {self.training} has not renewed its lease for {self.silence_s:g} s.")


class Background:
    """Work in a daemon thread, so that the thread that waits for it can keep watching meanwhile."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the work has ended, with or without an error."""
        return not self._thread.is_alive()

    def result(self) -> Any:
        """What the work returned; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
