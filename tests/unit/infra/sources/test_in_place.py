"""Parquet files that DuckDB reads by itself hold the bytes whose digest was resolved, or the reading ends."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from data_contracts.errors import CorruptError
from data_contracts.pipeline_spec import SourceSpec
from infra.sources import parquet_in_place
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw, parquet


def stored(*numbers: int) -> bytes:
    return parquet({"x": [*numbers]})


def summed(paths: tuple[str, ...]) -> object:
    with duckdb.connect() as connection:
        return connection.execute("SELECT sum(x) FROM read_parquet(?)", [list(paths)]).fetchone()


def sources(*names: str) -> list[SourceSpec]:
    return [SourceSpec(uri=name) for name in names]


def test_files_are_read_where_they_are_or_as_a_private_copy(raw: Raw) -> None:
    write_files(
        raw.root, {"a.parquet": stored(1, 2), "b.parquet.gz": gzip.compress(stored(30)), "c.parquet": stored(400)}
    )
    files = raw.resolve("a.parquet", "b.parquet.gz", "c.parquet")
    with parquet_in_place(files, sources("a.parquet", "b.parquet.gz", "c.parquet"), raw.root) as held:
        assert held.first_rows == (0, 2, 3)
        assert summed(held.paths) == (433,)


def exchange(path: Path, in_place: bool) -> None:
    """Other rows, in the same file or in another one under its name."""
    written = path if in_place else path.with_name("other")
    written.write_bytes(stored(100))
    os.replace(written, path)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_that_changed_is_refused_and_a_name_that_is_given_to_another_changes_nothing(
    raw: Raw, in_place: bool
) -> None:
    path = raw.write("a.parquet", stored(1, 2))
    files = raw.resolve("a.parquet")

    def read(meanwhile: Callable[[], None]) -> object:
        with parquet_in_place(files, sources("a.parquet"), raw.root) as held:
            assert held is not None
            meanwhile()
            return summed(held.paths)

    refused = pytest.raises(CorruptError) if in_place else contextlib.nullcontext()
    with refused:
        assert read(lambda: exchange(path, in_place)) == (3,)
    with pytest.raises(CorruptError):
        read(lambda: None)


def test_other_formats_and_too_many_files_are_left_to_our_reader(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(raw.root, {"a.parquet": stored(1), "b.csv": "x\n1\n"})
    with parquet_in_place(raw.resolve("a.parquet", "b.csv"), sources("a.parquet", "b.csv"), raw.root) as held:
        assert held is None
    monkeypatch.setattr("infra.sources.read._MOST", 0)
    with parquet_in_place(raw.resolve("a.parquet"), sources("a.parquet"), raw.root) as held:
        assert held is None
