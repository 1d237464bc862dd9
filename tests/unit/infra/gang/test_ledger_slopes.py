"""A ledger of many checkpoints: the cost of another checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.gang.ledger import Ledger
from infra.store import Store, layout, open_store
from tests.support.scripted_nodes import TRAINING, unstored
from tests.support.slopes import grows_linearly


def ledger_of(store: Store, count: int) -> Ledger:
    """A ledger that holds so many checkpoints; none of them is there."""
    ledger = Ledger(store, TRAINING, 0)
    ledger.checkpoints = [unstored(step) for step in range(1, count + 1)]
    return ledger


def test_retiring_grows_with_the_kept_checkpoints_and_not_with_their_square(tmp_path: Path) -> None:
    def make(count: int) -> Any:
        ledger = ledger_of(open_store(str(tmp_path / f"store-{count}")), count)
        return lambda: ledger.retire(count, None, by="a test")

    assert grows_linearly(make)


def test_a_verified_mark_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path / "store"))
    ledger = ledger_of(store, 20)
    for checkpoint in ledger.checkpoints:
        store.create_json(layout.verified(checkpoint.ref.uri), {})
    asked: list[str] = []
    real = store._backend.exists
    monkeypatch.setattr(store._backend, "exists", lambda path: asked.append(path) or real(path))
    for _ in range(3):
        ledger.retire(1, None, by="a test")
    assert len(ledger.checkpoints) == 20
    assert len(asked) == 19
