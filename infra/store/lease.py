"""The lease on a training: one conductor at a time, each with a higher fencing token than the one before.

The holder moves a beat by compare-and-set. A process that wants the lease waits until the beat has stood still for its
`patience_s`. It measures with its own clock and counts only time in which the store answered, because an unreachable
store silences the holder, too. It does not wait in two cases (ADR 0025):

* The text `holder` ends with the id of the holder's process. If that process ran on the same machine and has ended, the
  lease is taken at once.
* A conductor holds the lease of its run and that of its training. A process that took one of them because its beat had
  stood still takes the other one at once.

`LeaseKeeper` takes, renews and releases a lease for the process that does the work, in a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Fenced,
    NodeLost,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
)
from data_contracts.messages.gang import CancelMarker, Launch
from infra.processes.processes import ProcessId, has_ended, this_process
from infra.store import layout
from infra.store.records import Pointer, PointerMoved, Versioned, parsed
from infra.store.store import SilentProcesses, Store

log = logging.getLogger("trainwright")
RENEW_EVERY_S = 10.0
_POLL_S = 1.0
T = TypeVar("T")
# A store that is unreachable for longer does not recover by itself; holding machines any longer only costs.
STORE_PATIENCE_S = 900.0
RETRY_S = 0.5
PATIENCE_S = 30.0


class Lease:
    """A lease that is held. `token` is its fencing token, from 0; each take adds 1."""

    def __init__(self, pointer: Pointer, current: Versioned) -> None:
        self._pointer = pointer
        self._held = current
        self.token: int = current.value["token"]
        self.holder: str = current.value["holder"]

    @classmethod
    def take(
        cls,
        store: Store,
        path: str,
        holder: str,
        *,
        patience_s: float = 30,
        on_wait: Callable[[str, float], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Lease:
        """Take the lease at `path`, waiting while another holder's beat moves.

        Args:
            holder: who takes it; shown to others that wait.
            patience_s: how long the beat must stand still before the lease is taken over.
            on_wait: called about once a second while waiting, with the holder and how long the beat stood still.

        Raises: StorageUnavailable; a later call starts counting again from zero.
        """
        pointer = store.pointer(path)
        poll_s = min(_POLL_S, patience_s / 10)
        seen: Versioned | None = None
        still_s, answered = 0.0, clock()
        while True:
            current = _read(pointer)
            now = clock()
            # A gap much longer than the poll is time without an answer, or this machine slept: it does not count.
            still_s = still_s + min(now - answered, 2 * poll_s) if current == seen else 0.0
            seen, answered = current, now
            if (
                current is None
                or current.value["released"]
                or still_s >= patience_s
                or _may_take_at_once(current, store.silent, now)
            ):
                token = 0 if current is None else current.value["token"] + 1
                try:
                    lease = cls(pointer, pointer.swap(current, _value(holder, token, 0)))
                except PointerMoved:
                    continue  # another taker was faster, or the holder came back
                if current is not None and not current.value["released"]:
                    store.silent.note(process_of(current.value["holder"]), now)
                return lease
            if on_wait is not None:
                on_wait(current.value["holder"], still_s)
            sleep(poll_s)

    @classmethod
    def seize(cls, store: Store, path: str, holder: str, seen: Versioned | None) -> Lease | None:
        """Take the lease of a dead holder without waiting; None if it moved since it was `seen`.

        Args:
            seen: the lease as it was read; None: nobody has ever taken it. The other leases of a process that held it
                are then taken at once.
        """
        pointer, token = store.pointer(path), 0 if seen is None else seen.value["token"] + 1
        try:
            lease = cls(pointer, pointer.swap(seen, _value(holder, token, 0)))
        except PointerMoved:
            return None
        if seen is not None and not seen.value["released"]:
            store.silent.note(process_of(seen.value["holder"]), time.monotonic())
        return lease

    def renew(self) -> None:
        """Move the beat. Fenced if another process owns the lease; StorageUnavailable."""
        self._move(released=False)

    def release(self) -> None:
        """Release the lease, so that it can be taken at once; does nothing if another owns it. StorageUnavailable."""
        try:
            self._move(released=True)
        except Fenced:
            return

    def confirm(self) -> None:
        """Fenced if another process owns the lease; StorageUnavailable. May be called in any thread."""
        self._check(_read(self._pointer))

    def _check(self, current: Versioned | None) -> Versioned:
        if current is None or (current.value["token"], current.value["holder"]) != (self.token, self.holder):
            owner = "nobody" if current is None else _holder_name(current.value["holder"])
            raise Fenced(f"{self._pointer.path} now belongs to {owner}, no longer to {_holder_name(self.holder)}.")
        return current

    def _move(self, *, released: bool) -> None:
        beat = self._held.value["beat"] + 1
        try:
            self._held = self._pointer.swap(self._held, _value(self.holder, self.token, beat, released))
        except PointerMoved as error:
            # If it is still ours, an earlier beat that seemed to fail did arrive: continue from it.
            self._held = self._check(error.current)
            self._move(released=released)


def held_lease(store: Store, path: str) -> Versioned | None:
    """The lease at `path` as its holder last moved it; None if it is free. The lease of a dead holder stands still."""
    current = _read(store.pointer(path))
    return None if current is None or current.value["released"] else current


def standing_still(
    store: Store,
    paths: Iterable[str],
    *,
    patience_s: float = 30,
    unreadable: Callable[[str, TrainwrightError], None] | None = None,
    is_missed: Callable[[str], bool] = lambda _: False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Versioned | None]:
    """The leases of dead holders among `paths`: whose process has ended here, or whose beat stood still.

    Returns as soon as all others have moved or were released. Time counts as in `Lease.take`.

    Args:
        unreadable: called with each lease that is damaged, which is then left out; None: it raises.
        is_missed: whether somebody ought to hold a lease that is free; it is returned, as None, if it stays free.

    Raises: StorageUnavailable; CorruptError and UsageError for a lease that cannot be read.
    """

    def now_held(path: str) -> Versioned | None:
        try:
            return held_lease(store, path)
        except (CorruptError, UsageError) as error:
            if unreadable is None:
                raise
            unreadable(path, error)
            return None

    watched = {path: held for path in paths if (held := now_held(path)) is not None or is_missed(path)}
    dead = {path for path, held in watched.items() if held and _may_take_at_once(held, store.silent, clock())}
    poll_s = min(_POLL_S, patience_s / 10)
    still_s, answered = 0.0, clock()
    while watched.keys() - dead and still_s < patience_s:
        sleep(poll_s)
        for path in watched.keys() - dead:
            if now_held(path) != watched[path]:
                del watched[path]
        now = clock()
        still_s, answered = still_s + min(now - answered, 2 * poll_s), now
    return watched


class LeaseKeeper(threading.Thread):
    """Takes the lease, renews it and releases it.

    It is a thread, so that neither a slow store nor a slow caller lets the lease lapse. A signal reaches only the main
    thread, so it cannot interrupt between taking the lease and recording that it was taken.

    Args:
        path: the lease's path.
        holder: who takes it; shown to others that wait. This process's id is appended.
        patience_s: how long another holder's lease must stand still before it is taken over.
        renew_s: seconds between renewals.
        on_away: called, once for each outage, with the reason why the store does not take a renewal.

    Attributes:
        is_waiting: whether another holder was seen, for which it waited.
        away: why the store did not take the last renewal, such as a full disk; None if it did.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        holder: str,
        *,
        patience_s: float = PATIENCE_S,
        renew_s: float = RENEW_EVERY_S,
        on_away: Callable[[StorageUnavailable], object] = lambda error: None,
    ) -> None:
        super().__init__(daemon=True)
        self._store, self._path, self._holder = store, path, with_process(holder)
        self._patience_s, self._renew_s = patience_s, renew_s
        self._known, self._stopped, self._abandoned = threading.Event(), threading.Event(), False
        self._on_away = on_away
        self.is_waiting = False
        self.away: StorageUnavailable | None = None
        self._lease: Lease | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Take the lease and renew it until `stop` is called."""
        try:
            lease = self._take()
        except _Stopped:
            return
        except BaseException as error:
            self._error = error
            self._known.set()
            return
        self._lease = lease
        self._known.set()
        try:
            while not self._stopped.wait(self._renew_s):
                self._renew(lease)
            if not self._abandoned:
                with contextlib.suppress(Fenced, StorageUnavailable):
                    lease.release()
        except BaseException as error:
            self._error = error

    def token(self, timeout_s: float) -> int | None:
        """The lease's fencing token once the lease is held; None if it is not held within `timeout_s`."""
        self._known.wait(timeout_s)
        self.check()
        return None if self._lease is None else self._lease.token

    def confirm(self) -> None:
        """Fenced if the store says that another process holds the lease; nothing while the store does not answer."""
        self.check()
        if self._lease is not None:
            with contextlib.suppress(StorageUnavailable):
                self._lease.confirm()

    def check(self) -> None:
        """Raise Fenced if the lease was lost, or any other error of the keeper."""
        if self._error is not None:
            raise self._error

    def stop(self, *, abandon: bool = False) -> None:
        """Release the lease, or stop waiting for it, and end the thread.

        Args:
            abandon: leave the lease as it is, as if the process had been killed: a reaper answers that.
        """
        self._abandoned = abandon
        self._stopped.set()
        if self.is_alive():
            self.join()

    def _take(self) -> Lease:
        outage = Outage()

        def wait(*_: object) -> None:
            self.is_waiting = True
            outage.answered()

        while True:
            try:
                return Lease.take(
                    self._store,
                    self._path,
                    self._holder,
                    patience_s=self._patience_s,
                    on_wait=wait,
                    sleep=self._sleep,
                )
            except StorageUnavailable as error:
                outage.failed(error)
                self._sleep(RETRY_S)

    def _renew(self, lease: Lease) -> None:
        """Renew the lease; while the store does not take it, nobody else can take the lease either."""
        before = self.away
        try:
            lease.renew()
            self.away = None
        except StorageUnavailable as error:
            self.away = error
            if before is None:
                self._on_away(error)

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise _Stopped


class _Stopped(Exception):
    """`stop` was called while waiting for the lease."""


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
        # Whether the conductor asks the ranks to save a checkpoint and end; whether there is none any more.
        self.wants_end = self.is_gone = False

    def look(self, *, hears: bool = False) -> None:
        """Read from the store whether this generation continues, at most once in `interval_s`.

        Args:
            hears: whether the node hears its conductor, which lives then whatever its lease says: a store that takes no
                writes takes no renewal either.

        Raises:
            Cancelled: the generation has a cancel marker.
            Fenced: a newer conductor holds the lease.
            NodeLost: the conductor's process has ended on this machine, or the lease's beat stood still for `silence_s`
                while the store answered.
            StorageUnavailable: the store has not answered for too long.
        """
        if hears:
            self._heard = time.monotonic()
        if time.monotonic() < self._next:
            return
        if not self.outage.tolerate(self._look):
            # Where this node cannot reach the store, its conductor may not be able to either.
            self._heard = time.monotonic()
        self._next = time.monotonic() + self.interval_s

    def heed(self, marker: CancelMarker) -> None:
        """Note that the ranks are to save a checkpoint and end; Cancelled if the marker says to end at once."""
        self.wants_end = marker.saves
        if not marker.saves:
            details = {"stacks": marker.stacks}
            raise Cancelled(f"Generation {self.generation} of {self.training} was cancelled.", details=details)

    def _look(self) -> None:
        path = layout.cancel(self.training, self.generation)
        if self.store.exists(path):
            self.heed(self.store.read_as(path, CancelMarker.from_json))
        lease = self.store.pointer(layout.lease(self.training)).read()
        beat = None if lease is None else lease.value
        if beat is not None and beat["token"] > self.token:
            self.is_gone = True
            raise Fenced(f"Generation {self.generation} of {self.training} is over: the lease has a newer owner.")
        process = None if beat is None else process_of(str(beat.get("holder")))
        if process is not None and has_ended(process):
            self.is_gone = True
            raise NodeLost(f"The conductor of {self.training} has died: its process {process.pid} has ended.")
        if beat != self._beat:
            self._beat, self._heard = beat, time.monotonic()
        elif time.monotonic() - self._heard > self.silence_s:
            self.is_gone = True
            raise NodeLost(f"The conductor of {self.training} has not renewed its lease for {self.silence_s:g} s.")


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


def with_process(holder: str) -> str:
    """`holder` with this process's id appended, if it can be identified: the text that a lease holds."""
    process = this_process()
    return holder if process is None else f"{holder}@{process}"


def process_of(holder: str) -> ProcessId | None:
    """The process whose id `with_process` appended; None if there is none, as in leases of earlier versions."""
    return ProcessId.parse(holder.rpartition("@")[2])


def _may_take_at_once(current: Versioned, silent: SilentProcesses, now: float) -> bool:
    """Whether the holder's process has ended, or was silent when this process took another of its leases."""
    process = process_of(current.value["holder"])
    return process is not None and (has_ended(process) or silent.has(process, now))


def _holder_name(holder: str) -> str:
    return holder if process_of(holder) is None else holder.rpartition("@")[0]


def _read(pointer: Pointer) -> Versioned | None:
    current = pointer.read()
    if current is not None:
        parsed(pointer.path, _check, current.value)
    return current


def _check(value: dict[str, object]) -> None:
    kinds = {"beat": int, "holder": str, "released": bool, "token": int}
    if value.keys() != kinds.keys() or not all(type(value[name]) is kind for name, kind in kinds.items()):
        raise ValueError("it is not a lease")


def _value(holder: str, token: int, beat: int, released: bool = False) -> dict[str, object]:
    return {"beat": beat, "holder": holder, "released": released, "token": token}
