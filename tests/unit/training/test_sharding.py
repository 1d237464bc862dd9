"""Sharding with real files in a folder: every row once, bytes independent of batches, transforms, refusals."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.handoffs import FileEntry
from data_contracts.spec import ShardsSpec
from training import formats, sharding
from training.sharding import Sharded, shard_rows

SPLIT = {"key": "id"}


class Memory:
    """A callback that keeps what it is given, as a store would: bytes by name."""

    def __init__(self, folder: Path, format_name: str = "parquet") -> None:
        self.folder, self.format = folder, formats.get(format_name)
        self.names: list[str] = []

    def __call__(self, name: str, rows: pa.Table) -> FileEntry:
        self.names.append(name)
        self.format.write_shard(rows, self.folder / name)
        data = (self.folder / name).read_bytes()
        return FileEntry(path=name, bytes=len(data), blake3=blake3(data).hexdigest())

    def read(self, sharded: Sharded, split: str) -> pa.Table:
        shards = [self.format.read_shard(self.folder / shard.path, sharded.schema) for shard in sharded.splits[split]]
        return pa.concat_tables(shards)


@pytest.fixture
def memory(tmp_path):
    return Memory(tmp_path)


def _table(rows: int) -> pa.Table:
    return pa.table({"id": range(rows), "text": [f"row {n}" for n in range(rows)]})


def _spec(**changes) -> ShardsSpec:
    return ShardsSpec(**{"split": SPLIT, "target_size_bytes": 1024, **changes})


@pytest.mark.parametrize("format_name", ["parquet", "tfrecord"])
def test_every_row_stands_in_one_shard_of_its_split(format_name, tmp_path):
    memory = Memory(tmp_path, format_name)
    sharded = shard_rows(_table(1000).to_batches(100), _spec(format=format_name), memory)
    found = [memory.read(sharded, split)["id"].to_pylist() for split in ("train", "val", "test")]
    assert sorted(chain(*found)) == list(range(1000))
    assert memory.names == [shard.path for shards in sharded.splits.values() for shard in shards]
    assert memory.names[0] == f"train-00000.{format_name}"
    assert len(memory.names) > 10
    for split, ids in zip(("train", "val", "test"), found, strict=True):
        assert sum(shard.rows for shard in sharded.splits[split]) == len(ids)
        assert ids != sorted(ids)


def test_the_shuffle_is_of_the_whole_split_and_seeded(memory, tmp_path):
    sharded = shard_rows(_table(1000).to_batches(), _spec(), memory)
    first = memory.format.read_shard(tmp_path / memory.names[0], sharded.schema)["id"].to_pylist()
    assert max(first) > 900
    assert min(first) < 100
    again = shard_rows(_table(1000).to_batches(), _spec(seed=1), memory)
    assert sharded.splits["train"][0].blake3 != again.splits["train"][0].blake3
    assert sorted(shard.rows for shard in sharded.splits["train"]) == sorted(s.rows for s in again.splits["train"])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_the_bytes_do_not_depend_on_how_the_rows_come(tmp_path_factory, cuts, transformed):
    def digests(batches):
        memory = Memory(tmp_path_factory.mktemp("shards"))
        spec = _spec()
        # Looks at rows beside a row: the batches it gets must not depend on the reader's either.

        def neighbours(batch):
            return batch.append_column("rows", pa.array([batch.num_rows] * batch.num_rows))

        sharded = shard_rows(batches, spec, memory, transform=neighbours if transformed else None)
        return [shard for shards in sharded.splits.values() for shard in shards]

    table = _table(200)
    bounds = sorted({0, *cuts, 200})
    pieces = [table.slice(a, b - a) for a, b in pairwise(bounds)]
    batches = [batch for piece in pieces for batch in piece.to_batches()]
    assert digests(batches) == digests(table.combine_chunks().to_batches())


@given(st.integers(1, 100_000), st.integers(1, 500))
def test_shards_differ_by_one_row_at_most(rows, shards):
    shards = min(rows, shards)
    cuts = sharding.bounds(rows, shards)
    sizes = [b - a for a, b in pairwise(cuts)]
    assert len(sizes) == shards
    assert sum(sizes) == rows
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("column", "size"),
    [
        (pa.array([1, 2, None], pa.int16()), 6),
        (pa.array([True] * 20), 2),
        (pa.array(["ab", None, "é"]), 4),
        (pa.array([b"abc", b""]), 3),
        (pa.array([[1, 2], None, []], pa.list_(pa.int32())), 12 + 8),
        (pa.array([["a"], ["bc", ""]]), 8 + 3),
        (pa.array([b"1234"] * 3, pa.binary(4)), 12),
        (pa.nulls(5), 0),
    ],
)
def test_the_size_of_rows_is_that_of_their_values(column, size):
    assert sharding.logical_bytes(pa.table({"x": column})) == size
    longer = pa.table({"x": pa.concat_arrays([column, column])})
    assert sharding.logical_bytes(longer.slice(len(column))) == size


def test_shards_aim_at_the_target_size(memory):
    rows = pa.table({"id": range(10_000), "x": [b"x" * 92] * 10_000})
    sharded = shard_rows(rows.to_batches(), _spec(target_size_bytes=100_000), memory, one_split="all")
    # 100 bytes and 4 of an offset a row
    sizes = [shard.bytes for shard in sharded.splits["all"]]
    assert len(sizes) == 10
    assert all(90_000 < size < 115_000 for size in sizes)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "target", "shards"),
    [(3, 4000, 1024, 3), (1, 10, 1024, 1), (10, 1020, 1024, 10), (10, 1030, 2068, 5)],
)
def test_the_number_of_shards(rows, row_bytes, target, shards):
    table = pa.table({"x": pa.array([b"x" * row_bytes] * rows, pa.binary(row_bytes))})
    assert sharding.num_shards(table, target) == shards
    assert sharding.num_shards(table, row_bytes * rows - 1) == min(rows, 2)


def test_one_split_takes_every_row_and_needs_no_split_column(memory):
    rows = pa.table({"x": [3, 1, 2]})
    sharded = shard_rows(rows.to_batches(), _spec(), memory, one_split="all")
    assert list(sharded.splits) == ["all"]
    assert sorted(memory.read(sharded, "all")["x"].to_pylist()) == [1, 2, 3]


def test_a_split_that_need_not_have_rows_is_kept_empty(memory):
    spec = _spec(split={"key": "id", "fractions": {"train": 0.5, "val": 1e-9, "test": 0.5 - 1e-9}})
    assert shard_rows(_table(50).to_batches(), spec, memory).splits["val"] == []


def test_rows_left_out_are_counted(memory):
    rows = pa.table({"at": pa.array(range(10), pa.timestamp("s"))})
    split = {"time": "at", "boundaries": {"test": "1970-01-01T00:00:06"}, "gap_s": 2}
    sharded = shard_rows(rows.to_batches(), _spec(split=split), memory)
    assert sharded.dropped_rows == {"gap": 2}
    assert [sum(s.rows for s in shards) for shards in sharded.splits.values()] == [4, 4]


def test_progress_is_told(memory):
    told = []
    shard_rows(
        _table(100).to_batches(30),
        _spec(),
        memory,
        transform=lambda batch: batch,
        progress=lambda *one: told.append(one),
    )
    assert told[:4] == [("reading", 30, None), ("reading", 60, None), ("reading", 90, None), ("reading", 100, None)]
    assert ("transforming", 100, 100) in told
    assert told[-1] == ("writing", 100, 100)


# ---- a user's transform


def test_a_transform_gets_the_rows_of_one_split_in_order_and_may_change_their_number(memory):
    seen = []

    def windows(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch["id"].to_pylist())
        return pa.record_batch({"tokens": [[n, n + 1] for n in batch["id"].to_pylist() for _ in range(2)]})

    sharded = shard_rows(_table(9000).to_batches(1000), _spec(split=SPLIT), memory, transform=windows)
    assert all(ids == sorted(ids) and len(ids) <= sharding.TRANSFORM_ROWS for ids in seen)
    assert sorted(chain(*seen)) == list(range(9000))
    assert len(seen) == 4  # 7200 rows of train, 900 and 900
    assert Counter(sum(s.rows for s in shards) for shards in sharded.splits.values()) == Counter(
        2 * sum(len(ids) for ids in group) for group in (seen[:2], seen[2:3], seen[3:])
    )
    field = sharded.schema.field("tokens")
    assert field.metadata == {b"shape": b"[2]", b"dtype": b"int64"}
    assert field.type == pa.binary(16)


def test_an_empty_answer_and_a_column_of_nulls_take_the_others_types(memory, monkeypatch):
    monkeypatch.setattr(sharding, "TRANSFORM_ROWS", 5)

    def some(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = [n for n in batch["id"].to_pylist() if n > 50]
        if not ids:
            return pa.record_batch({"id": pa.array([], pa.string()), "other": pa.array([], pa.int8())})
        return pa.record_batch({"id": ids, "name": [None if n < 100 else "x" for n in ids]})

    sharded = shard_rows(_table(200).to_batches(), _spec(), memory, transform=some, required=("train",))
    assert sharded.schema.field("name").type == pa.string()
    assert sharded.schema.field("id").type == pa.int64()


def _two_schemas(batch):
    return pa.record_batch({"x": [1] if 0 in batch["id"].to_pylist() else ["a"]})


def _missing_column(batch):
    return pa.record_batch({"x": [1]} if 0 in batch["id"].to_pylist() else {"y": [1]})


BAD_TRANSFORMS = [
    (lambda batch: None, UserCodeError, "shards.transform returned a NoneType, not a pyarrow.RecordBatch"),
    (lambda batch: batch.to_pandas(), UserCodeError, r"returned a pandas\.\S*DataFrame, not a pyarrow.RecordBatch"),
    (_two_schemas, UserCodeError, "does not give every batch the same columns and types: .*x"),
    (_missing_column, UserCodeError, "does not give every batch the same columns and types: column 'y'"),
    (
        lambda batch: pa.record_batch([pa.array([1]), pa.array([1])], names=["a", "a"]), UserCodeError,
        "returned two columns called 'a'",
    ),
    (
        lambda batch: batch.slice(0, 0), UsageError,
        "shards.transform leaves no rows for 'train' .train 0, val 0, test 0",
    ),
    (
        lambda batch: pa.record_batch({"x": [{"a": 1}] * batch.num_rows}), UsageError,
        "Column 'x' has the type struct<a: int64>",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("transform", "error", "sentence"), BAD_TRANSFORMS)
def test_a_transform_that_gives_no_rows_is_refused_before_the_first_byte(transform, error, sentence, memory):
    with pytest.raises(error, match=sentence):
        shard_rows(_table(200).to_batches(), _spec(), memory, transform=transform)
    assert memory.names == []


# ---- refusals


@pytest.mark.parametrize(
    ("rows", "changes", "sentence"),
    [
        (_table(0), {}, "The source has no rows to shard"),
        (_table(1), {}, "leaves no rows for"),
        (_table(50), {"split": {"key": "nope"}}, "no column 'nope'; it has id, text"),
        (pa.table({"id": range(50), "x": [0.1] * 50}), {"format": "tfrecord"}, "Column 'x' .*float64.* 32-bit"),
    ],
)
def test_what_cannot_be_sharded_is_refused_before_the_first_byte(rows, changes, sentence, memory):
    with pytest.raises(UsageError, match=sentence):
        shard_rows(rows.to_batches(), _spec(**changes), memory)
    assert memory.names == []


def test_an_unknown_format_is_a_bug_of_ours():
    with pytest.raises(ValueError, match="unknown shard format 'csv'"):
        formats.get("csv")


def test_tensors_read_back_as_they_were(memory):
    import numpy as np

    images = np.arange(40 * 6, dtype=np.uint8).reshape(40, 2, 3)
    rows = pa.table({"id": range(40), "image": images.tolist()})
    rows = rows.set_column(1, "image", rows["image"].cast(pa.list_(pa.list_(pa.uint8()))))
    sharded = shard_rows(rows.to_batches(), _spec(), memory, one_split="all")
    read = memory.read(sharded, "all")
    for row, raw in zip(read["id"].to_pylist(), read["image"].to_pylist(), strict=True):
        assert np.array_equal(np.frombuffer(raw, np.uint8).reshape(2, 3), images[row])
