"""Rows read from the shards block by block are the rows asked for, whatever was read before and however little fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.splits import write_split
from training.loader.columns import columns_of
from training.loader.rows import Held, Streamed, hold
from training.loader.shards import Shards

ROWS = 100


def places(folder: Path, most_blocks: int) -> tuple[Held, Streamed]:
    table = pa.table({"x": np.arange(ROWS, dtype=np.int64), "list": [[at] * (at % 4) for at in range(ROWS)]})
    dataset = write_split(folder, table, [33, 0, 40, 27])
    shards = Shards(folder, dataset, "train")
    _, columns = columns_of(shards.schema, ["x", "list"], {})
    block_bytes = round((8 + shards.num_bytes / ROWS) * 10)
    return hold(columns, shards), Streamed(columns, shards, 10, most_blocks * block_bytes, 1)


@pytest.mark.parametrize("most_blocks", [1, 2, 3, 5, 12])
def test_any_rows_in_any_order_are_those_that_are_held(most_blocks: int, tmp_path: Path) -> None:
    held, streamed = places(tmp_path, most_blocks)
    draw = np.random.RandomState(most_blocks)
    for _ in range(40):
        blocks = draw.choice(ROWS // 10, draw.randint(1, 7), replace=False)
        rows = (blocks[:, None] * 10 + np.arange(10)).ravel()
        rows = draw.permutation(rows)[: draw.randint(1, len(rows) + 1)]
        for found, expected in zip(streamed.gather(rows), held.gather(rows), strict=True):
            assert found.tolist() == expected.tolist()
        assert found.type == pa.list_(pa.int64())


def test_a_block_that_is_kept_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, streamed = places(tmp_path, 3)
    original, read = Streamed._read, []

    def noted(self: Streamed, block: int, place: int) -> None:
        read.append(block)
        original(self, block, place)

    monkeypatch.setattr(Streamed, "_read", noted)
    for rows in ([0, 5], [15], [25], [5], [33], [0], [15]):  # 33 begins a shard, and so a block
        streamed.gather(np.array(rows))
    assert read == [0, 1, 2, 4, 1], "the least recently used makes room"
