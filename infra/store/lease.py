"""The lease on a training: one conductor at a time, each with a higher fencing token than the one before.

The holder moves a beat by compare-and-set. A process that wants the lease waits until the beat has stood still for its
`patience_s`. It measures with its own clock and counts only time in which the store answered, because an unreachable
store silences the holder, too. It does not wait in two cases (ADR 0025):

* The text `holder` ends with the id of the holder's process. If that process ran on the same machine and has ended, the
  lease is taken at once.
* A conductor holds the lease of its run and that of its training. A process that took one of them because its beat had
  stood still takes the other one at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from data_contracts.errors import CorruptError, Fenced, TrainwrightError, UsageError
from infra.processes.process_id import ProcessId, has_ended, this_process
from infra.store.pointers import Pointer, PointerMoved, Versioned
from infra.store.records import parsed
from infra.store.silent_processes import SilentProcesses

if TYPE_CHECKING:
    from infra.store.store import Store

RENEW_EVERY_S = 10.0
_POLL_S = 1.0


class Lease:
    """A lease that is held. `token` is its fencing token, from 0; each take adds 1."""

    def __init__(self, pointer: Pointer, held: Versioned) -> None:
        self._pointer = pointer
        self._held = held
        self.token: int = held.value["token"]
        self.holder: str = held.value["holder"]

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


def _check(value: dict[str, Any]) -> None:
    kinds = {"beat": int, "holder": str, "released": bool, "token": int}
    if value.keys() != kinds.keys() or not all(type(value[name]) is kind for name, kind in kinds.items()):
        raise ValueError("it is not a lease")


def _value(holder: str, token: int, beat: int, released: bool = False) -> dict[str, Any]:
    return {"beat": beat, "holder": holder, "released": released, "token": token}
