"""One pass of DuckDB: what it may touch, what it does with errors, and that it measures what it is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.arrow_rows import Data, no_files
from data_contracts.contract.questions import ROWS, Measure
from data_contracts.contract.scan import Resources, scanned
from data_contracts.errors import CorruptError, OutOfMemory
from tests.support.expectations import RESOURCES, in_files, reader, unread

TABLE = pa.table({"a": [1, 2, None, 2], "x": [0.5, float("nan"), float("inf"), None], "s": ["a", "é", None, "a"]})
COUNT = Measure("count({c})", "a")


def test_nulls_and_nan_are_both_missing_and_a_measure_is_taken_once() -> None:
    distinct = Measure("count(DISTINCT {c})", "s")
    listed = Measure("count({c}) FILTER (WHERE list_contains(?::VARCHAR[], {c}))", "s", (("a", "'; --"),))
    measures = [ROWS, COUNT, Measure("count({c})", "x"), distinct, listed, COUNT]
    values = scanned(measures, Data(TABLE.schema, reader(TABLE, 1)), ["a", "s", "x"], RESOURCES)
    assert list(values.values()) == [4, 3, 2, 2, 2]


def test_what_does_not_fit_into_memory_is_spilled_to_the_folder_alone(tmp_path: Path) -> None:
    rows, seen = 800_000, 0

    def read(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        nonlocal seen
        for start in range(0, rows, 20_000):
            seen = max(seen, sum(file.stat().st_size for file in tmp_path.iterdir()))
            yield pa.record_batch({"s": [f"{number:040d}" for number in range(start, start + 20_000)]})

    schema = pa.schema([("s", pa.string())])
    distinct = Measure("count(DISTINCT {c})", "s")
    values = scanned([distinct], Data(schema, read), ["s"], Resources(tmp_path, 48 * 2**20, 2))
    assert values == {distinct: rows}
    assert seen > 0


@pytest.mark.parametrize("files", [no_files, in_files], ids=["batches", "files"])
def test_distinct_values_are_counted_in_passes_where_they_do_not_fit(tmp_path: Path, files: Any) -> None:
    rows = 800_000
    table = pa.table({"s": [f"name {number:050d}" for number in range(rows)]})
    distinct, count = Measure("count(DISTINCT {c})", "s"), Measure("count({c})", "s")
    few = Resources(tmp_path, 24 * 2**20, 2)
    data = Data(table.schema, reader(table, 20_000), files if files is no_files else files(table, 50_000))
    assert scanned([count, distinct], data, ["s"], few) == {count: rows, distinct: rows}


def test_a_scan_that_runs_out_of_memory_is_one_sentence_and_not_left_to_great_expectations(tmp_path: Path) -> None:
    rows = 400_000
    table = pa.table({"s": [f"{number:0200d}" for number in range(rows)]})
    listed = Measure("len(list({c}))", "s")
    for files in (in_files(table, rows), no_files):
        data = Data(table.schema, reader(table, 20_000), files)
        with pytest.raises(OutOfMemory, match="cannot be checked in the 16 MiB of memory"):
            scanned([listed], data, ["s"], Resources(tmp_path, 16 * 2**20, 2))


def test_what_reading_raises_comes_out_as_it_was() -> None:
    changed = CorruptError("rows.csv changed.")

    def read(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        yield from TABLE.select(["a"]).to_batches()
        raise changed

    with pytest.raises(CorruptError) as raised:
        scanned([COUNT], Data(TABLE.schema, read), ["a"], RESOURCES)
    assert raised.value is changed


class Stopped(BaseException):
    """What a handler of a signal raises."""


@pytest.fixture
def signals() -> Iterator[None]:
    """SIGUSR1 raises Stopped."""

    def handler(*arguments: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("at", [1, 3], ids=["in a slow batch", "between two batches"])
def test_a_signal_ends_it_and_waits_for_no_batch(at: int) -> None:
    given, read_on = 0, []
    slow = threading.Event()

    def read(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        nonlocal given
        for _ in range(2000):
            given += 1
            if given == at:
                os.kill(os.getpid(), signal.SIGUSR1)
            read_on.append(slow.wait(300 if at == 1 else 0.05))
            yield TABLE.select(["a"]).to_batches()[0]

    with pytest.raises(Stopped):
        scanned([COUNT], Data(TABLE.schema, read), ["a"], RESOURCES)
    assert given < 1000
    assert at > 1 or not read_on
    slow.set()


def test_a_thousand_expectations_take_little_memory(tmp_path: Path) -> None:
    """DuckDB's `FILTER` took 2 GB for them."""
    program = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from data_contracts.contract.questions import between
from data_contracts.contract.scan import Resources
from data_contracts.arrow_rows import Data, no_files
from data_contracts.contract.scan import scanned
table = pa.table({f"c{n}": [1, 2, 3] for n in range(100)})
asked = [between({"column": f"c{n % 100}", "min_value": 0, "max_value": 9 + n}, "whole") for n in range(1000)]
measures = [measure for question in asked for measure in question.measures]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = scanned(measures, Data(table.schema, lambda names: table.select(names).to_batches()), table.column_names,
                Resources(Path(sys.argv[1]), 512 * 2**20, 4))
assert found and all(found[one.measures[1]] == 0 for one in asked)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 500_000, "kB"


ODD = pa.table({"x": [1, None], "X": [1, 2], "filename": ["a", "b"], 'a "b"': [3, 4], "x_": [{"x": 1}, None]})
LEAST = pa.array([-(2**63), 0, None], pa.int64())
TIMES = pa.table({unit: LEAST.cast(pa.timestamp(unit)) for unit in ("us", "ns")})
OTHER = pa.table({"x": pa.array([1, 2], pa.int32())})


@pytest.mark.parametrize(
    ("table", "schema", "column", "direct"),
    [
        (TABLE, TABLE.schema, "a", True),
        (TIMES, TIMES.schema, "us", True),
        (TIMES, TIMES.schema, "ns", True),
        (ODD, ODD.schema, 'a "b"', True),
        (ODD, ODD.schema, "x", False),  # to DuckDB, X is the same column
        (ODD, ODD.schema, "filename", False),
        (OTHER, pa.schema([("x", pa.int64())]), "x", False),  # as beside a file in which it is int64
    ],
    ids=["plain", "us", "ns", "quotes", "case", "ours", "other type"],
)
def test_parquet_is_read_by_duckdb_if_it_sees_what_our_reader_sees(
    table: pa.Table, schema: pa.Schema, column: str, direct: bool
) -> None:
    read = unread if direct else reader(table.cast(schema) if schema is not table.schema else table)
    measure = Measure("count({c})", column)
    there = table.num_rows - table[column].null_count
    there -= table is TIMES  # the least of them is pandas' missing time
    found = scanned([measure, ROWS], Data(schema, read, in_files(table, 2)), [column], RESOURCES)
    assert found == {measure: there, ROWS: table.num_rows}


def test_what_duckdb_cannot_measure_it_leaves() -> None:
    assert scanned([Measure("sum({c})", "s")], Data(TABLE.schema, reader(TABLE)), ["s"], RESOURCES) is None


@pytest.mark.parametrize("files", [no_files, in_files], ids=["batches", "files"])
def test_a_column_that_is_not_utf_8_leaves_all_to_great_expectations(
    files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What DuckDB cannot read in a Parquet file is read as batches, once, and then left as well."""
    caplog.set_level("INFO", "trainwright")
    bytes_ = pa.array([b"s3cr3t\xff", b"ok"])
    table = pa.table({"s": pa.Array.from_buffers(pa.string(), 2, bytes_.buffers())})
    seen: list[list[str] | None] = []
    data = Data(table.schema, reader(table, seen=seen), no_files if files is no_files else in_files(table, 2))
    assert scanned([ROWS, Measure("count({c})", "s")], data, ["s"], RESOURCES) is None
    assert seen == [["s"]]
    assert "one scan could not measure the data" in caplog.text
    assert "s3cr3t" not in caplog.text
