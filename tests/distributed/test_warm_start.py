"""A training that begins with other weights: the same on every rank before step 1, sharded or not, and never again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.distributed.conftest import Make
from tests.support.gang import Gang, answer, train_together
from training.checkpoint import read_tensors

# What a step does to the parameters shows whether they were loaded: nothing.
STANDING = {"model": {"class_path": "nets.Classifier", "init_args": {"lr": 0.0}}}
ONE_STEP: dict[str, Any] = {"trainer": {"max_epochs": 1, "limit_train_batches": 1}, "lightning": STANDING}
WAYS: dict[str, dict[str, Any]] = {"ddp": {}, "fsdp": {"strategy": "fsdp", "shard_modules": ["Block"]}}


def weights(run: Gang, checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Parameters alone: a step moves the buffers."""
    tensors = {name.removeprefix("state_dict/"): t for name, t in read_tensors(run.checkpoint_folder(checkpoint))}
    buffers = ("mean", "running_mean", "running_var", "num_batches_tracked")
    return {name: t for name, t in tensors.items() if "/" not in name and not name.endswith(buffers)}


@pytest.fixture(scope="module")
def parents(shared_gang: Make) -> dict[str, Gang]:
    """Trainings of one epoch, sharded and not."""
    gangs = {name: shared_gang(f"{name}-first", **train, trainer={"max_epochs": 1}) for name, train in WAYS.items()}
    train_together(list(gangs.values()))
    return gangs


@pytest.fixture(scope="module")
def begun(parents: dict[str, Gang], shared_gang: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gang]:
    """Trainings that begin with the other way's checkpoint, and trainings that begin with adapters; the first are
    resumed, too."""
    given = {
        "blocks.0.linear.weight": torch.full((8, 8), 0.25, dtype=torch.float16),
        "outlet.weight": torch.ones(3, 8),
        "head": torch.ones(1),
    }
    path = tmp_path_factory.mktemp("given") / "w.safetensors"
    save_file(given, path)
    gangs = {}
    for name, train in WAYS.items():
        weights_of = {"weights": "./w", "digest": "sha256:" + "0" * 64}
        parent = parents["ddp" if name == "fsdp" else "fsdp"]
        second = shared_gang(name, init_from={**weights_of, "strict": True}, **ONE_STEP, **train, seed=99)
        second.store, second.init_from = parent.store, parent.end()["ref"]
        partial = shared_gang(f"{name}, adapters", init_from={**weights_of, "strict": False}, **ONE_STEP, **train)
        writer = partial.store.writer("imports/w")
        writer.put("model.safetensors", path)
        partial.init_from = writer.seal("import", {}, {}).to_json()
        gangs |= {name: second, f"{name}, adapters": partial}
    # A generation of its own, or its checkpoints would lie among the parent's.
    train_together(list(gangs.values()), 1)
    resumed = [gangs[name] for name in WAYS]
    ends = [gang.end(1) for gang in resumed]
    for gang in resumed:
        # Gone on with, it is not even looked for.
        gang.init_from = {"uri": "imports/none", "id": "0" * 64, "seal": "0" * 64}
        gang.train["lightning"]["trainer"]["max_epochs"] = 2
    train_together(resumed, 2, ends)
    return gangs


@pytest.mark.parametrize(("name", "other"), [("ddp", "fsdp"), ("fsdp", "ddp")])
def test_a_checkpoint_of_another_strategy_is_what_every_rank_begins_with(
    name: str, other: str, begun: dict[str, Gang], parents: dict[str, Gang]
) -> None:
    run, parent = begun[name], parents[other]
    expected = weights(parent, parent.end())
    loaded = f"{len(expected) + 4} tensors loaded"
    assert answer(run.scratch(1), 0)["begun_with"] == loaded
    assert answer(run.scratch(2), 0, "done")["plan"]["begun_with"] == loaded
    for generation in (1, 2):
        end = run.end(generation)
        assert end["step"] == generation
        found = weights(run, end)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["ddp, adapters", "fsdp, adapters"])
def test_adapters_alone_are_loaded_where_strict_is_off(name: str, begun: dict[str, Gang]) -> None:
    run = begun[name]
    found = weights(run, run.end(1))
    assert torch.equal(found["blocks.0.linear.weight"], torch.full((8, 8), 0.25))
    assert answer(run.scratch(1), 0)["begun_with"] == (
        "1 tensor loaded, 12 missing (blocks.0.linear.bias, blocks.1.linear.bias, blocks.1.linear.weight and 9 more), "
        "1 unexpected (head), 1 of another shape or type (outlet.weight: float32 [3, 8] for float32 [2, 8])"
    )
