"""Profiles of raw files: the order of files and their batches change nothing, and what is sealed is read back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.contract.file_statistics import PROFILE_FILE, profiled, put_profile, read_profile
from infra.sources import Selection, Window, read_batches, resolve_sources
from infra.store import Store
from tests.support.files import write_files

ALL = Selection()


def resolved(sources: list[SourceSpec], root: Path) -> list[SourceFile]:
    cache = root / "cache"
    return resolve_sources(sources, root=root, window=None, window_path=None, field="data.source", cache=cache)


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[SourceFile], list[SourceSpec]]:
    for number in range(3):
        rows = range(number * 1000, number * 1000 + 1000)
        days = [datetime(2026, 1, 1 + number, hour % 24) for hour in rows]
        pq.write_table(pa.table({"x": [one / 7 for one in rows], "at": days}), tmp_path / f"{number}.parquet")
    sources = [SourceSpec(uri="*.parquet")]
    return resolved(sources, tmp_path), sources


def test_the_order_of_files_and_the_sizes_of_batches_change_no_byte(tmp_path: Path, files) -> None:
    found, sources = files
    first = profiled(found, sources, tmp_path, selection=ALL, sensitive=[])
    again = profiled(found[::-1], sources, tmp_path, selection=Selection(batch_rows=77), sensitive=[])
    assert canonical(first.to_json()) == canonical(again.to_json())
    assert first.rows == 3000


def test_texts_that_parquet_stores_as_dictionaries_have_the_profile_of_plain_texts(tmp_path: Path) -> None:
    table = pa.table({"word": [f"word {number % 30}" for number in range(50_000)], "id": list(map(str, range(50_000)))})
    profiles = []
    for coded in (True, False):
        pq.write_table(table, tmp_path / f"{coded}.parquet", use_dictionary=coded, row_group_size=20_000)
        sources = [SourceSpec(uri=f"{coded}.parquet")]
        found = resolved(sources, tmp_path)
        read = Selection(encoded=True)
        types = {
            str(batch.schema.field("word").type)
            for batch in read_batches(found, sources, root=tmp_path, selection=read)
        }
        assert ("dictionary" in types.pop()) is coded
        profiles.append(profiled(found, sources, tmp_path, selection=ALL, sensitive=[]))
    assert profiles[0] == profiles[1]


def test_a_window_leaves_rows_out_and_no_rows_have_no_profile(tmp_path: Path, files) -> None:
    found, sources = files

    def in_days(start: int, end: int) -> Selection:
        window = Window(datetime(2026, 1, start, tzinfo=UTC), datetime(2026, 1, end, tzinfo=UTC))
        return Selection(window=window, window_column="at")

    profile = profiled(found, sources, tmp_path, selection=in_days(2, 3), sensitive=["x"])
    assert [(one.name, one.rows) for one in profile.columns] == [("x", 1000), ("at", 1000)]
    assert profile.columns[0].bins is None
    assert profiled(found, sources, tmp_path, selection=in_days(7, 8), sensitive=[]) is None


def test_the_content_of_a_file_that_is_a_row_is_not_profiled(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{number}.png": b"x" for number in range(3)})
    sources = [SourceSpec(uri="*.png", format="files", pattern="{name}.png")]
    found = resolved(sources, tmp_path)
    profile = profiled(found, sources, tmp_path, selection=ALL, sensitive=[])
    assert {one.name: one.distinct for one in profile.columns} == {"path": 3, "name": 3}


def test_what_was_sealed_is_read_back(tmp_path: Path, files, store: Store) -> None:
    found, sources = files
    profile = profiled(found, sources, tmp_path, selection=ALL, sensitive=[])
    assert profile is not None
    writer = store.writer(f"contracts/{'a' * 40}-0")
    put_profile(writer, profile)
    ref = writer.seal("contract", {}, {})
    assert read_profile(store, ref) == profile
    folder = tmp_path / "store" / ref.uri  # who may read the report may read the profile
    assert (folder / PROFILE_FILE).stat().st_mode == (folder / "manifest.json").stat().st_mode

    other = store.writer(f"contracts/{'b' * 40}-0")
    newer = canonical({**profile.to_json(), "schema_version": 2})
    other.put(PROFILE_FILE, newer)
    with pytest.raises(UsageError, match="has schema 2, newer than the 1"):
        read_profile(store, other.seal("contract", {}, {}))
    assert read_profile(store, store.writer(f"contracts/{'c' * 40}-0").seal("contract", {}, {}, files=[])) is None

    path = tmp_path / "store" / ref.uri / PROFILE_FILE
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"3000", b"3001"))
    with pytest.raises(CorruptError):
        read_profile(store, ref)
    with pytest.raises(CorruptError, match="is missing"):
        read_profile(store, ref.model_copy(update={"uri": f"contracts/{'d' * 40}-0"}))
