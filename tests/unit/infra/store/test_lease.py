"""The lease, on a clock of the test's own: who gets it, when, and with which token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from data_contracts.errors import Fenced, StorageUnavailable
from infra.store import Lease, PointerMoved, Store
from infra.store.lease import RENEW_EVERY_S

PATH = "trainings/k-0/lease"


class Time:
    """A clock that only `sleep` moves; `at` runs something when a time has come."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps = 0
        self.each: Callable[[float], None] = lambda passed: None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        self.each(self.now - 1000.0)


@pytest.fixture
def time() -> Time:
    return Time()


def take(store: Store, holder: str, time: Time, **options: object) -> Lease:
    return Lease.take(store, PATH, holder, sleep=time.sleep, clock=time.clock, **options)


def test_first_take_renew_release(store: Store, time: Time) -> None:
    lease = take(store, "one", time)
    assert (lease.token, lease.holder, time.sleeps) == (0, "one", 0)
    assert store.pointer(PATH).read().value == {"beat": 0, "holder": "one", "released": False, "token": 0}
    lease.renew()
    lease.renew()
    assert store.pointer(PATH).read().value == {"beat": 2, "holder": "one", "released": False, "token": 0}
    lease.release()
    assert store.pointer(PATH).read().value == {"beat": 3, "holder": "one", "released": True, "token": 0}


def test_a_released_lease_is_taken_at_once_with_the_next_token(store: Store, time: Time) -> None:
    for token in range(3):
        lease = take(store, "one", time)
        assert lease.token == token
        lease.release()
    assert time.sleeps == 0


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


def test_its_own_holder_waits_as_well(store: Store, time: Time) -> None:
    take(store, "one", time)
    assert take(store, "one", time, patience_s=5).token == 1
    assert time.now == pytest.approx(1005)


def test_a_beat_that_moves_keeps_the_lease(folder_store: Store, time: Time) -> None:
    lease = take(folder_store, "one", time)

    def renew_until(passed: float) -> None:
        if passed < 200 and passed % 10 == 0:
            lease.renew()

    time.each = renew_until
    still: list[float] = []
    assert take(folder_store, "two", time, on_wait=lambda holder, still_s: still.append(still_s)).token == 1
    assert time.now == 1000 + 190 + 30
    assert max(still[:191]) == 9.0


def test_a_waiting_taker_gets_a_released_lease_at_its_next_look(folder_store: Store, time: Time) -> None:
    lease = take(folder_store, "one", time)
    time.each = lambda passed: lease.release() if passed == 7 else None
    assert take(folder_store, "two", time).token == 1
    assert time.now == 1007.0


def test_time_without_an_answer_does_not_count(folder_store: Store, time: Time) -> None:
    """The taker's machine sleeps, or a read hangs, for ten minutes: the holder could not have renewed meanwhile."""
    take(folder_store, "one", time)

    def outage(passed: float) -> None:
        if passed == 5:
            time.now += 600

    time.each = outage
    still: list[float] = []
    take(folder_store, "two", time, on_wait=lambda holder, still_s: still.append(still_s))
    assert still[:7] == [0, 1, 2, 3, 4, 6, 7]
    assert time.now == 1000 + 600 + 29


def test_a_store_that_is_away_does_not_end_a_lease(folder_store: Store, time: Time) -> None:
    take(folder_store, "one", time)
    pointer = type(folder_store.pointer(PATH))
    read = pointer.read

    def away(self: object) -> None:
        raise StorageUnavailable("The store does not answer.")

    def sometimes(passed: float) -> None:
        if passed == 20:
            pointer.read = away

    time.each = sometimes
    try:
        with pytest.raises(StorageUnavailable):
            take(folder_store, "two", time)
    finally:
        pointer.read = read
    time.each = lambda passed: None
    before = time.now
    assert take(folder_store, "two", time).token == 1
    assert time.now == before + 30, "counts anew"


def test_of_two_takers_the_slower_goes_on_waiting(folder_store: Store, time: Time) -> None:
    take(folder_store, "one", time)
    pointer = folder_store.pointer(PATH)

    def other_takes(passed: float) -> None:
        if passed == 30:
            # Between this taker's look and its move another one takes the lease.
            real = type(pointer).swap

            def swap(self: object, expected: object, value: object) -> object:
                type(pointer).swap = real
                real(pointer, pointer.read(), {"beat": 0, "holder": "three", "released": False, "token": 1})
                return real(self, expected, value)

            type(pointer).swap = swap

    time.each = other_takes
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


def test_a_lease_that_is_gone(folder_store: Store, time: Time) -> None:
    lease = take(folder_store, "one", time)
    folder_store._backend.delete(PATH)
    with pytest.raises(Fenced, match="now belongs to nobody"):
        lease.renew()


def test_takes_with_the_real_clock(folder_store: Store) -> None:
    Lease.take(folder_store, PATH, "one")
    assert Lease.take(folder_store, PATH, "two", patience_s=0.05).token == 1


def test_an_old_holders_pointer_moves_fail(store: Store, time: Time) -> None:
    """What a new holder does first: rewrite `latest`, so that the old one's compare-and-set fails."""
    latest = store.pointer("trainings/k-0/latest")
    old = latest.create({"step": 10, "token": 0})
    latest.swap(latest.read(), {"step": 10, "token": 1})
    with pytest.raises(PointerMoved):
        latest.swap(old, {"step": 20, "token": 0})


def test_a_holder_renews_every_ten_seconds() -> None:
    assert RENEW_EVERY_S == 10.0, "three times within the patience of those that wait, and six times within a node's"
