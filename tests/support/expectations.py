"""What tests of the contract engine share: expectations in one line, tables as readers, one check."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.arrow_rows import ParquetFiles
from data_contracts.contract.engine import check
from data_contracts.contract.findings import Outcome
from data_contracts.contract.questions import ScanQuestion
from data_contracts.contract.scan import Resources
from data_contracts.contract.suites import load_suite
from data_contracts.contract.translation import translated
from data_contracts.handoffs import Failure

ROOT = Path(__file__)
RESOURCES = Resources(Path("/nonexistent"), 64 * 2**20, 2)  # nothing here is so large that it is spilled
Read = Callable[[list[str] | None], Iterator[pa.RecordBatch]]


def E(kind: str, severity: str = "critical", **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "severity": severity}


def suite(*expectations: dict[str, Any]) -> dict[str, Any]:
    return load_suite({"name": "s", "expectations": list(expectations)}, ROOT)


def plan(expectation: dict[str, Any], schema: pa.Schema) -> ScanQuestion | str:
    """What a scan measures for one expectation; or why it runs on Great Expectations."""
    return translated({0: expectation}, schema)[0]


def reader(table: pa.Table, rows: int = 10_000, seen: list[list[str] | None] | None = None) -> Read:
    def read(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        if seen is not None:
            seen.append(columns)
        yield from (table if columns is None else table.select(columns)).to_batches(max_chunksize=rows)

    return read


def unread(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    raise AssertionError("DuckDB left the Parquet files to our reader")


def in_files(table: pa.Table, rows: int) -> Callable[[], contextlib.AbstractContextManager[ParquetFiles]]:
    """The table as Parquet files of so many rows, open while they are read."""

    @contextlib.contextmanager
    def opened() -> Iterator[ParquetFiles]:
        with contextlib.ExitStack() as held:
            paths, first = [], range(0, table.num_rows, rows)
            for start in first:
                file = held.enter_context(tempfile.TemporaryFile())
                pq.write_table(table.slice(start, rows), file)
                file.flush()
                paths.append(f"/proc/self/fd/{file.fileno()}")
            yield ParquetFiles(tuple(paths), tuple(first))

    return opened


def run(table: pa.Table, *expectations: dict[str, Any], rows: int = 10_000, **settings: Any) -> Outcome:
    told = {"fail_on": "critical", "sensitive": [], "resources": RESOURCES, **settings}
    return check(suite(*expectations), reader(table, rows), **told)


def one(table: pa.Table, expectation: dict[str, Any], **settings: Any) -> Failure:
    (failure,) = run(table, expectation, **settings).failures
    return failure


# Row-wise and whole, with nulls, duplicates, an outlier and a row condition: each must give what GX gives.
TABLE = pa.table(
    {
        "whole": [3, 1, 4, 1, 5, 9, 2, 6, 5, 100],
        "gaps": pa.array([3, None, 4, 1, 5, None, 2, 6, 5, 2], pa.int64()),
        "real": [0.5, 1.5, None, 2.5, 0.1, 7.5, 1.0, 0.5, 2.0, 3.0],
        "text": ["ab", "abc", None, "x", "ab", "2024-01-01", '{"a": 1}', "ab9", "", "zz"],
        "flag": [True, False, True, True, None, False, True, True, False, True],
        "pair": [1, 2, 4, 1, 6, 9, 1, 7, 5, 90],
    }
)
