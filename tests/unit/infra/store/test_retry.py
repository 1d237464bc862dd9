"""Silence counts only while the store answers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from itertools import chain, repeat
from unittest.mock import Mock

import pytest

from data_contracts.errors import Cancelled, Fenced, NodeLost, StorageUnavailable, TrainwrightError
from data_contracts.messages.gang import Launch
from infra.store import Lease, Store, layout
from infra.store import lease as store_lease
from infra.store.lease import ConductorWatch, Outage, patiently
from tests.support.processes import a_process, identified
from tests.unit.infra.store.test_lease import Time

TRAINING = "trainings/k-0"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(store_lease, "time", clock)
    return clock


@pytest.fixture
def lease(folder_store: Store) -> Lease:
    return Lease.take(folder_store, layout.lease(TRAINING), "me")


def watch(store: Store) -> ConductorWatch:
    return ConductorWatch(store, Launch(training=TRAINING, nodes=1, devices=1, lease_silence_s=60, heartbeat_s=1))


def falls_silent(seen: ConductorWatch, clock: Time) -> None:
    """A conductor of which nothing is heard from now on is given up after 60 s."""
    clock.sleep(59)
    seen.look()
    clock.sleep(2)
    with pytest.raises(NodeLost, match="has not renewed its lease for 60 s"):
        seen.look()


def away(times: int) -> Callable[..., str]:
    """What a store that is away answers, and `done` after so many times."""
    return Mock(side_effect=chain(repeat(StorageUnavailable("the store is away."), times), repeat("done")))


def test_patiently_tries_until_the_store_is_back(clock: Time) -> None:
    assert patiently(away(0)) == patiently(away(100)) == "done"
    assert clock.now == 1000 + 100 * store_lease.RETRY_S
    with pytest.raises(StorageUnavailable):
        patiently(away(10**6), patience_s=10)
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 / 0)


def test_an_outage_ends_or_becomes_too_long(clock: Time) -> None:
    outage = Outage(patience_s=10)
    work = away(2)
    assert not outage.tolerate(work)
    clock.sleep(9)
    assert not outage.tolerate(work)
    assert outage.error is not None
    assert outage.tolerate(work)
    assert outage.error is None
    work = away(3)
    assert not outage.tolerate(work), "the clock begins anew with each outage"
    clock.sleep(10.1)
    with pytest.raises(StorageUnavailable):
        outage.tolerate(work)


def test_a_beat_that_moves_is_a_conductor_that_lives(folder_store: Store, lease: Lease, clock: Time) -> None:
    seen = watch(folder_store)
    for _ in range(10):
        seen.look()
        clock.sleep(59)
        lease.renew()
    seen.look()
    falls_silent(seen, clock)


def test_a_store_that_is_away_is_not_a_silent_conductor(
    folder_store: Store, lease: Lease, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(folder_store)
    seen.look()
    with monkeypatch.context() as patch:
        patch.setattr(folder_store, "exists", away(10**6))
        for _ in range(8):
            clock.sleep(100)
            seen.look()
    falls_silent(seen, clock)


def test_a_conductor_that_is_seen_dead_is_not_waited_for(folder_store: Store, clock: Time) -> None:
    with a_process() as process:
        Lease.take(folder_store, layout.lease(TRAINING), f"me@{identified(process)}")
        seen = watch(folder_store)
        process.send_signal(signal.SIGSTOP)
        seen.look()
        process.kill()
    clock.sleep(1)
    with pytest.raises(NodeLost, match=rf"has died: its process {process.pid} has ended\."):
        seen.look()
    Lease.take(folder_store, layout.lease(TRAINING), "another")
    clock.sleep(1)
    with pytest.raises(Fenced):
        seen.look()


ENDS: dict[str, tuple[Callable[[Store], object], type[TrainwrightError] | None]] = {
    "cancelled": (lambda store: store.create_json(layout.cancel(TRAINING, 0), {}), Cancelled),
    "usurped": (lambda store: Lease.take(store, layout.lease(TRAINING), "other", patience_s=0), Fenced),
    "another generation is cancelled": (lambda store: store.create_json(layout.cancel(TRAINING, 1), {}), None),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_a_node(end: str, folder_store: Store, lease: Lease, clock: Time) -> None:
    event, error = ENDS[end]
    seen = watch(folder_store)
    seen.look()
    event(folder_store)
    seen.look()  # asked again too soon: nothing is read
    clock.sleep(0.6)
    ended = pytest.raises(error, match="Generation 0 of trainings/k-0") if error else contextlib.nullcontext()
    with ended:
        seen.look()
