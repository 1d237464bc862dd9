"""Measures aggregates over all rows with DuckDB, which uses every core and spills to disk.

Parquet files are decoded by DuckDB itself, if what it sees in them is what our reader sees; anything else comes as
Arrow batches, in one pass. What is written in a suite is bound as a parameter.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from data_contracts.contract.batch_stream import BatchStream, handed_type
from data_contracts.contract.duck import Resources, asked
from data_contracts.contract.measures import ALL, DISTINCT, Measure
from data_contracts.contract.passes import PASSES, in_passes, passes_for
from data_contracts.contract.rows import Data, ParquetFiles
from data_contracts.errors import OutOfMemory

if TYPE_CHECKING:
    import duckdb

Found = dict[Measure, Any]

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
        found = None if files is None else _of_files(wanted, data, columns, resources, files)
    if found is not None:
        return found
    found = {}
    for group in _grouped(wanted, lambda one: (one.where, one.rows, one.columns if one.rows != ALL else None)):
        row = _in_turn(group, data, columns, resources)
        if row is None:
            return None
        found.update(row)
    return found


def _in_turn(group: list[Measure], data: Data, columns: list[str], resources: Resources) -> Found | None:
    """All measures in one pass; if memory is too small for that, distinct values in several passes of their own."""

    def measured(some: list[Measure]) -> Found | None:
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


def _of_batches(measures: list[Measure], data: Data, columns: list[str], resources: Resources) -> Found | None:
    """All measures in one pass over the batches."""
    import duckdb

    names = {name: f"c{number}" for number, name in enumerate(columns)}
    fields = [pa.field(names[name], handed_type(data.schema.field(name).type)) for name in columns]
    numbered = any("{n}" in one.sql for one in measures)
    stream = BatchStream(data.read(columns), pa.schema([*fields, *([pa.field("n", pa.int64())] if numbered else [])]))
    inner = ", ".join([*(f"{_seen(one.name, one.type)} AS {one.name}" for one in fields), *(["n"] if numbered else [])])

    def work(connection: duckdb.DuckDBPyConnection) -> Found:
        connection.register("source", stream.reader)
        return _row(connection, measures, f"SELECT {inner} FROM source", names)

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
            raise _no_room(resources) from None
        log.info("one scan could not measure the data (%s): Great Expectations does", type(error).__name__)
        return None
    return found if stream.ended else None


def _of_files(
    measures: list[Measure], data: Data, columns: list[str], resources: Resources, files: ParquetFiles
) -> Found | None:
    """All measures by DuckDB's own reader of Parquet; None if it sees other values there than ours would.

    Distinct values are counted by a query each: in one query, a hash table would be filled beside all the rest. Where
    they may not fit into memory, each pass counts a part of them.
    """
    import duckdb

    def work(connection: duckdb.DuckDBPyConnection) -> Found | None:
        if not _alike(connection, files, {name: data.schema.field(name).type for name in columns}):
            return None
        found: Found = {}
        passes = passes_for(
            sum(count for (count,) in connection.execute(_COUNTS.format(_listed(files))).fetchall()), resources
        )
        for group in _grouped(measures, _apart):
            used = {name for one in group for name in one.columns}
            needed = [name for name in columns if name in used]
            names = {name: f"c{number}" for number, name in enumerate(needed)}
            rows = _from_files(files, data.schema, names, numbered=any("{n}" in one.sql for one in group))
            measured = partial(_fitting_row, resources, connection, rows=rows, names=names)
            alone = [one.sql for one in group] == [DISTINCT]
            found.update((in_passes(group[0], passes, measured) if alone else measured(group)) or {})
        return found

    try:
        return asked(work, resources, paths=files.paths)
    except duckdb.Error as error:
        log.info("DuckDB could not read the Parquet files (%s): our own reader does", type(error).__name__)
        return None


def _no_room(resources: Resources) -> OutOfMemory:
    """Great Expectations would need more memory still."""
    size = f"{resources.memory_bytes / 2**20:,.0f} MiB"
    return OutOfMemory(
        f"The contract cannot be checked in the {size} of memory that its scan may use.",
        remedy="Give the process more memory, or leave out the expectation that compares all values of a column.",
    )


def _grouped(measures: list[Measure], by: Callable[[Measure], object]) -> Iterable[list[Measure]]:
    groups: dict[object, list[Measure]] = defaultdict(list)
    for one in measures:
        groups[by(one)].append(one)
    return groups.values()


def _row(connection: duckdb.DuckDBPyConnection, measures: list[Measure], rows: str, names: dict[str, str]) -> Found:
    """What the measures, which are over the same rows, have as values."""
    where = measures[0].where
    if where is not None:
        rows = f"SELECT * FROM ({rows}) WHERE {where.sql.format(**_words('w', where.columns, names))}"
    asked = [(one, {"n": "n", "rows": f"({rows})", **_words_of(one, names)}) for one in measures]
    aggregates = ", ".join(one.sql.format(**words) for one, words in asked)
    bound = [value for one in measures for value in one.values] + list(() if where is None else where.values)
    values = [list(value) if isinstance(value, tuple) else value for value in bound]
    row = connection.execute(f"SELECT {aggregates} FROM {asked[0][0].rows.format(**asked[0][1])}", values).fetchone()
    assert row is not None
    return dict(zip(measures, row, strict=True))


def _fitting_row(
    resources: Resources,
    connection: duckdb.DuckDBPyConnection,
    measures: list[Measure],
    rows: str,
    names: dict[str, str],
) -> Found:
    import duckdb

    try:
        return _row(connection, measures, rows, names)
    except duckdb.OutOfMemoryException:
        raise _no_room(resources) from None


def _apart(one: Measure) -> object:
    """Measures for which this is equal are measured by one query of Parquet files."""
    return (one.where, *((one.rows, one.columns, one.distinct) if one.apart else ()))


def _words_of(one: Measure, names: dict[str, str]) -> dict[str, str]:
    """What stands for the columns of a measure."""
    return {"c": names.get(one.column or "", ""), **_words("c", (one.column or "", *one.more), names)}


def _words(letter: str, columns: Sequence[str], names: dict[str, str]) -> dict[str, str]:
    return {f"{letter}{at}": names.get(name, "") for at, name in enumerate(columns)}


def _from_files(files: ParquetFiles, schema: pa.Schema, names: dict[str, str], numbered: bool) -> str:
    """The query for these columns of Parquet files, under other names; with each row's number as `n`."""
    seen = [f"{_seen(_quoted(name), schema.field(name).type)} AS {new}" for name, new in names.items()]
    more = ""
    if numbered:
        first = f"{list(files.first_rows)}::BIGINT[]"
        seen.append(f"({first})[list_position({_listed(files)}, filename)] + file_row_number AS n")
        more = ", filename = true, file_row_number = true"
    return f"SELECT {', '.join(seen) or '1'} FROM read_parquet({_listed(files)}, hive_partitioning = false{more})"


def _alike(connection: duckdb.DuckDBPyConnection, files: ParquetFiles, kinds: dict[str, pa.DataType]) -> bool:
    """Whether DuckDB sees columns of these names and types in each of the files, as our reader does.

    Two names that differ only in case are one column to DuckDB.
    """
    listed = f"SELECT lower(name), name, duckdb_type FROM parquet_schema({_listed(files)}) WHERE type IS NOT NULL"
    seen: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for lower, name, kind in connection.execute(listed).fetchall():
        seen[lower].append((name, kind))
    lowers = dict(
        zip(kinds, connection.execute("SELECT lower(unnest(?::VARCHAR[]))", [[*kinds]]).fetchall(), strict=True)
    )
    return all(
        seen[lowers[name][0]] == [(name, _NAMES.get(kind, ""))] * len(files.paths) and name.lower() not in _OF_OUR_OWN
        for name, kind in kinds.items()
    )


def _listed(files: ParquetFiles) -> str:
    return f"[{', '.join(map(repr, files.paths))}]"


def _seen(value: str, kind: pa.DataType) -> str:
    """A column's value, or NULL where pandas sees none."""
    if pa.types.is_floating(kind):
        return f"CASE WHEN isnan({value}) THEN NULL ELSE {value} END"
    if pa.types.is_timestamp(kind):
        return f"CASE WHEN epoch_{kind.unit}({value}) = -9223372036854775808 THEN NULL ELSE {value} END"
    return value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
