"""One pass of DuckDB: what it may touch, what it does with errors, and that it measures what it is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from data_contracts.contract.questions import ROWS, Measure
from data_contracts.contract.scan import Resources, _config, scanned
from data_contracts.errors import CorruptError
from tests.support.expectations import RESOURCES, reader

TABLE = pa.table({"a": [1, 2, None, 2], "x": [0.5, float("nan"), float("inf"), None], "s": ["a", "é", None, "a"]})
COUNT = Measure("count({c})", "a")


def test_nulls_and_nan_are_both_missing_and_a_measure_is_taken_once() -> None:
    distinct = Measure("count(DISTINCT {c})", "s")
    listed = Measure("count({c}) FILTER (WHERE list_contains(?::VARCHAR[], {c}))", "s", (("a", "'; --"),))
    measures = [ROWS, COUNT, Measure("count({c})", "x"), distinct, listed, COUNT]
    values = scanned(measures, reader(TABLE, 1), TABLE.schema, ["a", "s", "x"], RESOURCES)
    assert values is not None
    assert list(values.values()) == [4, 3, 2, 2, 2]


REFUSED = [
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM read_text('{file}')",
    "COPY (SELECT 1) TO '{file}.copy'",
    "ATTACH '{file}.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET threads = 7",
    "SELECT * FROM outside",
]


@pytest.mark.parametrize("statement", REFUSED)
def test_it_reaches_no_file_no_extension_and_no_variable(statement: str, tmp_path: Path) -> None:
    outside = pa.table({"secret": [1]})  # what DuckDB would find by the name of a Python variable
    file = tmp_path / "rows.parquet"
    duckdb.from_arrow(outside).write_parquet(str(file))
    (tmp_path / "spills").mkdir()
    config = _config(Resources(tmp_path / "spills", 64 * 2**20, 1))
    with duckdb.connect(":memory:", config=config) as connection, pytest.raises(duckdb.Error):
        connection.execute(statement.format(file=file))
    assert sorted(os.listdir(tmp_path)) == ["rows.parquet", "spills"]


def test_what_does_not_fit_into_memory_is_spilled_to_the_folder_alone(tmp_path: Path) -> None:
    rows, seen = 800_000, 0

    def read(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        nonlocal seen
        for start in range(0, rows, 20_000):
            seen = max(seen, sum(file.stat().st_size for file in tmp_path.iterdir()))
            yield pa.record_batch({"s": [f"{number:040d}" for number in range(start, start + 20_000)]})

    schema = pa.schema([("s", pa.string())])
    distinct = Measure("count(DISTINCT {c})", "s")
    values = scanned([distinct], read, schema, ["s"], Resources(tmp_path, 48 * 2**20, 2))
    assert values == {distinct: rows}
    assert seen > 0


def test_what_reading_raises_comes_out_as_it_was() -> None:
    changed = CorruptError("rows.csv changed.")

    def read(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        yield from TABLE.select(["a"]).to_batches()
        raise changed

    with pytest.raises(CorruptError) as raised:
        scanned([COUNT], read, TABLE.schema, ["a"], RESOURCES)
    assert raised.value is changed


class Stopped(BaseException):
    """What a handler of a signal raises."""


def test_a_signal_ends_it_between_two_batches() -> None:
    given = 0

    def read(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        nonlocal given
        for _ in range(2000):
            given += 1
            if given == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.005)
            yield TABLE.select(["a"]).to_batches()[0]

    def handler(*arguments: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Stopped):
            scanned([COUNT], read, TABLE.schema, ["a"], RESOURCES)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert given < 1000


def test_a_signal_does_not_wait_for_a_slow_batch() -> None:
    def read(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGUSR1)
        slow.wait(20)
        read_on.append(True)
        yield TABLE.select(["a"]).to_batches()[0]

    def handler(*arguments: object) -> None:
        raise Stopped

    slow, read_on = threading.Event(), []
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Stopped):
            scanned([COUNT], read, TABLE.schema, ["a"], RESOURCES)
        assert not read_on
    finally:
        slow.set()
        signal.signal(signal.SIGUSR1, before)


def test_a_thousand_expectations_take_little_memory(tmp_path: Path) -> None:
    """DuckDB's `FILTER` took 2 GB for them."""
    program = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from data_contracts.contract.questions import between
from data_contracts.contract.scan import Resources, scanned
table = pa.table({f"c{n}": [1, 2, 3] for n in range(100)})
asked = [between({"column": f"c{n % 100}", "min_value": 0, "max_value": 9 + n}, "whole") for n in range(1000)]
measures = [measure for question in asked for measure in question.measures]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = scanned(measures, lambda names: table.select(names).to_batches(), table.schema, table.column_names,
                Resources(Path(sys.argv[1]), 512 * 2**20, 4))
assert found and all(found[one.measures[1]] == 0 for one in asked)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 500_000, "kB"


def test_what_duckdb_cannot_measure_it_leaves() -> None:
    assert scanned([Measure("sum({c})", "s")], reader(TABLE), TABLE.schema, ["s"], RESOURCES) is None


def test_a_column_that_is_not_utf_8_leaves_all_to_great_expectations(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trainwright")
    bytes_ = pa.array([b"s3cr3t\xff", b"ok"])
    table = pa.table({"s": pa.Array.from_buffers(pa.string(), 2, bytes_.buffers())})
    assert scanned([ROWS, Measure("count({c})", "s")], reader(table), table.schema, ["s"], RESOURCES) is None
    assert "one scan could not measure the data" in caplog.text
    assert "s3cr3t" not in caplog.text
