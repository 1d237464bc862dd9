"""Measures aggregates over all rows in one pass of DuckDB, which uses every core and spills to disk.

DuckDB gets Arrow batches and nothing else: no file, no extension, no name of a column. What is written in a suite is
bound as a parameter, and a text of DuckDB's own is never shown, because it may quote a value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.contract.frames import is_text
from data_contracts.contract.questions import Measure
from data_contracts.contract.translation import kind_of

log = logging.getLogger("trainwright")

Read = Callable[[list[str] | None], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Resources:
    """What a scan may use.

    Attributes:
        folder: an existing private folder for what does not fit into memory.
        memory_bytes: the memory that DuckDB may use before it spills.
        threads: its threads.
    """

    folder: Path
    memory_bytes: int
    threads: int


def scanned(
    measures: Sequence[Measure], read: Read, schema: pa.Schema, columns: list[str], resources: Resources
) -> dict[Measure, Any] | None:
    """Each measure's value, in one pass; None if DuckDB could not measure them all.

    Args:
        read: gives the data's batches with only these columns.
        schema: of all columns.
        columns: those that are read; at least one, so that there are rows.
    """
    import duckdb

    names = {name: f"c{number}" for number, name in enumerate(columns)}
    handed = pa.schema([pa.field(names[name], _handed_type(schema.field(name).type)) for name in columns])
    stream = _Stream(read(columns), handed)
    inner = ", ".join(_without_nan(names[name], schema.field(name).type) for name in columns)
    asked = list(dict.fromkeys(measures))
    aggregates = ", ".join(one.sql.format(c=names.get(one.column or "", "")) for one in asked)
    values = [list(value) if isinstance(value, tuple) else value for one in asked for value in one.values]

    sql = f"SELECT {aggregates} FROM (SELECT {inner} FROM source)"
    try:
        row = _answer(sql, values, stream, resources)
    except duckdb.Error as error:
        log.info("one scan could not measure the data (%s): Great Expectations does", type(error).__name__)
        row = None
    return dict(zip(asked, row, strict=True)) if row is not None and stream.ended else None


def _answer(sql: str, values: list[Any], stream: _Stream, resources: Resources) -> Any:
    """What the query returns; raises what reading raised.

    It runs in a thread, because a signal's handler waits for the main thread to run Python. After a signal, the thread
    ends by itself at the next batch; only it may close its connection, which is busy until then.
    """
    import duckdb

    connections = []

    def query() -> Any:
        with duckdb.connect(":memory:", config=_config(resources)) as connection:
            connections.append(connection)
            connection.register("source", stream.reader)
            return connection.execute(sql, values).fetchone()

    thread = ThreadPoolExecutor(1, "scan")
    answer = thread.submit(query)
    try:
        return answer.result()
    except BaseException:
        stream.stopped = True
        if not answer.done():
            for connection in connections:
                connection.interrupt()
        if stream.error is not None:
            raise stream.error from None
        raise
    finally:
        thread.shutdown(wait=False)


class _Stream:
    """Batches as DuckDB reads them, in one of its threads.

    Attributes:
        reader: the Arrow stream.
        error: what reading raised, which DuckDB would only quote.
        ended: whether all batches were read.
        stopped: set when nobody waits for the rest.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        self.error: BaseException | None = None
        self.ended = self.stopped = False
        self.reader = pa.RecordBatchReader.from_batches(schema, self._handed(batches, schema))

    def _handed(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                if self.stopped:
                    return
                yield pa.RecordBatch.from_arrays([_handed(column) for column in batch.columns], schema=schema)
            self.ended = True
        except _NotUnicode:
            raise
        except BaseException as error:
            self.error = error
            raise


class _NotUnicode(ValueError):
    """A column of text holds other bytes than UTF-8: DuckDB would take them for text, and pandas does not."""


def _handed_type(kind: pa.DataType) -> pa.DataType:
    seen = kind_of(kind)
    return pa.bool_() if seen == "time" else pa.large_string() if seen == "text" else kind


def _handed(column: pa.Array) -> pa.Array:
    """A column as DuckDB gets it: of a time, only whether there is one; the least int64 is pandas' missing time."""
    if is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _NotUnicode from error
    if kind_of(column.type) != "time":
        return column.cast(_handed_type(column.type))
    if pa.types.is_date32(column.type):
        there = column.is_valid()
    else:
        there = pc.fill_null(pc.not_equal(column.cast(pa.int64()), -(2**63)), False)
    return pc.if_else(there, True, pa.scalar(None, pa.bool_()))


def _without_nan(name: str, kind: pa.DataType) -> str:
    return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {name}" if pa.types.is_floating(kind) else name


def _config(resources: Resources) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "allow_community_extensions": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "enable_external_access": "false",
        "lock_configuration": "true",
        "memory_limit": f"{resources.memory_bytes}B",
        "preserve_insertion_order": "false",
        "python_enable_replacements": "false",
        "temp_directory": str(resources.folder),
        "threads": str(resources.threads),
    }
