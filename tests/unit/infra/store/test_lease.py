"""The lease, on a clock of the test's own: who gets it, when, and with which token."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from data_contracts.errors import Fenced, StorageUnavailable
from infra.processes.processes import ProcessId, this_process
from infra.store import Lease, Pointer, Store
from infra.store.lease import process_of, standing_still, with_process
from tests.support.processes import a_process, identified

PATH = "trainings/k-0/lease"


class Time:
    """Time that only `sleep` moves; `at` has what happens when so many seconds have passed."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps = 0
        self.at: dict[float, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        self.at.get(self.now - 1000.0, lambda: None)()


@pytest.fixture
def time() -> Time:
    return Time()


def take(store: Store, holder: str, time: Time, **options: object) -> Lease:
    return Lease.take(store, PATH, holder, sleep=time.sleep, clock=time.monotonic, **options)


def test_first_take_renew_release(store: Store, time: Time) -> None:
    beats = {"holder": "one", "released": False}
    for token in range(2):  # a released lease is taken at once, with the next token
        lease = take(store, "one", time)
        assert (lease.token, lease.holder, time.sleeps) == (token, "one", 0)
        assert store.pointer(PATH).read().value == {"beat": 0, "token": token, **beats}
        lease.renew()
        lease.renew()
        assert store.pointer(PATH).read().value == {"beat": 2, "token": token, **beats}
        lease.release()
        assert store.pointer(PATH).read().value == {"beat": 3, "token": token, **beats, "released": True}


def test_a_beat_that_stands_still_is_waited_for(store: Store, time: Time) -> None:
    first = take(store, "one", time)
    waits: list[tuple[str, float]] = []
    second = take(store, "two", time, on_wait=lambda holder, still_s: waits.append((holder, still_s)))
    assert time.now == 1030.0
    assert waits == [("one", float(n)) for n in range(30)]
    assert (second.token, second.holder) == (1, "two")
    with pytest.raises(Fenced, match=r"^trainings/k-0/lease now belongs to two, no longer to one\."):
        first.renew()
    first.release()  # says nothing and changes nothing
    assert store.pointer(PATH).read().value == {"beat": 0, "holder": "two", "released": False, "token": 1}
    second.renew()


def test_a_beat_that_moves_keeps_the_lease(folder_store: Store, time: Time) -> None:
    lease = take(folder_store, "one", time)
    time.at = dict.fromkeys(range(10, 200, 10), lease.renew)
    still: list[float] = []
    assert take(folder_store, "two", time, on_wait=lambda holder, still_s: still.append(still_s)).token == 1
    assert time.now == 1000 + 190 + 30
    assert max(still[:191]) == 9.0


def test_of_two_leases_only_the_one_that_never_moves_stands_still(folder_store: Store, time: Time) -> None:
    renewed, other = take(folder_store, "one", time), "trainings/k-1/lease"
    Lease.take(folder_store, other, "two")
    time.at[10] = renewed.renew
    still = standing_still(folder_store, [PATH, other], sleep=time.sleep, clock=time.monotonic)
    assert still.keys() == {other}


def test_time_without_an_answer_does_not_count(folder_store: Store, time: Time) -> None:
    """The taker's machine sleeps, or a read hangs, for ten minutes: the holder could not have renewed meanwhile."""
    take(folder_store, "one", time)

    def outage() -> None:
        time.now += 600

    time.at[5] = outage
    still: list[float] = []
    take(folder_store, "two", time, on_wait=lambda holder, still_s: still.append(still_s))
    assert still[:7] == [0, 1, 2, 3, 4, 6, 7]
    assert time.now == 1000 + 600 + 29


def test_a_store_that_is_away_does_not_end_a_lease(
    folder_store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(folder_store, "one", time)
    away = Mock(side_effect=StorageUnavailable("The store does not answer."))
    with monkeypatch.context() as patch:
        time.at[20] = lambda: patch.setattr(Pointer, "read", away)
        with pytest.raises(StorageUnavailable):
            take(folder_store, "two", time)
    before = time.now
    assert take(folder_store, "two", time).token == 1
    assert time.now == before + 30, "counts anew"


def test_of_two_takers_the_slower_goes_on_waiting(folder_store: Store, time: Time) -> None:
    take(folder_store, "one", time)
    pointer = folder_store.pointer(PATH)

    def other_takes() -> None:
        # Between this taker's look and its move another one takes the lease.
        real = type(pointer).swap

        def swap(self: object, expected: object, value: object) -> object:
            type(pointer).swap = real
            real(pointer, pointer.read(), {"beat": 0, "holder": "three", "released": False, "token": 1})
            return real(self, expected, value)

        type(pointer).swap = swap

    time.at[30] = other_takes
    waits: list[str] = []
    lease = take(folder_store, "two", time, on_wait=lambda holder, still_s: waits.append(holder))
    assert lease.token == 2
    assert waits == ["one"] * 30 + ["three"] * 30
    assert time.now == 1060.0


def test_a_beat_that_landed_unseen_is_gone_on_from(folder_store: Store, time: Time) -> None:
    lease = take(folder_store, "one", time)
    pointer = folder_store.pointer(PATH)
    pointer.swap(pointer.read(), {"beat": 1, "holder": "one", "released": False, "token": 0})
    lease.renew()
    assert pointer.read().value["beat"] == 2
    pointer.swap(pointer.read(), {"beat": 3, "holder": "one", "released": False, "token": 0})
    lease.release()
    assert pointer.read().value == {"beat": 4, "holder": "one", "released": True, "token": 0}


@pytest.mark.parametrize("holder", ["other", None])
def test_a_lease_that_was_lost_is_not_renewed(folder_store: Store, time: Time, holder: str | None) -> None:
    """Also if the other one has our token."""
    lease = take(folder_store, "one", time)
    pointer = folder_store.pointer(PATH)
    if holder is None:
        folder_store._backend.delete(PATH)
    else:
        pointer.swap(pointer.read(), {**pointer.read().value, "holder": holder})
    with pytest.raises(Fenced, match=f"now belongs to {holder or 'nobody'}"):
        lease.renew()


def test_the_holder_carries_its_process() -> None:
    mine = this_process()
    assert mine is not None, "these tests need /proc"
    assert process_of(with_process("run/1")) == mine
    assert with_process("run/1") == f"run/1@{mine}"
    # As earlier versions wrote it, and what nobody writes.
    for holder in ("run/1", "", "run/1@", "run@1/2/3", f"run/1@{mine} ", f"run/1@{mine.place}/0/5"):
        assert process_of(holder) is None


def test_a_lease_whose_holder_is_seen_dead_is_taken_at_once(folder_store: Store, time: Time) -> None:
    with a_process() as process:
        take(folder_store, f"one@{identified(process)}", time)
        os.kill(process.pid, signal.SIGSTOP)

        def killed() -> None:
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now, and stays one

        time.at[7] = killed
        lease = take(folder_store, with_process("two"), time)
    assert 7 <= time.now - 1000 < 30, "a process that is only stopped is not dead"
    assert lease.token == 1


def test_a_dead_holder_of_another_machine_is_waited_for(folder_store: Store, time: Time) -> None:
    with a_process() as process:
        dead = identified(process)
    Lease.take(folder_store, PATH, f"one@{ProcessId('0' * 16, dead.pid, dead.started)}")
    take(folder_store, "two", time)
    assert time.now == 1030.0


def test_what_a_silent_process_also_holds_is_not_waited_for_again(folder_store: Store, time: Time) -> None:
    other = "trainings/k-1/lease"
    elsewhere = ProcessId("0" * 16, 7, 7)
    for path in (PATH, other):
        Lease.take(folder_store, path, f"one@{elsewhere}")
    take(folder_store, "two", time)
    assert time.now == 1030.0
    assert Lease.take(folder_store, other, "two", sleep=time.sleep, clock=time.monotonic).token == 1
    assert time.now == 1030.0
    # Long after that, it may be back.
    third = "trainings/k-2/lease"
    Lease.take(folder_store, third, f"one@{elsewhere}")
    time.now += 300
    Lease.take(folder_store, third, "two", sleep=time.sleep, clock=time.monotonic)
    assert time.now == 1030.0 + 300 + 30
