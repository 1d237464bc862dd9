"""The lease is taken however often the store is away meanwhile, and not waited for once it is no longer wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.errors import StorageUnavailable
from infra.launch import keeper as keeper_module
from infra.launch.keeper import Keeper
from infra.launch.patience import Outage
from infra.store import Lease, Store, layout, open_store

PATH = layout.lease("trainings/k-0")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def away(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Takes the store away for the next so many reads."""
    real, left = store._backend.read, [0]

    def read(path: str) -> tuple[bytes, str]:
        if left[0] > 0:
            left[0] -= 1
            raise StorageUnavailable("the store is away.")
        return real(path)

    monkeypatch.setattr(store._backend, "read", read)
    monkeypatch.setattr(keeper_module, "RETRY_S", 0.001)

    def take_away(times: int) -> None:
        left[0] = times

    return take_away


@pytest.mark.parametrize("times", [0, 1, 5])
def test_a_store_that_is_away_for_a_while_delays_the_lease(
    times: int, store: Store, away: Callable[[int], None]
) -> None:
    away(times)
    keeper = Keeper(store, PATH, "me")
    keeper.start()
    assert keeper.token(30) == 0
    keeper.stop()
    assert store.pointer(PATH).read().value["released"]


def test_waiting_for_anothers_lease_survives_a_store_that_is_away(store: Store, away: Callable[[int], None]) -> None:
    other = Lease.take(store, PATH, "other")
    keeper = Keeper(store, PATH, "me", patience_s=5)
    keeper.start()
    assert keeper.token(0.05) is None
    away(3)
    other.release()
    assert keeper.token(30) == 1
    keeper.stop()


def test_a_store_that_stays_away_does_not_hold_up_the_end(store: Store, away: Callable[[int], None]) -> None:
    away(10**9)
    keeper = Keeper(store, PATH, "me")
    keeper.start()
    assert keeper.token(0.01) is None
    keeper.stop()
    assert not keeper.is_alive()
    keeper.check()


def test_a_store_that_stays_away_for_too_long_is_told(
    store: Store, away: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "Outage", lambda: Outage(patience_s=0.01))
    away(10**9)
    keeper = Keeper(store, PATH, "me")
    keeper.start()
    keeper.join(30)
    with pytest.raises(StorageUnavailable):
        keeper.token(0)
    keeper.stop()
