"""Sealed checkpoints without weights, for tests of what names one."""

from __future__ import annotations

from typing import Any

from data_contracts.handoffs import Checkpoint
from infra.store import Store, layout


def stored_checkpoint(store: Store, step: int, **fields: Any) -> Checkpoint:
    """A checkpoint of the training `trainings/k-0` after so many steps; `fields` are more of its hand-off."""
    writer = store.writer(layout.checkpoint("trainings/k-0", step, 0))
    ref = writer.seal("checkpoint", {"step": step}, {}, [writer.put("state.json", b"{}")])
    place = {"training": "trainings/k-0", "epoch": 0, "generation": 0, "world_size": 1}
    return Checkpoint(ref=ref, key="k", step=step, **place, **fields)
