"""What DuckDB may touch, and that a query which makes progress says so."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from data_contracts.contract.scan import Resources, connected, run_in_duckdb

REFUSED = [
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM read_text('{file}')",
    "COPY (SELECT 1) TO '{file}.copy'",
    "ATTACH '{file}.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET allowed_paths = ['{file}']",
    "SET threads = 7",
    "SELECT * FROM outside",
]


@pytest.mark.parametrize("statement", REFUSED)
@pytest.mark.parametrize("given", [False, True], ids=["batches", "files"])
def test_it_reaches_no_file_no_extension_and_no_variable(statement: str, given: bool, tmp_path: Path) -> None:
    outside = pa.table({"secret": [1]})  # what DuckDB would find by the name of a Python variable
    file, other = tmp_path / "rows.parquet", tmp_path / "given.parquet"
    for path in (file, other):
        duckdb.from_arrow(outside).write_parquet(str(path))
    (tmp_path / "spills").mkdir()
    resources = Resources(tmp_path / "spills", 64 * 2**20, 1)
    with connected(resources, [str(other)] if given else []) as connection:
        with pytest.raises(duckdb.Error):
            connection.execute(statement.format(file=file))
        if given:
            assert connection.execute(f"SELECT secret FROM read_parquet('{other}')").fetchone() == (1,)
    assert sorted(os.listdir(tmp_path)) == ["given.parquet", "rows.parquet", "spills"]


def test_a_footer_that_claims_less_than_the_pages_hold_is_not_believed(tmp_path: Path) -> None:
    with connected(Resources(tmp_path, 64 * 2**20, 1)) as connection:
        off = connection.execute("SELECT current_setting('disabled_optimizers')").fetchone()
    assert set(off[0].split(",")) == {"statistics_propagation", "filter_pushdown"}


def test_a_query_that_makes_progress_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("data_contracts.contract.scan._LOOK_S", 0.005)
    moves: list[None] = []
    resources = Resources(tmp_path, 256 * 2**20, 1, lambda: moves.append(None))
    query = "SELECT sum(hash(range)) > 0 FROM range(40_000_000)"
    assert run_in_duckdb(lambda connection: connection.execute(query).fetchone(), resources) == (True,)
    assert len(moves) > 1
