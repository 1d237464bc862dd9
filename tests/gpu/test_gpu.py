"""What only a CUDA device can show: pinned batches, captures from the device, a GPT through the line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.gang import Gang, answer, make_dataset

pytestmark = pytest.mark.gpu
PROJECT = Path(__file__).parents[1] / "distributed" / "project"


@pytest.fixture
def gang(tmp_path: Path) -> Gang:
    """One rank on the device, in bf16."""
    told = make_dataset(tmp_path / "rows", {"train": 100, "val": 21})
    train = {
        "lightning": {
            "model": {"class_path": "nets.Pinned"},
            "trainer": {"accelerator": "gpu", "precision": "bf16-mixed", "max_epochs": 3, "log_every_n_steps": 1},
        },
        "strategy": "single", "global_batch_size": 16, "batch": ["x", "y"], "seed": 3,
        "checkpoint": {"every_steps": 4},
    }  # fmt: skip
    return Gang(tmp_path / "run", train, PROJECT, told, tmp_path / "rows", ranks=1)


def test_batches_are_pinned_and_copied_without_waiting_and_a_resumed_run_is_the_same(gang: Gang) -> None:
    # nets.Pinned looks at each batch before Lightning moves it, and at how it is moved.
    end = gang.train_to_end()
    resumed = gang.train_to_end(1, resume=answer(gang.scratch(0), 0)["checkpoints"][0])
    assert resumed["ref"]["id"] == end["ref"]["id"]


def test_what_is_captured_from_the_device_is_what_lay_there() -> None:
    from training.checkpoint.saver import Staging, capture

    staging, state = Staging(), {"state_dict": {"w": torch.randn(1000, 1000, device="cuda")}}
    for _ in range(3):
        state["state_dict"]["w"].normal_()
        taken = capture(state, {}, 0, staging=staging)
        taken.staging.wait()
        copy = taken.files["weights-0.safetensors"]["w"]
        assert copy.is_pinned()
        assert torch.equal(copy, state["state_dict"]["w"].cpu())
