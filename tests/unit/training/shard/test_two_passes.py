"""Sharding real files: every row once, the result a function of files and settings alone, refusals."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.errors import UsageError
from tests.support.sharding import Shards, small_runs
from training.formats.schema import Facts
from training.shard import spill, two_passes, units

LEAST_MEMORY = 2**20


def _table(rows: int, first: int = 0) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table({"id": ids, "text": [f"row {n}" for n in ids]})


def test_the_shuffle_is_of_the_whole_split_and_seeded(tmp_path):
    made = Shards(tmp_path / "a", [_table(500), _table(500, 500)], required=())
    first = made.read("train")["id"].to_pylist()[: made.sharded.splits["train"][0].rows]
    assert max(first) > 900
    assert min(first) < 100
    again = Shards(tmp_path / "b", [_table(500), _table(500, 500)], seed=1)
    assert made.digests != again.digests
    assert [rows for _, _, rows in made.digests] == [rows for _, _, rows in again.digests]


values = st.one_of(st.none(), st.text(max_size=4))


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 40), values), min_size=1, max_size=60), min_size=1, max_size=4),
    st.integers(1, 30),
    st.integers(1, 7),
)
def test_any_rows_are_kept_once_evenly_and_no_key_stands_on_two_sides(tmp_path_factory, tables, batch_rows, run_rows):
    """And spilling in runs of a few rows, read in batches of a few rows, changes no byte."""
    made = [pa.table({"id": [i for i, _ in rows], "x": pa.array([x for _, x in rows])}) for rows in tables]
    made = [table.cast(pa.schema([("id", pa.int64()), ("x", pa.string())])) for table in made]
    one = Shards(tmp_path_factory.mktemp("one"), made, required=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "BATCH_ROWS", batch_rows)
        patch.setattr(spill, "BATCH_ROWS", 2)
        small_runs(patch, run_rows * 40)
        two = Shards(tmp_path_factory.mktemp("two"), made, required=())
    assert two.spilled
    assert one.digests == two.digests
    read = {split: one.read(split) for split in one.sharded.splits}
    rows = Counter((row["id"], row["x"]) for table in read.values() for row in table.to_pylist())
    assert rows == Counter(row for table in tables for row in table)
    sides = Counter(key for table in read.values() for key in set(table["id"].to_pylist()))
    assert set(sides.values()) == {1}
    for shards in one.sharded.splits.values():
        sizes = [shard.rows for shard in shards]
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_neither_workers_nor_memory_change_a_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "UNIT_BYTES", 20_000)
    monkeypatch.setattr(units, "TASK_BYTES", 30_000)
    rng = np.random.default_rng(0)
    tables = [
        pa.table({"id": range(first, first + 20_000), "x": rng.random(20_000), "image":
                  pa.array(rng.integers(0, 255, (20_000, 4), np.uint8).tolist(), pa.list_(pa.uint8()))})
        for first in (0, 20_000)
    ]  # fmt: skip
    options = {"row_group_rows": 1_000, "target_size_bytes": 50_000}
    alone = Shards(tmp_path / "1", tables, workers=1, **options)
    pressed = Shards(tmp_path / "2", tables, workers=1, memory_bytes=LEAST_MEMORY, **options)
    shared = Shards(tmp_path / "4", tables, workers=3, memory_bytes=LEAST_MEMORY, **options)
    monkeypatch.setattr(two_passes, "default_count", lambda: 3)
    threads = Shards(tmp_path / "3", tables, memory_bytes=LEAST_MEMORY, **options)
    assert (len(alone.spilled), len(pressed.spilled) > 1, len(shared.spilled) > 10) == (0, True, True)
    assert alone.digests == pressed.digests == shared.digests == threads.digests
    assert sorted(chain(*(alone.read(s)["id"].to_pylist() for s in alone.sharded.splits))) == list(range(40_000))


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
        (pa.array([[1, 2], None], pa.list_(pa.uint8())), 4),
        (pa.nulls(5), 0),
    ],
)
def test_the_size_of_rows_is_that_of_their_values(column, size):
    facts = Facts()
    longer = pa.table({"x": pa.concat_arrays([column, column])})
    facts.look(["all"], np.zeros(len(column), np.int16), longer.slice(len(column)))
    assert facts.sizes["all"].logical_bytes(facts.schema()) == size


def test_the_size_of_lists_counts_those_that_were_tensors_in_their_batch():
    facts = Facts()
    for rows in ([[1, 2], None], [[1, 2, 3]], [None]):
        table = pa.table({"x": pa.array(rows, pa.list_(pa.int16()))})
        facts.look(["all"], np.zeros(len(rows), np.int16), table)
    assert facts.schema().field("x").type == pa.list_(pa.int16())
    assert facts.sizes["all"].logical_bytes(facts.schema()) == 4 * 4 + 2 * 5


def test_shards_aim_at_the_target_size(tmp_path):
    rows = pa.table({"id": range(10_000), "x": [b"%092d" % n for n in range(10_000)]})
    made = Shards(tmp_path, [rows], target_size_bytes=100_000, one_split="all")
    # 100 bytes and 4 of an offset a row
    sizes = [shard.bytes for shard in made.sharded.splits["all"]]
    assert len(sizes) == 10
    assert all(90_000 < size < 115_000 for size in sizes)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "target", "shards"),
    [(3, 4000, 1024, 3), (1, 10, 1024, 1), (10, 1020, 1024, 10), (10, 1030, 2068, 5), (10, 1024, 10239, 2)],
)
def test_the_number_of_shards(rows, row_bytes, target, shards):
    assert two_passes.num_shards(rows, rows * row_bytes, target) == shards


def test_a_split_that_need_not_have_rows_is_kept_empty(tmp_path):
    split = {"key": "id", "fractions": {"train": 0.5, "val": 1e-9, "test": 0.5 - 1e-9}}
    assert Shards(tmp_path, [_table(50)], split=split).sharded.splits["val"] == []


# ---- refusals


@pytest.mark.parametrize(
    ("rows", "changes", "sentence"),
    [
        (_table(0), {}, "The source has no rows to shard"),
        (_table(0), {"split": {"time": "id"}}, "The source has no rows to shard"),
        (_table(1), {}, "leaves no rows for"),
        (_table(50), {"split": {"key": "nope"}}, "no column 'nope'; it has id, text"),
        (pa.table({"id": range(50), "x": [0.1] * 50}), {"format": "tfrecord"}, "Column 'x' .*float64.* 32-bit"),
        (
            pa.table({"id": range(50), "x": pa.array([2**63] + [1] * 49, pa.uint64())}), {"format": "tfrecord"},
            "Column 'x' .*integers of 2.63 and more",
        ),
        (
            pa.table({"id": range(50), "x": pa.array([[1, 2**63]] + [[1]] * 49, pa.list_(pa.uint64()))}),
            {"format": "tfrecord"}, "Column 'x' .*integers of 2.63 and more",
        ),
        (
            pa.table({"id": range(50), "x": pa.array([[1, None]] + [[1, 2]] * 49)}), {"format": "tfrecord"},
            "Column 'x' .*nulls inside lists",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_sharded_is_refused_before_the_first_byte(rows, changes, sentence, tmp_path):
    with pytest.raises(UsageError, match=sentence):
        Shards(tmp_path, [rows], **changes)
    assert list((tmp_path / "shards").iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_key_on_two_sides_is_named_whichever_file_has_it(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(units, "TASK_BYTES", 1)
    split = {"column": "part", "key": "user"}
    parts = [["train"] * 50, ["train"] * 50, ["test"] * 50]
    users = [range(50), range(50, 100), range(99, 149)]
    tables = [pa.table({"part": part, "user": user}) for part, user in zip(parts, users, strict=True)]
    with pytest.raises(UsageError, match=r"user = 99 \(row 99\) is in both 'train' and 'test'; .*this: 1"):
        Shards(tmp_path / "a", tables, split=split, workers=workers)
    tables[2] = tables[2].slice(1)
    made = Shards(tmp_path / "b", tables, split=split, workers=workers)
    assert [made.rows(name) for name in ("train", "test")] == [100, 49]
