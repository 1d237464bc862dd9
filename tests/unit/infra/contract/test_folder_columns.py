"""Columns that only folders name are in each reader of a check, its kept statistics, quarantine and sharding."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.contract import scan
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import ContractOutcome, ContractRequest
from data_contracts.pipeline_spec import QuarantineSpec, SourceSpec
from infra.contract import contract_worker
from infra.contract.file_statistics import KNOWN, NEW, statistics_name
from infra.contract.quarantine import FILE
from infra.sources import Window, read, resolve_sources
from tests.support.expectations import E, suite
from training.shard.units import Fetcher, Source, open_source

FOLDERS = {
    "day=2026-01-01/city=M%C3%BCnchen": 2,
    "day=2026-01-02/city=a'b": 3,
    "day=__HIVE_DEFAULT_PARTITION__/city=c": 1,
}
EXPECTATIONS = [
    E("column_values_to_be_in_set", column="city", value_set=["München", "c"]),
    E("column_values_to_not_be_null", column="day"),
    E("column_values_to_be_between", column="day", max_value="2026-01-01"),
    E("column_unique_value_count_to_be_between", column="city", max_value=2),
    E("column_values_to_be_between", column="x", max_value=2, row_condition="city == 'c'", condition_parser="pandas"),
    E("column_max_to_be_between", column="x", max_value=9),
]


def made(root: Path, ending: str) -> tuple[list[SourceFile], list[SourceSpec]]:
    """Six rows in three files; only folders' names hold `day` and `city`."""
    first = 0
    for folder, rows in FOLDERS.items():
        path = root / "t" / folder / f"part-0.{ending}"
        path.parent.mkdir(parents=True)
        numbers = range(first, first + rows)
        first += rows
        if ending == "parquet":
            pq.write_table(pa.table({"x": numbers}), path, row_group_size=2)
        elif ending == "csv":
            path.write_text("x\n" + "".join(f"{number}\n" for number in numbers))
        else:
            path.write_text("".join(json.dumps({"x": number}) + "\n" for number in numbers))
    sources = [SourceSpec(uri="t")]
    return resolve_sources(sources, root=root, window=None, window_path=None, cache=root / "cache"), sources


def check(root: Path, ending: str, **more: Any) -> ContractOutcome:
    files, sources = made(root, ending)
    rules = EXPECTATIONS[: more.pop("first", None)]
    given = {"window": None, "window_column": None, "fail_on": "info", "sensitive": [], **more}
    asked = ContractRequest(suite=suite(*rules), files=files, sources=sources, root=str(root), **given)
    return contract_worker.main(asked, lambda report: None)


def findings(outcome: ContractOutcome) -> list[tuple[Any, ...]]:
    """The failures, and where their rows are, without the format of the files."""
    places = [[(Path(place.file).parent, place.row) for place in one.places] for one in outcome.failures]
    return [
        (one.expectation, one.column, one.rows, one.row_numbers, one.values, one.observed, at)
        for one, at in zip(outcome.failures, places, strict=True)
    ]


def test_each_reader_gives_the_same_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_place = []
    scan_files = scan.scan_files
    monkeypatch.setattr(scan, "scan_files", lambda *given: in_place.append(scan_files(*given)) or in_place[-1])
    outcomes = {ending: check(tmp_path / ending, ending) for ending in ("parquet", "csv", "jsonl")}
    assert len(in_place) >= 1
    assert None not in in_place  # DuckDB itself read the Parquet files
    parts = tmp_path / "parts"
    for name in (KNOWN, NEW):
        (parts / name).mkdir(parents=True)
    outcomes["parts"] = check(tmp_path / "again", "parquet", statistics=str(parts))

    @contextlib.contextmanager
    def nothing(*given: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(contract_worker, "parquet_in_place", nothing)
    outcomes["batches"] = check(tmp_path / "batches", "parquet")
    expected = findings(outcomes["parquet"])
    assert [(one[1], one[3]) for one in expected] == [
        ("city", [2, 3, 4]), ("day", [5]), ("day", [2, 3, 4]), ("city", []), ("x", [5]),
    ]  # fmt: skip
    assert all(findings(one) == expected for one in outcomes.values())
    profiles = [one.profile for one in outcomes.values() if one.profile is not None]
    assert profiles
    assert {column.name: column.type for column in profiles[0].columns} == {
        "x": "int64", "day": "date32[day]", "city": "string",
    }  # fmt: skip


def test_a_window_and_quarantine_use_them(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    outcome = check(
        tmp_path, "parquet", window=("2026-01-01T00:00:00", "2026-01-03T00:00:00"), window_column="day",
        quarantine=QuarantineSpec(max_share=0.9), folder=str(tmp_path / "kept"), first=1, fail_on="critical",
    )  # fmt: skip
    assert outcome.rows == 5
    rows = pq.read_table(tmp_path / "kept" / FILE).to_pylist()
    assert {(one["data"]["city"], str(one["data"]["day"])) for one in rows} >= {("a'b", "2026-01-02")}


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_units_have_them_and_their_names_depend_on_them(ending: str, tmp_path: Path) -> None:
    files, sources = made(tmp_path, ending)
    window = Window.from_iso("2026-01-02", "2026-01-03")
    opened = open_source(files, Source(sources, tmp_path, window, "day"), map)
    fetcher = Fetcher(opened.source, tmp_path)
    rows = [row for unit in opened.units for batch in fetcher.read(unit, ["city", "x"]) for row in batch.to_pylist()]
    assert rows == [{"city": "a'b", "x": number} for number in (2, 3, 4)]
    elsewhere = [file.model_copy(update={"columns": {**file.columns, "city": "Ulm"}}) for file in files]
    read._FACTS.clear()
    others = open_source(elsewhere, Source(sources, tmp_path, window, "day"), map).units
    assert not {unit.digest for unit in opened.units} & {unit.digest for unit in others}
    as_texts = files[0].model_copy(update={"column_types": {"day": "string", "city": "string"}})
    names = {statistics_name(file, sources[0]) for file in (files[0], elsewhere[0], as_texts)}
    assert len(names) == 3
