"""Measures aggregates over open Parquet files, which DuckDB decodes itself with all cores."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from data_contracts.contract.measures import DISTINCT, Measure, MeasuredValues
from data_contracts.contract.rows import ParquetFiles
from data_contracts.contract.scan import cheap_measures
from data_contracts.contract.scan.aggregate_query import (
    aggregate_values,
    as_pandas_sees,
    grouped,
    out_of_memory,
    query_values,
    words_of,
)
from data_contracts.contract.scan.duck import Resources, asked
from data_contracts.contract.scan.passes import in_passes, passes_for

if TYPE_CHECKING:
    import duckdb

log = logging.getLogger("trainwright")

# What DuckDB calls the types that it sees as our reader does.
_NAMES = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR", pa.large_string(): "VARCHAR",
    pa.date32(): "DATE", pa.timestamp("us"): "TIMESTAMP", pa.timestamp("ns"): "TIMESTAMP_NS",
}  # fmt: skip
_COUNTS = "SELECT num_rows FROM parquet_file_metadata({})"
_OF_OUR_OWN = {"file_row_number", "filename"}  # columns that DuckDB can add


def of_files(
    measures: list[Measure], schema: pa.Schema, columns: list[str], resources: Resources, files: ParquetFiles
) -> MeasuredValues | None:
    """Each measure's value; None if DuckDB sees other values there than our reader would, or cannot read them.

    Distinct values are counted by a query each: in one query, a hash table would be filled beside all the rest. Where
    they may not fit into memory, each pass counts a part of them.

    Raises: OutOfMemory
    """
    import duckdb

    def work(connection: duckdb.DuckDBPyConnection) -> MeasuredValues | None:
        if not _alike(connection, files, {name: schema.field(name).type for name in columns}):
            return None
        return _FileScan(connection, schema, resources, files).values(measures)

    try:
        return asked(work, resources, paths=files.paths)
    except duckdb.OutOfMemoryException:
        raise out_of_memory(resources) from None
    except duckdb.Error as error:
        log.info("DuckDB could not read the Parquet files (%s): our own reader does", type(error).__name__)
        return None


@dataclass(frozen=True)
class _FileScan:
    """The measures over some files, by one connection."""

    connection: duckdb.DuckDBPyConnection
    schema: pa.Schema
    resources: Resources
    files: ParquetFiles

    def values(self, measures: list[Measure]) -> MeasuredValues:
        counts = self.connection.execute(_COUNTS.format(_listed(self.files))).fetchall()
        rows = sum(count for (count,) in counts)
        countable = [one for one in measures if cheap_measures.counts_distinct_integers(one, self.schema)]
        ends = [end for one in countable for end in cheap_measures.ends(one)]
        found: MeasuredValues = {}
        # Distinct values last: the least and the greatest value are known by then.
        for group in sorted(grouped(dict.fromkeys([*measures, *ends]), _apart), key=lambda group: group[0].distinct):
            if [one.sql for one in group] == [DISTINCT]:
                found.update(self._distinct(group[0], found, rows))
            elif any(one.apart for one in group):
                found.update(self._exact(group))
            else:
                found.update(self._cheaply(group))
        return {one: found[one] for one in measures}

    def _distinct(self, one: Measure, found: MeasuredValues, rows: int) -> MeasuredValues:
        if cheap_measures.counts_distinct_integers(one, self.schema):
            low, high = (found[end] for end in cheap_measures.ends(one))
            # A quarter of the memory for the bitmaps of all threads.
            most_bits = 2 * self.resources.memory_bytes // (self.resources.threads + 1)
            if (by_bitmap := cheap_measures.distinct_by_bitmap(one, low, high, rows, most_bits)) is not None:
                return {one: self._exact([by_bitmap])[by_bitmap]}
        passes = passes_for(rows, self.resources)
        return in_passes(one, passes, self._fitting) or {}

    def _fitting(self, measures: list[Measure]) -> MeasuredValues:
        import duckdb

        try:
            return self._exact(measures)
        except duckdb.OutOfMemoryException:
            raise out_of_memory(self.resources) from None

    def _exact(self, measures: list[Measure]) -> MeasuredValues:
        """The measures as they are written."""
        names = self._names(measures)
        numbered = any("{n}" in one.sql for one in measures)
        columns = [f"{self._seen(name)} AS {new}" for name, new in names.items()]
        return query_values(self.connection, measures, self._rows(columns, numbered), names)

    def _cheaply(self, measures: list[Measure]) -> MeasuredValues:
        """The measures by what shows them, and by themselves where it does not."""
        if measures[0].where is not None or any("{n}" in one.sql for one in measures):
            return self._exact(measures)
        found = cheap_measures.values_shown(
            measures, self._plainly(cheap_measures.asked_first(measures, self.schema)), self.schema
        )
        left = [one for one in measures if one not in found]
        return found | (self._exact(left) if left else {})

    def _plainly(self, measures: list[Measure]) -> MeasuredValues:
        """The measures; to those of one column, NaN is a value like others."""
        names, exact = self._names(measures), self._names([one for one in measures if one.more], "e")
        columns = [f"{self._plain(name)} AS {new}" for name, new in names.items()]
        columns += [f"{self._seen(name)} AS {new}" for name, new in exact.items()]
        aggregates: list[str] = []
        bound: list[Any] = []
        inside: list[Any] = []
        for at, one in enumerate(measures):
            if one.condition is None or one.more:
                aggregates.append(one.sql.format(**words_of(one, exact if one.more else names)))
                bound += one.values
            else:  # beside the columns, DuckDB decides it once for each entry of a dictionary
                columns.append(f"{one.condition.format(c=self._seen(str(one.column)))} AS p{at}")
                inside += one.values
                aggregates.append(f"count(CASE WHEN NOT p{at} THEN 1 END)")
        row = aggregate_values(self.connection, aggregates, f"({self._rows(columns)})", [*bound, *inside])
        return dict(zip(measures, row, strict=True))

    def _names(self, measures: list[Measure], letter: str = "c") -> dict[str, str]:
        used = dict.fromkeys(name for one in measures for name in one.columns)
        return {name: f"{letter}{number}" for number, name in enumerate(used)}

    def _plain(self, column: str) -> str:
        """A column's value, where NaN is one."""
        return self._value(column) if cheap_measures.is_floating(column, self.schema) else self._seen(column)

    def _seen(self, column: str) -> str:
        return as_pandas_sees(self._value(column), self.schema.field(column).type)

    def _value(self, column: str) -> str:
        """A column's value in a row: from the file, or the one that all rows of the file have."""
        if column not in self.files.constants:
            return _quoted(column)
        texts = ", ".join("NULL" if text is None else _text(text) for text in self.files.constants[column])
        return self._of_file(f"[{texts}]::{_NAMES[self.schema.field(column).type]}[]")

    def _of_file(self, values: str) -> str:
        """The element of a list that belongs to a row's file."""
        return f"({values})[list_position({_listed(self.files)}, filename)]"

    def _rows(self, columns: list[str], numbered: bool = False) -> str:
        """The query for these columns of the files; with each row's number as `n`."""
        more = ", filename = true" if self.files.constants else ""
        if numbered:
            columns = [*columns, f"{self._of_file(f'{list(self.files.first_rows)}::BIGINT[]')} + file_row_number AS n"]
            more = ", filename = true, file_row_number = true"
        listed = _listed(self.files)
        return f"SELECT {', '.join(columns) or '1'} FROM read_parquet({listed}, hive_partitioning = false{more})"


def _apart(one: Measure) -> object:
    """Measures for which this is equal are measured by one query."""
    return (one.where, *((one.rows, one.columns, one.distinct) if one.apart else ()))


def _alike(connection: duckdb.DuckDBPyConnection, files: ParquetFiles, kinds: dict[str, pa.DataType]) -> bool:
    """Whether DuckDB sees columns of these names and types in each of the files, as our reader does.

    Two names that differ only in case are one column to DuckDB.
    """
    listed = f"SELECT lower(name), name, duckdb_type FROM parquet_schema({_listed(files)}) WHERE type IS NOT NULL"
    columns: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for lower, name, kind in connection.execute(listed).fetchall():
        columns[lower].append((name, kind))
    lowers = dict(
        zip(kinds, connection.execute("SELECT lower(unnest(?::VARCHAR[]))", [[*kinds]]).fetchall(), strict=True)
    )
    return all(
        (name in files.constants and kind in _NAMES)
        or (
            columns[lowers[name][0]] == [(name, _NAMES.get(kind, ""))] * len(files.paths)
            and name.lower() not in _OF_OUR_OWN
        )
        for name, kind in kinds.items()
    )


def _listed(files: ParquetFiles) -> str:
    return f"[{', '.join(map(repr, files.paths))}]"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
