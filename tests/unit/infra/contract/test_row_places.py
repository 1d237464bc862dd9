"""Rows are named by their file and their number in it, whatever the format, the window and the place of the data."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.handoffs import Failure, Quarantine, RowPlace
from data_contracts.messages.raw_data import ContractOutcome, ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from infra.contract.quarantine import with_places
from infra.sources import resolve_sources

DAYS = ["2026-06-01", "2026-06-02", "2026-06-01", "2026-06-02", "2026-06-02"]


def request_of(folder: Path, uri: str, root: Path | None = None, **changes: object) -> ContractRequest:
    sources = [SourceSpec(uri=uri)]
    files = resolve_sources(sources, root=folder, window=None, window_path=None, cache=folder / "cache", field="x")
    fields = {"files": files, "sources": sources, "root": str(root or folder), "window": None, "window_column": None}
    suite = {"name": "s", "expectations": []}
    return ContractRequest.model_validate(
        {"suite": suite, "fail_on": "critical", "sensitive": [], **fields, **changes}, strict=False
    )


def broken(*numbers: int) -> Failure:
    shown = {"row_numbers": list(numbers), "values": ["x"] * len(numbers)}
    return Failure(expectation="e", column="a", severity="critical", rows=len(numbers), sentence="s", **shown)


def outcome(*failures: Failure, quarantine: Quarantine | None = None) -> ContractOutcome:
    return ContractOutcome(accepted=False, rows=10, expectations=1, failures=list(failures), quarantine=quarantine)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in (1, 2):
        table = pa.table({"day": DAYS, "a": list(range(5))})
        pq.write_table(table, tmp_path / f"d{number}.parquet", row_group_size=2)
        rows = "\n".join(f"{day},{at}" for at, day in enumerate(DAYS))
        (tmp_path / f"d{number}.csv").write_text(f"day,a\n{rows}\n")
    return tmp_path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_row_is_named_by_its_file(folder: Path, ending: str) -> None:
    aside = Quarantine(rows=2, broken=[broken(0, 9)])
    found = with_places(request_of(folder, f"d*.{ending}"), outcome(broken(4, 5), broken(), quarantine=aside))
    one, two = f"d1.{ending}", f"d2.{ending}"
    assert found.failures[0].places == [RowPlace(file=one, row=4), RowPlace(file=two, row=0)]
    assert found.failures[1].places == []
    assert found.quarantine.broken[0].places == [RowPlace(file=one, row=0), RowPlace(file=two, row=4)]


def test_the_number_in_the_file_counts_rows_outside_of_the_window(folder: Path) -> None:
    window = {"window": ("2026-06-02T00:00:00+00:00", "2026-06-03T00:00:00+00:00"), "window_column": "day"}
    found = with_places(request_of(folder, "d*.csv", **window), outcome(broken(0, 1, 3)))
    assert [(one.file, one.row) for one in found.failures[0].places] == [("d1.csv", 1), ("d1.csv", 3), ("d2.csv", 1)]


def test_elsewhere_only_the_name_so_that_a_report_is_the_same_everywhere(folder: Path, tmp_path: Path) -> None:
    found = with_places(request_of(folder, "d*.csv", root=tmp_path / "spec"), outcome(broken(5)))
    assert found.failures[0].places == [RowPlace(file="d2.csv", row=0)]
