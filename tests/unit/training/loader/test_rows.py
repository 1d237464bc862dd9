"""Rows read from the shards block by block are the rows asked for, whatever was read before and however little fits."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.support.splits import write_split
from training.formats import Shards
from training.loader.rows import LARGE, AllRows, BufferPool, StreamedRows, columns_of, hold

ROWS = 100


def places(folder: Path, most_blocks: int) -> tuple[AllRows, StreamedRows]:
    table = pa.table({"x": np.arange(ROWS, dtype=np.int64), "list": [[at] * (at % 4) for at in range(ROWS)]})
    dataset = write_split(folder, table, [33, 0, 40, 27])
    shards = Shards(folder, dataset, "train")
    _, columns = columns_of(shards.schema, ["x", "list"], {})
    block_bytes = round((8 + shards.num_bytes / ROWS) * 10)
    return hold(columns, shards), StreamedRows(columns, shards, 10, most_blocks * block_bytes, 1)


@pytest.mark.parametrize("most_blocks", [1, 2, 3, 5, 12])
def test_any_rows_in_any_order_are_those_that_are_held(most_blocks: int, tmp_path: Path) -> None:
    held, streamed = places(tmp_path, most_blocks)
    draw = np.random.RandomState(most_blocks)
    for _ in range(40):
        blocks = draw.choice(ROWS // 10, draw.randint(1, 7), replace=False)
        rows = (blocks[:, None] * 10 + np.arange(10)).ravel()
        rows = draw.permutation(rows)[: draw.randint(1, len(rows) + 1)]
        soon = draw.choice(ROWS, draw.randint(0, 8), replace=False)
        for found, expected in zip(streamed.gather(rows, soon=soon), held.gather(rows), strict=True):
            assert found.tolist() == expected.tolist()
        assert found.type == pa.list_(pa.int64())


def test_a_block_that_is_kept_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, streamed = places(tmp_path, 3)
    original, read = StreamedRows._read, []

    def noted(self: StreamedRows, block: int, place: int) -> None:
        read.append(block)
        original(self, block, place)

    monkeypatch.setattr(StreamedRows, "_read", noted)
    for rows in ([0, 5], [15], [25], [5], [33], [0], [15]):  # 33 begins a shard, and so a block
        streamed.gather(np.array(rows))
    assert read == [0, 1, 2, 4, 1], "the least recently used makes room"


def test_what_is_needed_soon_is_read_once_and_what_fails_there_is_raised_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, streamed = places(tmp_path, 3)
    read: list[int] = []
    begun = threading.Event()
    original = streamed._read

    def reading(block: int, place: int) -> None:
        read.append(block)
        if block == 1:
            begun.set()
        if broken:
            raise OSError("no such luck")
        original(block, place)

    monkeypatch.setattr(streamed, "_read", reading)
    broken = False
    first, second, third = np.arange(3, 10), np.arange(10, 20), np.arange(33, 40)
    streamed.gather(first, soon=second[:1])
    assert begun.wait(480), "it is read before anyone asks"
    assert streamed.gather(second)[0].tolist() == held.gather(second)[0].tolist()
    assert read == [0, 1]
    broken = True
    streamed.gather(first, soon=third[:1])
    with pytest.raises(OSError, match="no such luck"):
        streamed.gather(third)
    broken = False
    assert streamed.gather(third)[0].tolist() == held.gather(third)[0].tolist()
    assert read == [0, 1, 4, 4]


def test_memory_is_used_again_when_nobody_holds_a_batch_in_it_and_not_before() -> None:
    memory, values = BufferPool(), np.arange(40).reshape(20, 2)
    tensor = torch.from_numpy(memory.take(values, np.array([1, 2]))).split(1)[1]
    kept = memory.take(values, np.array([3, 4]))[:1].view(np.uint8)
    assert tensor.tolist() == [[4, 5]]
    address = memory.take(values, np.array([5, 6])).ctypes.data
    assert memory.take(values, np.array([7, 8])).ctypes.data == address
    assert (tensor.tolist(), kept.view(np.int64).tolist()) == ([[4, 5]], [[6, 7]])
    address = tensor.data_ptr() - 16
    del tensor
    gc.collect()  # nor does garbage
    assert memory.take(values, np.array([9, 0])).ctypes.data == address


@pytest.mark.parametrize("count", [3, 2 * LARGE // 800 + 1])
def test_a_gather_is_what_indexing_gives_however_many_threads_share_it(count: int) -> None:
    values = np.random.default_rng(0).standard_normal((500, 100))
    rows = np.random.default_rng(1).integers(0, 500, count)
    assert np.array_equal(BufferPool().take(values, rows), values[rows])
