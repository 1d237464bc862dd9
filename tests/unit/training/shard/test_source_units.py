"""Units follow from the files; tasks join small ones; a remote Parquet file is fetched once for all of its units."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.files import file_digest
from infra.sources import read as reading
from training.shard import units
from training.shard.units import Fetcher, Source, open_source, tasks_of


def _file(path: Path, kind: str = "parquet", **more) -> SourceFile:
    return SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=file_digest(path), format=kind, **more)


@pytest.fixture
def parquet(tmp_path):
    """A file of ten row groups of ten rows."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": range(100)}), path, row_group_size=10)
    return path


def _open(files, sources, root):
    opened = open_source(files, Source(sources, root), map)
    return opened.source, opened.units


def test_large_parquet_files_are_cut_between_row_groups(parquet, monkeypatch):
    source, [whole] = _open([_file(parquet)], [SourceSpec(uri="x")], parquet.parent)
    assert (whole.row_groups, whole.rows) == ((0, 10), 100)
    monkeypatch.setattr(units, "UNIT_BYTES", whole.bytes // 3)
    source, cut = _open([_file(parquet)], [SourceSpec(uri="x")], parquet.parent)
    assert [unit.row_groups for unit in cut] == [(0, 4), (4, 8), (8, 10)]
    assert [unit.number for unit in cut] == [0, 1, 2]
    assert [row for unit in cut for batch in source.read(unit) for row in batch["x"].to_pylist()] == list(range(100))
    assert len(tasks_of(cut)) == 1
    monkeypatch.setattr(units, "TASK_BYTES", whole.bytes * 7 // 10)
    assert [len(task) for task in tasks_of(cut)] == [1, 2]


def test_files_that_are_rows_are_taken_together(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "UNIT_FILES", 4)
    files = []
    for n in range(10):
        path = tmp_path / f"{n}.txt"
        path.write_text(f"text {n}")
        files.append(_file(path, "files", columns={"path": path.name}))
    source, found = _open(files, [SourceSpec(uri="x", format="files")], tmp_path)
    assert [len(unit.files) for unit in found] == [4, 4, 2]
    assert len({unit.digest for unit in found}) == 3
    assert [row for unit in found for batch in source.read(unit, ["path"]) for row in batch["path"].to_pylist()] == [
        f"{n}.txt" for n in range(10)
    ]


def test_a_file_that_is_not_at_hand_is_fetched_once(tmp_path, parquet, monkeypatch):
    # Compressed whole, a file can be read in any order only from a copy.
    packed = tmp_path / "rows.parquet.zst"
    packed.write_bytes(pa.compress(parquet.read_bytes(), "zstd", asbytes=True))
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    source, cut = _open([_file(packed)], [SourceSpec(uri="x", format="parquet")], tmp_path)
    assert len(cut) == 10
    assert {unit.stamp for unit in cut} == {None}
    monkeypatch.setattr(units, "TASK_BYTES", 1)
    assert [len(task) for task in tasks_of(cut)] == [10]
    opened = []
    original = reading.stream
    monkeypatch.setattr(reading, "stream", lambda file, place: (opened.append(file.uri), original(file, place))[1])
    folder = tmp_path / "fetched"
    folder.mkdir()
    fetcher = Fetcher(source, folder)
    rows = [row for unit in cut for batch in fetcher.read(unit) for row in batch["x"].to_pylist()]
    fetcher.close()
    assert rows == list(range(100))
    assert opened == [str(packed)]
    assert list(folder.iterdir()) == []
