"""Ranks exchange JSON: what arrives is what was given, and no collective of ours takes a pickle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import program

RANK = """
import json, sys
import torch.distributed as dist
from training.checkpoint.saver import gather
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", world), rank=rank, world_size=world)
mine = [{"value": {"of": rank, "é": "x" * 10 ** rank, "n": [0.1, 1e-320, -0.0, None, True, 2 ** 62]}}, []][rank % 2]
found = [gather(mine), gather({}), gather(None, dist.new_group())]
pair = dist.new_group([1, 2])
found.append(gather(f"by {rank}", pair) if rank else None)
infinite = gather([float("inf"), float("nan")])[0]
assert infinite[0] == float("inf") and infinite[1] != infinite[1]
with open(f"{folder}/{rank}", "w") as file:
    json.dump(found, file)
"""


@pytest.mark.warm
def test_every_rank_gets_what_each_gave(tmp_path: Path) -> None:
    ranks = [program.start(RANK, str(rank), "3", str(tmp_path)) for rank in range(3)]
    assert [rank.wait(480) for rank in ranks] == [0, 0, 0]
    numbers = [0.1, 1e-320, -0.0, None, True, 2**62]
    given = [{"value": {"of": rank, "é": "x" * 10**rank, "n": numbers}} for rank in range(3)]
    given[1] = []
    for rank in range(3):
        everyone, nothing, none, pair = json.loads((tmp_path / str(rank)).read_text())
        assert everyone == given
        assert str(everyone[0]["value"]["n"][2]) == "-0.0"
        assert (nothing, none) == ([{}, {}, {}], [None] * 3)
        assert pair == (None if rank == 0 else ["by 1", "by 2"])
