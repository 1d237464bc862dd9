"""The lease is taken however often the store is away meanwhile, and not waited for once it is no longer wanted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from unittest.mock import DEFAULT, Mock

import pytest

from data_contracts.errors import Fenced, StorageUnavailable
from infra.store import Lease, PointerMoved, Store, layout
from infra.store import lease as keeper_module
from infra.store.lease import LeaseKeeper, Outage, with_process
from tests.support.pool import until

PATH = layout.lease("trainings/k-0")


@pytest.fixture
def away(folder_store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Takes the store away for the next so many reads."""
    read = Mock(wraps=folder_store._backend.read)
    monkeypatch.setattr(folder_store._backend, "read", read)
    monkeypatch.setattr(keeper_module, "RETRY_S", 0.001)

    def take_away(times: int) -> None:
        read.side_effect = chain(repeat(StorageUnavailable("the store is away."), times), repeat(DEFAULT))

    return take_away


@pytest.fixture
def keeper(folder_store: Store) -> Iterator[LeaseKeeper]:
    """One that renews quickly and is stopped in the end."""
    keeper = LeaseKeeper(folder_store, PATH, "me", renew_s=0.001, patience_s=5)
    yield keeper
    keeper.stop()
    assert not keeper.is_alive()


@pytest.mark.parametrize("times", [0, 1, 5])
@pytest.mark.parametrize("waits", [False, True])
def test_a_store_that_is_away_for_a_while_delays_the_lease(
    times: int, waits: bool, folder_store: Store, away: Callable[[int], None], keeper: LeaseKeeper
) -> None:
    other = Lease.take(folder_store, PATH, "other") if waits else None
    away(0 if waits else times)
    keeper.start()
    if other is not None:
        assert keeper.token(0.05) is None
        away(times)
        other.release()
    assert keeper.token(60) == waits
    keeper.stop()
    assert folder_store.pointer(PATH).read().value["released"]


def test_a_store_that_stays_away_does_not_hold_up_the_end(away: Callable[[int], None], keeper: LeaseKeeper) -> None:
    away(10**9)
    keeper.start()
    assert keeper.token(0.01) is None
    keeper.stop()
    keeper.check()


def test_a_store_that_stays_away_for_too_long_is_told(
    away: Callable[[int], None], keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "Outage", lambda: Outage(patience_s=0.01))
    away(10**9)
    keeper.start()
    keeper.join(60)
    with pytest.raises(StorageUnavailable):
        keeper.token(0)


def test_it_is_renewed_through_outages_and_each_is_told_once(
    folder_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    renew = Mock(wraps=folder_store._backend.replace)
    replace = Mock(wraps=renew)  # `renew` is not called while it fails
    monkeypatch.setattr(folder_store._backend, "replace", replace)
    keeper = LeaseKeeper(folder_store, PATH, "me", renew_s=0.01, on_away=lambda error: told.append(error.message))
    keeper.start()
    assert keeper.token(60) == 0
    for _ in range(2):
        replace.side_effect = StorageUnavailable("the disk is full.")
        until(lambda: keeper.away is not None)
        replace.side_effect = None
        until(lambda: keeper.away is None)
    keeper.stop()
    assert told == ["the disk is full."] * 2
    assert folder_store.pointer(PATH).read().value == {
        "beat": renew.call_count, "holder": with_process("me"), "released": True, "token": 0,
    }  # fmt: skip


def test_a_lease_that_was_lost_is_told(folder_store: Store, keeper: LeaseKeeper) -> None:
    keeper.start()
    assert keeper.token(60) == 0
    pointer, beat = folder_store.pointer(PATH), {"beat": 0, "holder": "other", "released": False, "token": 1}
    for _ in range(1000):  # a keeper that is not told would live on
        with contextlib.suppress(PointerMoved):
            pointer.swap(pointer.read(), beat)
        keeper.join(0.01)
        if not keeper.is_alive():
            break
    with pytest.raises(Fenced, match="now belongs to other, no longer to me"):
        keeper.check()
    keeper.stop()
    assert pointer.read().value == beat


def test_the_store_is_asked_who_holds_the_lease(folder_store: Store, away: Callable[[int], None]) -> None:
    keeper = LeaseKeeper(folder_store, PATH, "me", renew_s=600)  # a renewal would find out, too
    keeper.confirm()
    keeper.start()
    assert keeper.token(60) == 0
    keeper.confirm()
    Lease.take(folder_store, PATH, "other", patience_s=0)
    away(1)
    keeper.confirm()  # nobody knows
    with pytest.raises(Fenced, match="now belongs to other, no longer to me"):
        keeper.confirm()
    keeper.check()
    keeper.stop()
