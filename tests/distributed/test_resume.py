"""A resumed training is the undisturbed one, to the last bit: the checkpoint that it ends with has the same id.

The id covers weights, optimizer, schedules, generators of every rank, cursor, metrics and history. Most trainings here
are carried out one after another by the same two ranks: first all of them, then what is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.distributed.conftest import Make
from tests.support.gang import Gang, answer, train_together
from training.checkpoint import read_tensors

# Checkpoints in the middle of the first epoch (4) and, for the plateau schedule, after validation (8, 12, 16, 18).
EVERY_4: dict[str, Any] = {"checkpoint": {"every_steps": 4}}
EVERY_STEP: dict[str, Any] = {"checkpoint": {"every_steps": 1}, "micro_batch_size": 4}
STEPS = 20
TO_BE_KILLED = {**EVERY_STEP, "trainer": {"max_steps": STEPS, "max_epochs": -1, "gradient_clip_val": 0.1}}


def own_data(name: str, **arguments: Any) -> dict[str, Any]:
    return {"lightning": {"data": {"class_path": f"nets.{name}", "init_args": arguments}}}


# What is resumed from its first checkpoint: the module, and what `train` has besides.
RESUMED: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("Classifier", EVERY_4),
    "ddp, accumulating and clipping": (
        "TwoSteps",
        {**EVERY_4, "micro_batch_size": 4, "trainer": {"gradient_clip_val": 0.1, "max_epochs": -1, "max_steps": 14}},
    ),
    "fsdp, modules named": ("Direct", {**EVERY_4, "strategy": "fsdp", "shard_modules": ["Block"]}),
    "fsdp, root alone": ("TwoSteps", {**EVERY_4, "strategy": "fsdp", "micro_batch_size": 4}),
    "a user's data module": ("Classifier", {**EVERY_4, **own_data("RowsModule", path="${dataset.path}")}),
    # micro_batch_size has no effect on a data module's batches: each is a step.
    "a loader that stands elsewhere on each rank": (
        "Plain",
        {**EVERY_4, **own_data("DrawingModule"), "micro_batch_size": 2},
    ),
    "an epoch that is cut between steps": (
        "Plain",
        {"micro_batch_size": 4, "trainer": {"limit_train_batches": 5}, "checkpoint": {"every_steps": 7}},
    ),
    "by the clock": ("Classifier", {"checkpoint": {"every_s": 1e-6}}),
    "looking": ("Killed", EVERY_STEP),
}
ENDS = {"ddp, accumulating and clipping": 14, "an epoch that is cut between steps": 15}
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    **RESUMED,
    "other tags": ("Classifier", EVERY_4),
    "without a look": ("Killed", EVERY_STEP),
    "logged on rank one": ("LogsOnRankOne", {}),
    "calls itself": ("Classifier", {"strategy": "fsdp", "shard_modules": 20}),
    "calls submodules": ("Direct", {"strategy": "fsdp", "shard_modules": ["Block", "Linear"]}),
    "not killed": ("Killed", TO_BE_KILLED),
}


@pytest.fixture(scope="module")
def trained(shared_gang: Make) -> dict[str, Gang]:
    """All of TRAINED, and generation 1 of those of RESUMED."""
    gangs = {name: shared_gang(name, model, **settings) for name, (model, settings) in TRAINED.items()}
    # As a run seals it: how often a checkpoint is saved has no part in the key of a training.
    sealed = {"train": gangs["ddp"].train, "code_digest": "", "dataset_id": None}
    gangs["by the clock"].told["sealed"] = sealed
    gangs["other tags"].provenance = {"tags": {"team": "b"}, "started": "2030-01-01T00:00:00+00:00"}
    gangs["looking"].environment = {"LOOKS": "1"}
    train_together(list(gangs.values()))
    resumed = [gangs[name] for name in RESUMED]
    places = [answer(gang.scratch(0), 0)["checkpoints"][0] for gang in resumed]
    assert all(place["step"] < 8 for place in places)
    train_together(resumed, 1, places)
    return gangs


@pytest.mark.parametrize("name", RESUMED)
def test_what_is_resumed_in_the_middle_ends_the_same(name: str, trained: dict[str, Gang]) -> None:
    end, resumed = (trained[name].end(generation) for generation in (0, 1))
    assert (resumed["generation"], resumed["step"], end["step"]) == (1, ENDS.get(name, 18), ENDS.get(name, 18))
    assert resumed["ref"]["id"] == end["ref"]["id"]


@pytest.mark.parametrize(
    ("name", "same"), [("by the clock", "ddp"), ("other tags", "ddp"), ("looking", "without a look")]
)
def test_how_often_it_saves_its_tags_and_a_look_change_no_byte_of_the_result(
    name: str, same: str, trained: dict[str, Gang]
) -> None:
    assert trained[name].end()["ref"]["id"] == trained[same].end()["ref"]["id"]


def test_all_ranks_save_after_the_same_steps_though_each_asks_its_own_clock(trained: dict[str, Gang]) -> None:
    """A checkpoint that they did not is not sealed."""
    written = answer(trained["by the clock"].scratch(0), 0)
    assert [one["step"] for one in written["checkpoints"]][-3:] == [16, 17, 18]
    assert written["stalls"] == 17, "of the last checkpoint no step waited"


def test_what_one_rank_alone_logs_is_shared_and_hinders_no_checkpoint(trained: dict[str, Gang]) -> None:
    run = trained["logged on rank one"]
    end = run.end()
    # Of 21 rows rank 1 takes 5 in its first batch and 6 in its second.
    expected = {"rows": 21, "rare": pytest.approx(6 / 11), "late": 2}
    assert {name: end["metrics"].get(name) for name in expected} == expected
    folder = run.checkpoint_folder(end)
    names = dict(read_tensors(folder))
    assert "trainwright/metrics/rare" in names
    assert "trainwright/metrics/hard" not in names
    sealed = json.loads((folder / "train.json").read_text())
    assert sealed == {"train": run.train, "code_digest": "", "dataset_id": None}


@pytest.mark.parametrize("name", ["calls submodules", "calls itself"])
def test_ddp_and_fsdp_train_alike_whether_or_not_the_step_calls_the_module(name: str, trained: dict[str, Gang]) -> None:
    replicated, sharded = (
        dict(read_tensors(run.checkpoint_folder(run.end()))) for run in (trained["ddp"], trained[name])
    )
    weights = [key for key in replicated if key.startswith("state_dict/")]
    assert len(weights) > 10
    for key in weights:
        torch.testing.assert_close(sharded[key], replicated[key], rtol=1e-5, atol=1e-6)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "steps", [pytest.param(range(1, STEPS), id="all", marks=pytest.mark.sweep), pytest.param((11,), id="sample")]
)
def test_killed_at_every_step(steps: Sequence[int], trained: dict[str, Gang], gang: Make) -> None:
    """A rank is killed at a step, generation after generation; each goes on from what was sealed last."""
    end = trained["not killed"].end()
    assert end["step"] == STEPS
    run = gang("killed", "Killed", **TO_BE_KILLED)
    sealed: dict[str, Any] | None = None
    for generation, step in enumerate(steps):
        run.environment = {"KILL": f"{step} {step % 2}"}
        scratch = run.run(generation, sealed)
        assert answer(scratch, 0, "done") is None, f"not killed at step {step}"
        written = (answer(scratch, 0) or {}).get("checkpoints", [])
        sealed = written[-1] if written else sealed
        # Of a step before the kill, however far behind it the save was.
        assert sealed is None or sealed["step"] <= step
    run.environment = {}
    assert run.train_to_end(len(steps), sealed)["ref"]["id"] == end["ref"]["id"]


@pytest.mark.slow
def test_one_process_is_resumed_in_the_middle_and_at_the_end(gang: Make) -> None:
    run = gang("run", strategy="single", ranks=1, **EVERY_4)
    end = run.train_to_end()
    first = answer(run.scratch(0), 0)["checkpoints"][0]
    assert run.train_to_end(1, resume=first)["ref"]["id"] == end["ref"]["id"]
    # Nothing is left to train, and the same is handed over.
    assert run.train_to_end(2, resume=end) == end


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
    before: tuple[str, int], after: tuple[str, int], gang: Make
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
