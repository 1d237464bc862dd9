"""The file of rows that were set aside: what it says of them, and that sharding leaves out exactly these rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import ContractOutcome, ContractRequest
from data_contracts.pipeline_spec import QuarantineSpec, SourceSpec
from infra.contract import contract_worker, quarantine
from infra.contract.quarantine import FILE, LeftOut
from infra.files import file_digest
from tests.support.expectations import E, suite
from tests.support.files import write_files
from training.shard import units
from training.shard.units import Source, open_source, without_quarantined

TOP = E("column_values_to_be_between", column="x", max_value=89)
ONCE = E("column_values_to_be_unique", column="key")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path


def _source(path: Path, **more: Any) -> SourceFile:
    kind = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl"}.get(path.suffix, "files")
    about = {"bytes": path.stat().st_size, "blake3": file_digest(path), "format": kind, **more}
    return SourceFile(uri=str(path), **about)


def parquet(folder: Path, name: str, first: int, rows: int) -> SourceFile:
    """Rows `first` and on, each key twice in the last two rows; ten rows in a row group."""
    numbers = list(range(first, first + rows))
    at = [f"2026-01-{1 + number % 10:02}" for number in numbers]
    keys = [*numbers[:-1], numbers[-2]]
    table = pa.table({"x": numbers, "key": keys, "at": pa.array(at).cast(pa.timestamp("us")), "secret": at})
    pq.write_table(table, folder / name, row_group_size=10)
    return _source(folder / name)


def check(folder: Path, files: list[SourceFile], *expectations: dict[str, Any], **more: Any) -> ContractOutcome:
    given = {
        "suite": suite(*expectations),
        "files": files,
        "sources": [SourceSpec(uri="x", **more.pop("source", {}))],
        "root": str(folder),
        "window": None,
        "window_column": None,
        "fail_on": "critical",
        "sensitive": [],
        "quarantine": QuarantineSpec(max_share=0.5),
        "folder": str(folder / "kept"),
        **more,
    }
    return contract_worker.main(ContractRequest(**given), lambda report: None)


def kept(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "kept" / FILE).to_pylist()


def rest(folder: Path, files: list[SourceFile], window: tuple[str, str] | None = None, column: str = "x") -> list[Any]:
    """What the units give without the rows in the file."""
    table = pq.read_table(folder / "kept" / FILE)
    gone = LeftOut(*(table[name].to_numpy() for name in ("row", "file_number", "row_in_file")))
    span = None if window is None else contract_worker.Window.from_iso(*window)
    opened = open_source(files, Source([SourceSpec(uri="x")], folder, span, "at"), map)
    source, units = opened.source, opened.units
    left = without_quarantined(units, gone)
    assert len(left) == len(units)
    known = [(unit.rows, one.rows) for unit, one in zip(units, left, strict=True) if unit.rows is not None]
    assert sum(before - after for before, after in known if after is not None) <= len(gone.rows)
    return [value for unit in left for batch in source.read(unit) for value in batch[column].to_pylist()]


def test_each_row_says_where_it_was_and_what_it_broke(folder: Path) -> None:
    files = [parquet(folder, "a.parquet", 0, 25), parquet(folder, "b.parquet", 75, 25)]
    outcome = check(folder, files, TOP, ONCE, sensitive=["secret"])
    assert outcome.accepted
    assert outcome.quarantine.rows == 12
    rows = kept(folder)
    top, once = "expect_column_values_to_be_between on x", "expect_column_values_to_be_unique on key"
    assert [(one["row"], one["file"], one["row_in_file"]) for one in rows] == [
        (23, "a.parquet", 23), (24, "a.parquet", 24), *((number, "b.parquet", number - 25) for number in range(40, 50)),
    ]  # fmt: skip
    assert [one["broken"] for one in rows] == [[once], [once], *[[top]] * 8, [top, once], [top, once]]
    assert [set(one["data"]) for one in rows] == [{"x", "key", "at"}] * 12
    assert [one["data"]["x"] for one in rows] == [23, 24, *range(90, 100)]


@pytest.mark.parametrize("unit_bytes", [1, 2**28])
@pytest.mark.parametrize("window", [None, ("2026-01-03T00:00:00", "2026-01-08T00:00:00")])
def test_units_leave_out_exactly_these_rows_with_and_without_a_window(
    folder: Path, window: tuple[str, str] | None, unit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", unit_bytes)
    files = [parquet(folder, "a.parquet", 0, 35), parquet(folder, "b.parquet", 60, 40)]
    bad = E("column_values_to_not_be_in_set", column="x", value_set=[0, 3, 26, 34, 64, 70, 84, 99])
    outcome = check(folder, files, bad, window=window, window_column="at")
    assert outcome.accepted
    inside = [x for x in [*range(35), *range(60, 100)] if window is None or 2 <= x % 10 < 7]
    gone = [x for x in (0, 3, 26, 34, 64, 70, 84, 99) if x in inside]
    assert [one["data"]["x"] for one in kept(folder)] == gone
    assert [inside[one["row"]] for one in kept(folder)] == gone
    assert rest(folder, files, window) == [x for x in inside if x not in gone]


def test_rows_of_csv_json_lines_and_whole_files_are_found_too(folder: Path) -> None:
    write_files(
        folder, {"a.csv": "x,y\n1,\n95,b\n3,c\n", "b.jsonl": '{"x": 4, "deep": {}}\n{"x": 96, "y": "e", "deep": {}}\n'}
    )
    write_files(folder, {f"{name}.txt": name for name in ("one", "two", "three")})
    texts = [_source(folder / f"{n}.txt", columns={"path": n}) for n in ("one", "two", "three")]
    files = [_source(folder / "a.csv"), *texts[:2], _source(folder / "b.jsonl"), texts[2]]
    two = E("column_values_to_not_be_in_set", column="path", value_set=["two"])
    assert check(folder, files, TOP, two).accepted
    rows = kept(folder)
    places = [("a.csv", 0, 1), ("two.txt", 2, 0), ("b.jsonl", 3, 1)]
    assert [(one["file"], one["file_number"], one["row_in_file"]) for one in rows] == places
    assert [one["data"]["y"] for one in rows] == ["b", None, "e"]
    assert "deep" not in rows[0]["data"]  # Parquet has no struct without fields
    assert rest(folder, files) == [1, 3, None, 4, None]
    assert rest(folder, files, column="path") == [None, None, "one", None, "three"]


def test_only_row_groups_with_such_rows_are_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = quarantine.read_batches

    def read(files: list[SourceFile], *rest: Any, selection: Any, **more: Any) -> Any:
        asked.append((Path(files[0].uri).name, selection.row_groups))
        return real(files, *rest, selection=selection, **more)

    monkeypatch.setattr(quarantine, "read_batches", read)
    files = [parquet(folder, "a.parquet", 0, 50), parquet(folder, "b.parquet", 50, 50)]
    check(folder, files, E("column_values_to_not_be_in_set", column="x", value_set=[63, 71]))
    assert set(asked) == {("b.parquet", (1, 3))}  # for their values, and for the places of those that are named
    assert [one["data"]["x"] for one in kept(folder)] == [63, 71]


def test_without_columns_that_may_be_shown_only_the_place_is_kept(folder: Path) -> None:
    (folder / "a.csv").write_text("x\n1\n95\n")
    assert check(folder, [_source(folder / "a.csv")], TOP, sensitive=["x"]).accepted
    [row] = kept(folder)
    assert row == {"row": 1, "file": "a.csv", "file_number": 0, "row_in_file": 1,
                   "broken": ["expect_column_values_to_be_between on x"]}  # fmt: skip


def test_nothing_is_written_when_nothing_is_set_aside_or_the_data_is_rejected(folder: Path) -> None:
    (folder / "a.csv").write_text("x\n1\n95\n")
    assert check(folder, [_source(folder / "a.csv")], E("column_values_to_not_be_null", column="x")).accepted
    assert not check(folder, [_source(folder / "a.csv")], TOP, quarantine=QuarantineSpec(max_share=0.4)).accepted
    assert not list((folder / "kept").iterdir())
