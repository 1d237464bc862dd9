"""Measures aggregates over all rows with DuckDB, which uses every core and spills to disk.

DuckDB itself decodes Parquet files, if it sees the same in them as our reader; all other data comes as Arrow batches,
in one pass. Values of a suite are bound as parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from data_contracts.contract.measures import ALL, DISTINCT, Measure, MeasuredValues
from data_contracts.contract.rows import Data
from data_contracts.contract.scan.aggregate_query import as_pandas_sees, grouped, out_of_memory, query_values
from data_contracts.contract.scan.batch_stream import BatchStream, handed_type
from data_contracts.contract.scan.duck import Resources, asked
from data_contracts.contract.scan.parquet_scan import of_files
from data_contracts.contract.scan.passes import PASSES, in_passes
from data_contracts.errors import OutOfMemory

if TYPE_CHECKING:
    import duckdb

log = logging.getLogger("trainwright")


def scanned(
    measures: Sequence[Measure], data: Data, columns: list[str], resources: Resources
) -> dict[Measure, Any] | None:
    """Each measure's value; None if DuckDB could not measure them all.

    Args:
        columns: those that are read; at least one, so that there are rows.

    Raises:
        OutOfMemory: they need more memory than there is, also if distinct values are counted in many passes.
    """
    wanted = list(dict.fromkeys(measures))
    with data.files() as files:
        found = None if files is None else of_files(wanted, data.schema, columns, resources, files)
    if found is not None:
        return found
    found = {}
    for group in grouped(wanted, lambda one: (one.where, one.rows, one.columns if one.rows != ALL else None)):
        row = _in_turn(group, data, columns, resources)
        if row is None:
            return None
        found.update(row)
    return found


def _in_turn(group: list[Measure], data: Data, columns: list[str], resources: Resources) -> MeasuredValues | None:
    """All measures in one pass; if memory is too small for that, distinct values in several passes of their own."""

    def measured(some: list[Measure]) -> MeasuredValues | None:
        needed = sorted({name for one in some for name in one.columns}) or columns[:1]
        return _of_batches(some, data, needed, resources)

    try:
        return measured(group)
    except OutOfMemory:
        large = [one for one in group if one.sql == DISTINCT]
        if not large:
            raise
    found = measured([one for one in group if one not in large]) if len(large) < len(group) else {}
    for one in large:
        counted = in_passes(one, PASSES, measured) if found is not None else None
        if found is None or counted is None:
            return None
        found.update(counted)
    return found


def _of_batches(measures: list[Measure], data: Data, columns: list[str], resources: Resources) -> MeasuredValues | None:
    """All measures in one pass over the batches."""
    import duckdb

    names = {name: f"c{number}" for number, name in enumerate(columns)}
    fields = [pa.field(names[name], handed_type(data.schema.field(name).type)) for name in columns]
    numbered = any("{n}" in one.sql for one in measures)
    stream = BatchStream(data.read(columns), pa.schema([*fields, *([pa.field("n", pa.int64())] if numbered else [])]))
    inner = ", ".join(
        [*(f"{as_pandas_sees(one.name, one.type)} AS {one.name}" for one in fields), *(["n"] if numbered else [])]
    )

    def work(connection: duckdb.DuckDBPyConnection) -> MeasuredValues:
        connection.register("source", stream.reader)
        return query_values(connection, measures, f"SELECT {inner} FROM source", names)

    def stop() -> None:
        stream.stopped = True

    try:
        found = asked(work, resources, stop=stop)
    except BaseException as error:
        if stream.error is not None:
            raise stream.error from None
        if not isinstance(error, duckdb.Error):
            raise
        if isinstance(error, duckdb.OutOfMemoryException):
            raise out_of_memory(resources) from None
        log.info("one scan could not measure the data (%s): Great Expectations does", type(error).__name__)
        return None
    return found if stream.ended else None
