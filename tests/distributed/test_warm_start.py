"""A training that begins with other weights: the same on every rank before step 1, sharded or not, and never again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.gang import Gang, answer
from training.checkpoint import read_tensors

# What a step does to the parameters shows whether they were loaded: nothing.
STANDING = {"model": {"class_path": "nets.Classifier", "init_args": {"lr": 0.0}}}
ONE_STEP = {"trainer": {"max_epochs": 1, "limit_train_batches": 1}, "lightning": STANDING}
FSDP = {"strategy": "fsdp", "shard_modules": ["Block"]}


def weights(run: Gang, checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Parameters alone: a step moves the buffers."""
    tensors = {name.removeprefix("state_dict/"): t for name, t in read_tensors(run.checkpoint_folder(checkpoint))}
    buffers = ("mean", "running_mean", "running_var", "num_batches_tracked")
    return {name: t for name, t in tensors.items() if "/" not in name and not name.endswith(buffers)}


def begun(gang: Callable[..., Gang], name: str, store: Any, ref: dict[str, Any], strict: bool, **train: Any) -> Gang:
    """A gang that begins with what `ref` points at in `store`."""
    run = gang(name, init_from={"weights": "./w", "digest": "sha256:" + "0" * 64, "strict": strict}, **train)
    run.store, run.init_from = store, ref
    return run


@pytest.mark.parametrize(
    "settings", [pytest.param({}, marks=pytest.mark.slow, id="ddp"), pytest.param(FSDP, id="fsdp")]
)
def test_a_checkpoint_of_another_strategy_is_what_every_rank_begins_with(
    settings: dict[str, Any], gang: Callable[..., Gang]
) -> None:
    first = gang("first", **(FSDP if not settings else {}), trainer={"max_epochs": 1})
    parent = first.train_to_end()
    run = begun(gang, "second", first.store, parent["ref"], True, **ONE_STEP, **settings, seed=99)
    # A generation of its own, or its checkpoints would lie among the parent's.
    end = run.train_to_end(1)
    expected = weights(first, parent)
    found = weights(run, end)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert answer(run.scratch(1), 0)["begun_with"] == f"{len(expected) + 4} tensors loaded"

    # Gone on with, it is not even looked for.
    run.init_from = {"uri": "imports/none", "id": "0" * 64, "seal": "0" * 64}
    run.train["lightning"]["trainer"]["max_epochs"] = 2
    resumed = run.train_to_end(2, resume=end)
    assert resumed["step"] == 2
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(run, resumed).items())
    assert answer(run.scratch(2), 0, "done")["plan"]["begun_with"] == f"{len(expected) + 4} tensors loaded"


@pytest.mark.parametrize(
    "settings", [pytest.param({}, id="ddp"), pytest.param(FSDP, marks=pytest.mark.slow, id="fsdp")]
)
def test_adapters_alone_are_loaded_where_strict_is_off(
    settings: dict[str, Any], gang: Callable[..., Gang], tmp_path: Path
) -> None:
    given = {
        "blocks.0.linear.weight": torch.full((8, 8), 0.25, dtype=torch.float16),
        "outlet.weight": torch.ones(3, 8),
        "head": torch.ones(1),
    }
    save_file(given, tmp_path / "w.safetensors")
    partial = begun(gang, "partial", None, {}, False, **ONE_STEP, **settings)
    partial.store = gang("store").store
    writer = partial.store.writer("imports/w")
    writer.put("model.safetensors", tmp_path / "w.safetensors")
    partial.init_from = writer.seal("import", {}, {}).to_json()
    found = weights(partial, partial.train_to_end())
    assert torch.equal(found["blocks.0.linear.weight"], torch.full((8, 8), 0.25))
    assert answer(partial.scratch(0), 0)["begun_with"] == (
        "1 tensor loaded, 12 missing (blocks.0.linear.bias, blocks.1.linear.bias, blocks.1.linear.weight and 9 more), "
        "1 unexpected (head), 1 of another shape or type (outlet.weight: float32 [3, 8] for float32 [2, 8])"
    )
