"""The index that pandas hides is no column of the data: a frame has the columns here that pandas shows.

Reuse keys of files that have one differ from those of versions that read it; all others are as they were.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pandas as pd
import pyarrow.parquet as pq
import pytest

from data_contracts.canonical import digest
from data_contracts.pipeline_spec import SourceSpec
from infra.contract.file_statistics import statistics_name
from infra.sources import Places, places, resolve, schema_sniff
from tasks.stages.contract_check import index_left_out, raw_inputs
from tests.unit.infra.sources.conftest import Raw

FRAME = pd.DataFrame({"x": [1.5, 2.5, 3.5, 4.5], "g": ["a", "b", "a", "b"]})
FILTERED = FRAME[FRAME["x"] != 2.5]
# How an index comes about, its columns in the file, and those that are read.
FRAMES: dict[str, tuple[Callable[[], pd.DataFrame], list[str], list[str]]] = {
    "filtered": (lambda: FILTERED, ["x", "g", "__index_level_0__"], ["x", "g"]),
    "sorted": (lambda: FRAME.sort_values("g"), ["x", "g", "__index_level_0__"], ["x", "g"]),
    "two levels": (
        lambda: FRAME.set_index([[1, 1, 2, 2], list("abcd")]),
        ["x", "g", "__index_level_0__", "__index_level_1__"],
        ["x", "g"],
    ),
    "times": (lambda: FRAME.set_index(pd.date_range("2026", periods=4)), ["x", "g", "__index_level_0__"], ["x", "g"]),
    "one level of two has a name": (
        lambda: FRAME.set_index(["g", pd.Index([7, 8, 9, 9])]),
        ["x", "g", "__index_level_1__"],
        ["x", "g"],
    ),
    "named": (lambda: FRAME.rename_axis("id"), ["x", "g"], ["x", "g"]),
    "named and filtered": (lambda: FILTERED.rename_axis("id"), ["x", "g", "id"], ["x", "g", "id"]),
    "numbered as ever": (lambda: FRAME, ["x", "g"], ["x", "g"]),
    "a column of another name": (lambda: FRAME.assign(__index_level_x__=1), ["x", "g", "__index_level_x__"],
                                 ["x", "g", "__index_level_x__"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FRAMES)
def test_a_frame_has_the_columns_that_pandas_shows(case: str, raw: Raw) -> None:
    make, stored, read = FRAMES[case]
    make().to_parquet(raw.root / "x.parquet")
    assert pq.read_schema(raw.root / "x.parquet").names == stored
    [file] = raw.resolve("x.parquet")
    source = SourceSpec.model_validate("x.parquet")
    table, shown = raw.read("x.parquet"), pd.read_parquet(raw.root / "x.parquet").reset_index()
    assert table.column_names == read
    assert schema_sniff.sniff_schema(file, [source], raw.root, Places([source], raw.root)).names == read
    assert table.to_pandas().equals(shown[read])
    hidden = any(name.startswith("__index_level_") for name in stored)
    assert file.hidden_index == hidden
    assert bool(index_left_out([file])) == hidden


def test_files_with_and_without_an_index_are_one_table_also_compressed_and_rewritten(raw: Raw) -> None:
    FILTERED.to_parquet(raw.root / "a.parquet")
    FRAME.to_parquet(raw.root / "b.parquet")
    pq.write_table(pq.read_table(raw.root / "a.parquet").replace_schema_metadata(None), raw.root / "c.parquet")
    (raw.root / "d.parquet.gz").write_bytes(gzip.compress((raw.root / "a.parquet").read_bytes()))
    rows, files = raw.read("*.parquet*"), raw.resolve("*.parquet*")
    assert (rows.column_names, rows.num_rows) == (["x", "g"], 13)
    assert [file.hidden_index for file in files] == [True, False, True, False]  # compressed, a footer is not looked at
    assert index_left_out(files).startswith("the index without a name (__index_level_0__) of a.parquet and 1 more is")
    # Keys change for files with an index alone.
    source = SourceSpec.model_validate("x.parquet")
    for file in files[:2]:
        old = {"blake3": file.blake3, "format": "parquet", "columns": {}, "source": 0}
        assert (raw_inputs([file]) != [old]) == file.hidden_index
        old_part = f"{digest([file.blake3, 'parquet', {}, None, None])[:40]}.json"
        assert (statistics_name(file, source) != old_part) == file.hidden_index
        assert ("hidden_index" in file.to_json()) == file.hidden_index


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no Parquet file at all", b"\xff" * 40, b"\xff\xff\xff\x7fPAR1"])
def test_bytes_that_are_no_parquet_file_are_looked_at_without_an_error(data: bytes, raw: Raw) -> None:
    raw.write("x.parquet", data or b"x")
    assert not raw.resolve("x.parquet")[0].hidden_index


def test_what_was_found_is_remembered(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    FILTERED.to_parquet(raw.root / "x.parquet")
    monkeypatch.setattr(places, "_TICK_NS", -(10**12))  # else a file that was written just now may change unnoticed
    looked: list[str] = []
    look = resolve._index_in_footer
    monkeypatch.setattr(resolve, "_index_in_footer", lambda place, file: looked.append(file.uri) or look(place, file))
    assert raw.resolve("x.parquet") == raw.resolve("x.parquet")
    assert raw.resolve("x.parquet")[0].hidden_index
    assert len(looked) == 1
