"""A checkpoint is taken only for what its own seal says that it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from infra.gang.ledger import Ledger
from infra.records.handoffs import num_weight_bytes, read_trained_with, verify_checkpoint
from infra.store import Store, layout
from training.checkpoint.saver import CheckpointTarget, capture, save

TRAINING = "trainings/k-0"
SEALED = {"train": {"lr": 1.0, "layers": (1, 2)}, "dataset_id": None}


def sealed(
    store: Store, step: int = 5, train: bytes = b'{"dataset_id":null,"train":{"layers":[1,2],"lr":1.0}}'
) -> Checkpoint:
    writer = store.writer(layout.checkpoint(TRAINING, step, 0))
    writer.put("train.json", train)
    settings = {"step": step, "epoch": 1, "world_size": 2}
    ref = writer.seal("checkpoint", settings, {"training": TRAINING, "generation": 0})
    return Checkpoint(ref=ref, key="k", training=TRAINING, generation=0, **settings)


TOLD: list[tuple[dict[str, Any], str]] = [
    ({"step": 6}, "step 5"),
    ({"epoch": 2}, "epoch 1"),
    ({"world_size": 1}, "world_size 2"),
    ({"generation": 1}, "generation 0"),
    ({"training": "trainings/other-0"}, "training trainings/k-0"),
]


@pytest.mark.parametrize(("told", "what"), TOLD)
def test_what_is_told_of_it_must_be_what_it_says(told: dict[str, Any], what: str, store: Store) -> None:
    genuine = sealed(store)
    assert read_trained_with(store, verify_checkpoint(store, genuine))["train"] == {"layers": [1, 2], "lr": 1.0}
    with pytest.raises(CorruptError, match=f"is whole, but does not belong to .*{what}"):
        verify_checkpoint(store, genuine.model_copy(update=told))


def test_it_is_resumed_from_only_with_the_settings_that_made_it(store: Store) -> None:
    ledger = Ledger(store, TRAINING, 0)
    for step in (5, 10):
        ledger.commit(
            sealed(store, step, b"{}" if step == 10 else b'{"train":{"lr":1.0,"layers":[1,2]},"dataset_id":null}')
        )
    resumed = ledger.resume_from(SEALED)
    assert resumed.step == 5
    reason = store.read_json(layout.quarantined(layout.checkpoint(TRAINING, 10, 0)))["reason"]
    assert "was trained with other settings, code or data" in reason


def test_the_size_of_the_weights_is_that_of_their_files(store: Store, tmp_path: Path) -> None:
    state = {"state_dict": {"w": torch.zeros(3000)}, "optimizer_states": [{"m": torch.zeros(9000)}]}
    place = CheckpointTarget(store, f"{TRAINING}/checkpoints/1-g0", {"step": 1}, {}, {}, tmp_path)
    size = num_weight_bytes(store.manifest(save(place, capture(state, {}, 0), 1, [])))
    assert 12000 < size < 13000
