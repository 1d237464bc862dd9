"""Checkpoints of many ranks: what they hold, and what is resumed, is the same as with a piece for each rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from data_contracts.handoffs import Ref
from infra.weights import weights
from tests.support.gang import Gang, answer
from training.checkpoint import read_tensors
from training.checkpoint.files import INDEX

pytestmark = pytest.mark.warm
MANY = {"model": {"class_path": "of_many.OfMany"}}


@pytest.mark.parametrize(("strategy", "ranks"), [("fsdp", 3), pytest.param("hsdp", 4, marks=pytest.mark.slow)])
def test_a_checkpoint_that_says_how_it_is_cut_holds_and_resumes_the_same(
    strategy: str, ranks: int, gang: Callable[..., Gang]
) -> None:
    """Of 8 rows three ranks hold 3, 3 and 2; of 2 rows the third holds none."""
    mesh: dict[str, Any] = {"shard_ranks": 2} if strategy == "hsdp" else {}
    holders = 2 if mesh else ranks
    settings = {"strategy": strategy, "ranks": ranks, "global_batch_size": 12, "checkpoint": {"every_steps": 4}, **mesh}
    named = gang("named", "Plain", **settings)
    cut = gang("cut", "Plain", lightning=MANY | {"trainer": named.train["lightning"]["trainer"]}, **settings)
    ends = [(run, run.train_to_end()) for run in (named, cut)]
    folders = [run.checkpoint_folder(end) for run, end in ends]
    tensors = [json.loads((folder / INDEX).read_bytes())["tensors"] for folder in folders]
    sharded = [name for name, entry in tensors[0].items() if entry["sharded"]]
    assert len(sharded) == 8, "weights and momentum"
    for name in sharded:
        assert "cut" not in tensors[0][name]
        assert (tensors[1][name]["pieces"], tensors[1][name]["cut"]["parts"]) == ([], holders)
    wanted, found = (dict(read_tensors(folder)) for folder in folders)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in wanted.items())
    for one, other in zip(*(weights(run.store, Ref.model_validate(end["ref"])) for run, end in ends), strict=True):
        assert one[0] == other[0]
        assert np.array_equal(one[1], other[1])
    resumed = cut.train_to_end(1, resume=answer(cut.scratch(0), 0)["checkpoints"][0])
    again = dict(read_tensors(cut.checkpoint_folder(resumed)))
    assert all(torch.equal(tensor, again[name]) for name, tensor in wanted.items())
