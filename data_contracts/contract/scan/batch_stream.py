"""Batches as DuckDB gets them: a stream of Arrow whose columns mean what they mean to Great Expectations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.arrow_types import is_text
from data_contracts.contract.translation.translation import kind_of


class BatchStream:
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
        first = 0
        try:
            for batch in batches:
                if self.stopped:
                    return
                columns = [_handed(column) for column in batch.columns]
                if len(columns) < len(schema):
                    columns.append(pa.array(range(first, first + batch.num_rows), pa.int64()))
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
                first += batch.num_rows
            self.ended = True
        except NotUnicode:
            raise
        except BaseException as error:
            self.error = error
            raise


class NotUnicode(ValueError):
    """A column of text holds other bytes than UTF-8: DuckDB would take them for text, and pandas does not."""


def handed_type(kind: pa.DataType) -> pa.DataType:
    """The type as which a column of this type is handed over."""
    seen = kind_of(kind)
    return pa.bool_() if seen == "time" else pa.large_string() if seen == "text" else kind


def _handed(column: pa.Array) -> pa.Array:
    """A column as DuckDB gets it: of a time, only whether there is one; the least int64 is pandas' missing time."""
    if is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise NotUnicode from error
    if kind_of(column.type) != "time":
        return column.cast(handed_type(column.type))
    if pa.types.is_date32(column.type):
        there = column.is_valid()
    else:
        there = pc.fill_null(pc.not_equal(column.cast(pa.int64()), -(2**63)), False)
    return pc.if_else(there, True, pa.scalar(None, pa.bool_()))
