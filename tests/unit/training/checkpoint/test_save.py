"""A save while the store is away: it waits, says why, and goes on where it was."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from data_contracts.errors import StorageUnavailable
from infra.store import Store
from training.checkpoint.saver import CheckpointTarget, capture, save


@pytest.mark.parametrize("full", [False, True])
def test_a_save_waits_for_the_store_but_not_for_a_disk_that_is_full(
    full: bool, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.store.lease.RETRY_S", 0.001)
    told: list[str] = []
    left = dict.fromkeys(("create", "create_from"), 3)

    def away(name: str, real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            left[name] -= 1
            if left[name] >= 0:
                cause = OSError(errno.ENOSPC if full else errno.EIO, "as said")
                raise StorageUnavailable(f"the store is away ({name}).") from cause
            return real(*arguments, **more)

        return call

    for name in left:
        monkeypatch.setattr(store._backend, name, away(name, getattr(store._backend, name)))
    place = CheckpointTarget(
        store,
        "trainings/t-0/checkpoints/1-g0",
        {},
        {},
        {},
        tmp_path,
        on_wait=lambda error: told.append(error.message),
    )
    taken = capture({"x": torch.ones(1)}, {}, 0)
    if full:
        with pytest.raises(StorageUnavailable, match="the store is away"):
            save(place, taken, 1, [])
        assert told == []
    else:
        assert store.verify(save(place, taken, 1, []))
        assert set(told) == {"the store is away (create).", "the store is away (create_from)."}
