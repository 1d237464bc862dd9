"""A user's transform: which rows it gets at once, what its answers may be, and which are refused."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.pipeline_spec import SourceSpec
from infra.sources import Window, resolve_sources
from tests.support.sharding import Shards, small_runs
from training.shard import first_pass, units
from training.shard.units import Source


def _table(rows: int, first: int = 0) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table({"id": ids, "text": [f"row {n}" for n in ids]})


PROJECT = """
import pyarrow as pa

seen = []

def windows(batch):
    seen.append(batch["id"].to_pylist())
    return pa.record_batch({"tokens": [[n, n + 1] for n in batch["id"].to_pylist() for _ in range(2)]})

def neighbours(batch):
    # Looks at rows beside a row: the batches it gets must not depend on the reader's.
    return batch.append_column("rows", pa.array([batch.num_rows] * batch.num_rows))

def some(batch):
    ids = [n for n in batch["id"].to_pylist() if n > 50]
    if not ids:
        return pa.record_batch({"id": pa.array([], pa.string()), "other": pa.array([], pa.int8())})
    return pa.record_batch({"id": ids, "name": [None if n < 100 else "x" for n in ids]})

def ragged(batch):
    ids = batch["id"].to_pylist()
    return pa.record_batch({"id": ids, "x": [None if n < 40 or n % 7 == 3 else [n] * (2 + n // 100) for n in ids]})

def two_schemas(batch):
    return pa.record_batch({"x": [1] if 0 in batch["id"].to_pylist() else ["a"]})

def missing_column(batch):
    return pa.record_batch({"x": [1]} if 0 in batch["id"].to_pylist() else {"y": [1]})

def nothing(batch):
    return None

def frame(batch):
    return batch.to_pandas()

def twice(batch):
    return pa.record_batch([pa.array([1]), pa.array([1])], names=["a", "a"])

def no_rows(batch):
    return batch.slice(0, 0)

def picky(batch):
    if 157 in batch["id"].to_pylist():
        raise ValueError("it is truncated")
    return batch

def pairwise(batch):
    ids = batch["id"].to_pylist()
    if 156 in ids and 157 in ids:
        raise ValueError("they are alike")
    return batch

def unlike(batch):
    return batch if 0 in batch["id"].to_pylist() else batch.drop_columns(["text"])

def returns_nothing(batch):
    return batch if 0 in batch["id"].to_pylist() else None

def structs(batch):
    return pa.record_batch({"x": [{"a": 1}] * batch.num_rows})
"""


@pytest.fixture
def project(tmp_path_factory, monkeypatch):
    """A user's project, and what it makes of tables."""
    folder = tmp_path_factory.mktemp("project")
    module = f"mine_{folder.name}".replace("-", "_")
    (folder / f"{module}.py").write_text(textwrap.dedent(PROJECT))
    monkeypatch.syspath_prepend(str(folder))

    def shards(tmp_path, tables, function, **options):
        made = Shards(tmp_path, tables, transform=f"{module}.{function}", project=str(folder), **options)
        made.module = __import__(module)
        return made

    return shards


def test_a_transform_gets_the_rows_of_one_split_of_one_unit_in_order(tmp_path, project):
    made = project(tmp_path, [_table(9000), _table(100, 9000)], "windows")
    seen = made.module.seen
    assert all(ids == sorted(ids) and len(ids) <= first_pass.TRANSFORM_ROWS for ids in seen)
    assert sorted(chain(*seen)) == list(range(9100))
    assert not any(min(ids) < 9000 <= max(ids) for ids in seen)
    assert len(seen) == 4 + 3  # 7200 rows of train, 900 and 900; and the second file's three splits
    field = made.sharded.schema.field("tokens")
    assert field.metadata == {b"shape": b"[2]", b"dtype": b"int64"}
    assert field.type == pa.binary(16)
    assert sum(made.rows(split) for split in made.sharded.splits) == 18_200


@pytest.mark.parametrize("batch_rows", [1, 7, 100])
def test_the_batches_of_a_transform_do_not_depend_on_the_readers(tmp_path, project, monkeypatch, batch_rows):
    monkeypatch.setattr(first_pass, "TRANSFORM_ROWS", 30)
    whole = project(tmp_path / "a", [_table(200)], "neighbours")
    monkeypatch.setattr(units, "BATCH_ROWS", batch_rows)
    assert project(tmp_path / "b", [_table(200)], "neighbours").digests == whole.digests
    # 80 % of 200 rows are train's: batches of 30, and one of what is left.
    assert max(whole.read("train")["rows"].to_pylist()) == 30


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
def test_a_transform_gets_fewer_rows_if_they_are_large(tmp_path, project, monkeypatch, batch_rows):
    monkeypatch.setattr(first_pass, "TRANSFORM_BYTES", 100)
    monkeypatch.setattr(units, "BATCH_ROWS", batch_rows)
    rows = pa.table({"id": range(6), "x": [b"x" * 70, b"x" * 10, b"", b"x" * 500, b"x", b"x" * 82]})
    made = project(tmp_path, [rows], "neighbours", one_split="all")
    # Each has 8 bytes more, of its id: 78 + 18, and 8 + 508 no more, nor 9 + 90 + 8.
    batch_sizes = {row["id"]: row["rows"] for row in made.read("all").to_pylist()}
    assert [batch_sizes[n] for n in range(6)] == [2, 2, 1, 1, 2, 2]


def test_an_empty_answer_and_a_column_of_nulls_take_the_others_types(tmp_path, project, monkeypatch):
    monkeypatch.setattr(first_pass, "TRANSFORM_ROWS", 5)
    made = project(tmp_path, [_table(200)], "some", required=("train",))
    assert made.sharded.schema.field("name").type == pa.string()
    assert made.sharded.schema.field("id").type == pa.int64()


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("format_name", ["parquet", "tfrecord"])
def test_lists_are_tensors_only_if_all_batches_say_so(tmp_path, project, monkeypatch, format_name, spilled):
    if spilled:
        small_runs(monkeypatch, 300)  # some runs of nulls, some of tensors, some of lists
    monkeypatch.setattr(first_pass, "TRANSFORM_ROWS", 5)
    all_alike = project(tmp_path / "a", [_table(100)], "ragged", one_split="all", format=format_name)
    assert all_alike.sharded.schema.field("x").metadata == {b"shape": b"[2]", b"dtype": b"int64"}
    made = project(tmp_path / "b", [_table(200)], "ragged", one_split="all", format=format_name)
    assert made.sharded.schema.field("x").type == pa.list_(pa.int64())
    assert len(made.spilled) > 5 or not spilled
    for row in made.read("all").to_pylist():
        n = row["id"]
        assert row["x"] == (None if n < 40 or n % 7 == 3 else [n] * (2 + n // 100))


BAD_TRANSFORMS = [
    ("nothing", UserCodeError, "shards.transform returned a NoneType, not a pyarrow.RecordBatch"),
    ("frame", UserCodeError, r"returned a pandas\.\S*DataFrame, not a pyarrow.RecordBatch"),
    ("two_schemas", UserCodeError, "does not give every batch the same columns and types: .*x"),
    ("missing_column", UserCodeError, "does not give every batch the same columns and types: column 'y'"),
    ("twice", UserCodeError, "returned two columns called 'a'"),
    ("no_rows", UsageError, "shards.transform leaves no rows for 'train' .train 0, val 0, test 0"),
    ("structs", UsageError, "Column 'x' has the type struct<a: int64>"),
]


@pytest.mark.parametrize(
    ("function", "error", "sentence", "workers"),
    [
        *((*one, 1) for one in BAD_TRANSFORMS),
        *((*one, 2) for one in BAD_TRANSFORMS if one[0] in ("nothing", "two_schemas")),
    ],
)
def test_a_transform_that_gives_no_rows_is_refused_before_the_first_byte(
    function, error, sentence, workers, tmp_path, project, monkeypatch
):
    monkeypatch.setattr(units, "TASK_BYTES", 1)
    with pytest.raises(error, match=sentence):
        project(tmp_path, [_table(100), _table(100, 100)], function, workers=workers)
    assert list((tmp_path / "shards").iterdir()) == []


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("picky", "row 57 of 1.parquet"),
        ("pairwise", "rows 56 to 58 of 1.parquet"),
        ("unlike", "rows 0 to 99 of 1.parquet"),
        ("returns_nothing", "rows 0 to 99 of 1.parquet"),
    ],
)
def test_the_file_and_the_rows_of_a_bad_batch_are_named(function, place, tmp_path, project):
    with pytest.raises(UserCodeError) as caught:
        project(tmp_path, [_table(100), _table(100, 100)], function, one_split="train")
    assert caught.value.message.endswith(f", on {place}.")


def test_rows_are_counted_in_their_files_before_what_is_left_out(tmp_path):
    times = pa.array([datetime(2026, 1, 1 + n % 3, tzinfo=UTC) for n in range(9)])
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"time": times}), tmp_path / name, row_group_size=3)
    for name in ("1.png", "2.png", "3.png"):
        (tmp_path / name).write_bytes(name.encode())

    def said(pattern, rows, *, groups=None, left_out=None, window=None):
        sources = [SourceSpec.model_validate({"uri": pattern, **({"format": "files"} if "png" in pattern else {})})]
        files = resolve_sources(sources, root=tmp_path, window=None, window_path=None, cache=tmp_path / "cache")
        opened = units.open_source(files, Source(sources, tmp_path, window, "time" if window else None), map)
        source, unit = opened.source, opened.units[0]
        numbers = None if left_out is None else np.array(left_out)
        part = replace(unit, files=tuple(files) if groups is None else unit.files, row_groups=groups, left_out=numbers)
        return units.rows_in_words(source, part, tmp_path, np.array(rows))

    assert said("a.parquet", [0, 2], groups=(1, 3)) == "rows 3 to 5 of a.parquet"
    assert said("a.parquet", [1], groups=(0, 3), left_out=[0, 1, 4]) == "row 3 of a.parquet"
    assert said("*.parquet", [8, 9]) == "row 8 of a.parquet to row 0 of b.parquet"
    second_of_january = Window.from_iso("2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")
    assert said("*.parquet", [1, 3], window=second_of_january) == "row 4 of a.parquet to row 1 of b.parquet"
    assert said("*.png", [1]) == "2.png"
    assert said("*.png", [0, 2]) == "1.png to 3.png (2 files)"
