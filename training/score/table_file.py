"""A Parquet file that is written while its rows come, and whose bytes do not depend on how they were batched."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


class TableFile:
    """Collects tables of one schema and writes their rows in groups of `group_rows`."""

    def __init__(self, path: Path, group_rows: int = 2**16) -> None:
        self.path = path
        self.schema: pa.Schema | None = None
        self._group_rows = group_rows
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def append(self, table: pa.Table) -> bool:
        """Append the rows; returns False, and appends nothing, if the schema is not that of the first table."""
        if self.schema is not None and table.schema != self.schema:
            return False
        self.schema = table.schema
        self._waiting.append(table)
        self._rows += table.num_rows
        while self._rows >= self._group_rows:
            self._write(self._group_rows)
        return True

    def drop(self) -> None:
        """Forget the rows that are not written yet."""
        self._waiting.clear()
        self._rows = 0

    def close(self) -> bool:
        """Complete the file; returns whether there is one: without rows there is none."""
        if self._rows:
            self._write(self._rows)
        if self._writer is not None:
            self._writer.close()
        return self._writer is not None

    def _write(self, rows: int) -> None:
        table = pa.concat_tables(self._waiting).combine_chunks()
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, table.schema)
        self._writer.write_table(table.slice(0, rows), row_group_size=self._group_rows)
        self._waiting = [table.slice(rows)]
        self._rows -= rows
