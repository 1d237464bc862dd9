"""A resumed training is the undisturbed one, to the last bit: the checkpoint that it ends with has the same id.

The id covers weights, optimizer, schedules, generators of every rank, cursor, metrics and history.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.gang import Gang, answer
from training.checkpoint import read_tensors

# Checkpoints in the middle of the first epoch (4) and, for the plateau schedule, after validation (8, 12, 16, 18).
EVERY_4 = {"checkpoint": {"every_steps": 4}}
EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("Classifier", {}),
    "ddp, accumulating and clipping": (
        "TwoSteps",
        {"micro_batch_size": 4, "trainer": {"gradient_clip_val": 0.1, "max_epochs": -1, "max_steps": 14}},
    ),
    "fsdp, modules named": ("Direct", {"strategy": "fsdp", "shard_modules": ["Block"]}),
    "fsdp, root alone": ("TwoSteps", {"strategy": "fsdp", "micro_batch_size": 4}),
    "single": ("Classifier", {"strategy": "single"}),
}


SAMPLE = ("ddp", "fsdp, modules named")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in SAMPLE else pytest.mark.slow) for case in EXACT]
)
def test_resumed_in_the_middle_of_an_epoch(case: str, gang: Callable[..., Gang]) -> None:
    model, settings = EXACT[case]
    ranks = 1 if settings.get("strategy") == "single" else 2
    run = gang("run", model, ranks=ranks, **EVERY_4, **settings)
    end = run.train_to_end()
    written = answer(run.scratch(0), 0)["checkpoints"]
    assert [one["step"] for one in written][:2] == [4, 8]
    resumed = run.train_to_end(1, resume=written[0])
    assert (resumed["generation"], resumed["step"]) == (1, end["step"])
    assert resumed["ref"]["id"] == end["ref"]["id"]


@pytest.mark.slow
def test_resumed_at_the_end_trains_nothing_and_hands_over_the_same(gang: Callable[..., Gang]) -> None:
    run = gang("run", strategy="single", ranks=1)
    end = run.train_to_end()
    assert run.train_to_end(1, resume=end) == end


def test_checkpoints_by_the_clock_change_no_byte_of_the_result(gang: Callable[..., Gang]) -> None:
    """Each rank asks by its own clock, and all save after the same steps: a checkpoint that they did not is not
    sealed."""
    plain, clocked = gang("plain"), gang("clocked", checkpoint={"every_s": 1e-6})
    end = plain.train_to_end()
    clocked.told["sealed"] = {"train": plain.train, "code_digest": "", "dataset_id": None}  # as a run seals it
    assert clocked.train_to_end()["ref"]["id"] == end["ref"]["id"]
    written = answer(clocked.scratch(0), 0)
    assert [one["step"] for one in written["checkpoints"]][-3:] == [16, 17, 18]
    assert written["stalls"] == 17, "of the last checkpoint no step waited"
    resumed = clocked.train_to_end(1, resume=written["checkpoints"][4])
    assert resumed["ref"]["id"] == end["ref"]["id"]


@pytest.mark.slow
def test_a_second_run_has_the_same_id_in_another_store_with_other_tags(gang: Callable[..., Gang]) -> None:
    first, second = gang("first"), gang("second")
    second.provenance = {"tags": {"team": "b"}, "started": "2030-01-01T00:00:00+00:00"}
    assert first.train_to_end()["ref"]["id"] == second.train_to_end()["ref"]["id"]


@pytest.mark.slow
def test_users_data_module_goes_on_where_it_stood(gang: Callable[..., Gang]) -> None:
    run = gang("run", **EVERY_4)
    run.dataset, run.dataset_folder = None, None
    run.train["lightning"]["data"] = {"class_path": "nets.RowsModule", "init_args": {"path": "${dataset.path}"}}
    end = run.train_to_end()
    resumed = run.train_to_end(1, resume=answer(run.scratch(0), 0)["checkpoints"][0])
    assert resumed["ref"]["id"] == end["ref"]["id"]


def test_a_loader_that_stands_elsewhere_on_each_rank_goes_on_there(gang: Callable[..., Gang]) -> None:
    # micro_batch_size has no effect on a data module's batches: each is a step.
    run = gang("run", "Plain", micro_batch_size=2, **EVERY_4)
    run.dataset, run.dataset_folder = None, None
    run.train["lightning"]["data"] = {"class_path": "nets.DrawingModule"}
    end = run.train_to_end()
    assert end["step"] == 18
    resumed = run.train_to_end(1, resume=answer(run.scratch(0), 0)["checkpoints"][0])
    assert resumed["ref"]["id"] == end["ref"]["id"]


def test_an_epoch_is_cut_between_steps_however_many_micro_batches_they_have(gang: Callable[..., Gang]) -> None:
    run = gang("run", "Plain", micro_batch_size=4, trainer={"limit_train_batches": 5}, checkpoint={"every_steps": 7})
    end = run.train_to_end()
    assert end["step"] == 15
    resumed = run.train_to_end(1, resume=answer(run.scratch(0), 0)["checkpoints"][0])
    assert resumed["ref"]["id"] == end["ref"]["id"]


def test_what_one_rank_alone_logs_is_shared_and_hinders_no_checkpoint(gang: Callable[..., Gang]) -> None:
    run = gang("run", "LogsOnRankOne")
    end = run.train_to_end()
    # Of 21 rows rank 1 takes 5 in its first batch and 6 in its second.
    expected = {"rows": 21, "rare": pytest.approx(6 / 11), "late": 2}
    assert {name: end["metrics"].get(name) for name in expected} == expected
    folder = run.checkpoint_folder(end)
    names = dict(read_tensors(folder))
    assert "trainwright/metrics/rare" in names
    assert "trainwright/metrics/hard" not in names
    sealed = json.loads((folder / "train.json").read_text())
    assert sealed == {"train": run.train, "code_digest": "", "dataset_id": None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("ddp", 2), ("fsdp", 2)),
        (("fsdp", 2), ("ddp", 2)),
        (("fsdp", 2), ("single", 1)),
        (("hsdp", 4), ("fsdp", 2)),
        pytest.param(("single", 1), ("fsdp", 2), marks=pytest.mark.sweep),
        pytest.param(("hsdp", 4), ("ddp", 2), marks=pytest.mark.sweep),
        pytest.param(("ddp", 2), ("hsdp", 4), marks=pytest.mark.sweep),
    ],
)
def test_resumed_with_another_strategy_or_number_of_ranks(
    before: tuple[str, int], after: tuple[str, int], gang: Callable[..., Gang]
) -> None:
    # Without dropout and batch norm nothing depends on which rank takes which rows.
    def make(name: str, strategy: str, ranks: int) -> Gang:
        mesh = {"shard_ranks": 2} if strategy == "hsdp" else {}
        return gang(name, "Plain", ranks=ranks, strategy=strategy, micro_batch_size=4, **mesh, **EVERY_4)

    whole, other = make("whole", *before), make("other", *after)
    other.store = whole.store
    end = whole.train_to_end()
    resumed = other.train_to_end(1, resume=answer(whole.scratch(0), 0)["checkpoints"][0])
    assert resumed["step"] == end["step"] == 18
    assert resumed["metrics"] == pytest.approx(end["metrics"], rel=1e-4)
    expected = dict(read_tensors(whole.checkpoint_folder(end)))
    for name, tensor in read_tensors(whole.checkpoint_folder(resumed)):
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


ALIKE: dict[str, dict[str, Any]] = {
    "calls itself": {"shard_modules": 20},
    "calls submodules": {"model": "Direct", "shard_modules": ["Block", "Linear"]},
}


@pytest.mark.parametrize("case", ["calls submodules", pytest.param("calls itself", marks=pytest.mark.slow)])
def test_ddp_and_fsdp_train_alike_whether_or_not_the_step_calls_the_module(
    case: str, gang: Callable[..., Gang]
) -> None:
    def weights(name: str, **settings: Any) -> dict[str, torch.Tensor]:
        run = gang(name, **settings)
        folder: Path = run.checkpoint_folder(run.train_to_end())
        return {key: value for key, value in read_tensors(folder) if key.startswith("state_dict/")}

    replicated, sharded = weights("ddp"), weights("fsdp", strategy="fsdp", **ALIKE[case])
    for name, expected in replicated.items():
        torch.testing.assert_close(sharded[name], expected, rtol=1e-5, atol=1e-6)
