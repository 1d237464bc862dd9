"""Measures aggregates over all rows with DuckDB, which uses every core and spills to disk.

DuckDB itself decodes Parquet files, if it sees the same in them as our reader (`scan_files`); all other data comes as
Arrow batches, in one pass. Over Parquet files, what is cheap is measured first, because it often decides what would
cost more: the least and greatest value of a column show that no value is out of bounds, and whether there is a NaN,
which DuckDB sorts last. Integers that lie close together are marked in a bitmap, where a hash table would hold each of
them. Distinct values that do not fit into memory are counted in several passes, each over the values with some hashes.

DuckDB runs in a thread of its own and may use only its inputs: Arrow batches, open Parquet files, and a private folder
to spill to; no other file, no extension, no Python variable. Values of a suite are bound as parameters. DuckDB's own
texts are never shown, because they may quote a value.
"""

from __future__ import annotations

import logging
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.arrow_rows import Data, ParquetFiles, is_text
from data_contracts.contract.file_statistics import AnswerFromFindings
from data_contracts.contract.questions import ALL, DISTINCT, Measure, MeasuredValues
from data_contracts.contract.translation import kind_of
from data_contracts.errors import OutOfMemory

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
_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
# The most bits of a bitmap: of a table with few rows, and of other tables for each row.
_FEW_BITS = 1 << 20
_ROW_BITS = 64
# DuckDB refuses larger bitmaps, and then our own reader would have to read the files.
_MOST_BITS = 10**9
# Memory that a distinct value may take: one pass over 3,000,000 texts of 12 characters failed in 24 MiB, four did not.
_VALUE_BYTES = 64
_MOST = 256  # passes
# Where the number of rows is not known; whether passes are needed shows only when memory runs out.
PASSES = 16
T = TypeVar("T")
_LOOK_S = 1.0


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
        found = None if files is None else scan_files(wanted, data.schema, columns, resources, files)
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
        found = run_in_duckdb(work, resources, stop=stop)
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


def scan_files(
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
        return run_in_duckdb(work, resources, paths=files.paths)
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
        countable = [one for one in measures if counts_distinct_integers(one, self.schema)]
        ends = [end for one in countable for end in least_and_greatest(one)]
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

    def _distinct(self, measure: Measure, values: MeasuredValues, rows: int) -> MeasuredValues:
        if counts_distinct_integers(measure, self.schema):
            low, high = (values[end] for end in least_and_greatest(measure))
            # A quarter of the memory for the bitmaps of all threads.
            most_bits = 2 * self.resources.memory_bytes // (self.resources.threads + 1)
            if (by_bitmap := distinct_by_bitmap(measure, low, high, rows, most_bits)) is not None:
                return {measure: self._exact([by_bitmap])[by_bitmap]}
        passes = passes_for(rows, self.resources)
        return in_passes(measure, passes, self._fitting) or {}

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
        found = values_shown(measures, self._plainly(asked_first(measures, self.schema)), self.schema)
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
        return self._value(column) if is_floating(column, self.schema) else self._seen(column)

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


def _apart(measure: Measure) -> object:
    """Measures for which this is equal are measured by one query."""
    return (measure.where, *((measure.rows, measure.columns, measure.distinct) if measure.apart else ()))


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


def least_and_greatest(measure: Measure) -> tuple[Measure, Measure]:
    """The least and the greatest of the values that a measure is about."""
    least = measure._replace(sql="min({c})", values=(), bounds=())
    return least, least._replace(sql="max({c})")


def asked_first(measures: Collection[Measure], schema: pa.Schema) -> list[Measure]:
    """The measures to ask for first in place of these."""
    first: list[Measure] = []
    for one in measures:
        first += least_and_greatest(one) if one.bounds else [one]
        if one.rows == ALL and not one.more and is_floating(one.column, schema):
            first.append(least_and_greatest(one)[1])
    return list(dict.fromkeys(first))


def is_floating(column: str | None, schema: pa.Schema) -> bool:
    """Whether there is such a column, which may hold NaN."""
    return column is not None and pa.types.is_floating(schema.field(column).type)


def values_shown(measures: Collection[Measure], measured: MeasuredValues, schema: pa.Schema) -> MeasuredValues:
    """The measures whose values follow from those of `asked_first`, in which NaN counts as a value like others."""
    values: MeasuredValues = {}
    for measure in measures:
        least, greatest = least_and_greatest(measure)
        if measure.rows == ALL and not measure.more and is_floating(measure.column, schema):
            greatest_value = measured[greatest]
            if greatest_value is not None and math.isnan(greatest_value):
                continue
        if not measure.bounds:
            values[measure] = measured[measure]
        elif all(_kept(measured[end], measure.bounds) for end in (least, greatest)):
            values[measure] = 0
    return values


def _kept(value: Any, bounds: tuple[tuple[str, float], ...]) -> bool:
    """Whether a value, seen as float64, keeps the bounds; also if there is none."""
    return value is None or all(_SIGNS[sign](float(value), bound) for sign, bound in bounds)


def distinct_by_bitmap(measure: Measure, low: Any, high: Any, rows: int, most_bits: int) -> Measure | None:
    """The count of distinct integers by a bitmap from the least to the greatest; None if that would be too large."""
    if type(low) is not int or type(high) is not int:
        return None
    if high - low >= min(max(rows * _ROW_BITS, _FEW_BITS), most_bits, _MOST_BITS):
        return None
    span = f"({low})::HUGEINT::BIGINT, ({high})::HUGEINT::BIGINT"
    return measure._replace(sql=f"bit_count(bitstring_agg({{c}}::BIGINT, {span}))")


def counts_distinct_integers(measure: Measure, schema: pa.Schema) -> bool:
    """Whether a measure counts distinct integers."""
    return (
        measure.sql == DISTINCT
        and measure.column is not None
        and pa.types.is_integer(schema.field(measure.column).type)
    )


def passes_for(rows: int, resources: Resources) -> int:
    """In how many passes the distinct values of a column fit into memory, if all rows are different."""
    return min(max(rows * _VALUE_BYTES // resources.memory_bytes, 1), _MOST)


def in_passes(
    distinct: Measure, passes: int, measured: Callable[[list[Measure]], MeasuredValues | None]
) -> MeasuredValues | None:
    """A count of distinct values in so many passes, or in more if memory runs out.

    Args:
        measured: measures, or raises OutOfMemory; None if it cannot.
    """
    counted = 0
    try:
        for part in _divided(distinct, passes):
            if (found := measured([part])) is None:
                return None
            counted += found[part]
    except OutOfMemory:
        if passes >= _MOST:
            raise
        return in_passes(distinct, 4 * passes, measured)
    return {distinct: counted}


def _divided(distinct: Measure, passes: int) -> list[Measure]:
    if passes == 1:
        return [distinct]
    return [
        distinct._replace(rows=f"(SELECT {{c}} FROM {{rows}} WHERE hash({{c}}) % {passes} = {at})")
        for at in range(passes)
    ]


def grouped(measures: Iterable[Measure], by: Callable[[Measure], object]) -> Iterable[list[Measure]]:
    """The measures for which `by` is equal, in their order."""
    groups: dict[object, list[Measure]] = defaultdict(list)
    for one in measures:
        groups[by(one)].append(one)
    return groups.values()


def query_values(
    connection: duckdb.DuckDBPyConnection, measures: list[Measure], rows: str, names: dict[str, str]
) -> MeasuredValues:
    """The values of measures that are over the same rows.

    Args:
        rows: a query for all rows.
        names: what their columns are called there.
    """
    where = measures[0].where
    if where is not None:
        rows = f"SELECT * FROM ({rows}) WHERE {where.sql.format(**_words('w', where.columns, names))}"
    asked = [(one, {"n": "n", "rows": f"({rows})", **words_of(one, names)}) for one in measures]
    aggregates = [one.sql.format(**words) for one, words in asked]
    bound = [value for one in measures for value in one.values] + list(() if where is None else where.values)
    row = aggregate_values(connection, aggregates, asked[0][0].rows.format(**asked[0][1]), bound)
    return dict(zip(measures, row, strict=True))


def aggregate_values(
    connection: duckdb.DuckDBPyConnection, aggregates: Sequence[str], rows: str, bound: Iterable[Any]
) -> tuple[Any, ...]:
    """The aggregates' values; each `?` is one of the bound values, a tuple stands for a list."""
    values = [list(value) if isinstance(value, tuple) else value for value in bound]
    row = connection.execute(f"SELECT {', '.join(aggregates)} FROM {rows}", values).fetchone()
    assert row is not None
    return tuple(row)


def words_of(measure: Measure, names: dict[str, str]) -> dict[str, str]:
    """What stands for the columns of a measure."""
    return {"c": names.get(measure.column or "", ""), **_words("c", (measure.column or "", *measure.more), names)}


def _words(letter: str, columns: Sequence[str], names: dict[str, str]) -> dict[str, str]:
    return {f"{letter}{at}": names.get(name, "") for at, name in enumerate(columns)}


def as_pandas_sees(value: str, kind: pa.DataType) -> str:
    """A column's value, or NULL where pandas sees none."""
    if pa.types.is_floating(kind):
        return f"CASE WHEN isnan({value}) THEN NULL ELSE {value} END"
    if pa.types.is_timestamp(kind):
        return f"CASE WHEN epoch_{kind.unit}({value}) = -9223372036854775808 THEN NULL ELSE {value} END"
    return value


def out_of_memory(resources: Resources) -> OutOfMemory:
    """Great Expectations would need more memory still."""
    size = f"{resources.memory_bytes / 2**20:,.0f} MiB"
    return OutOfMemory(
        f"The contract cannot be checked in the {size} of memory that its scan may use.",
        remedy="Give the process more memory, or leave out the expectation that compares all values of a column.",
    )


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Resources:
    """What a scan may use.

    Attributes:
        folder: an existing private folder for what does not fit into memory.
        memory_bytes: the memory that DuckDB may use before it spills.
        threads: its threads.
        moved: called about once a second while a query makes progress.
        answer: says which expectations hold by the kept findings of earlier checks of the same files.
    """

    folder: Path
    memory_bytes: int
    threads: int
    moved: Callable[[], None] = _nothing
    answer: AnswerFromFindings | None = None


def run_in_duckdb(
    work: Callable[[duckdb.DuckDBPyConnection], T],
    resources: Resources,
    *,
    paths: Sequence[str] = (),
    stop: Callable[[], None] = _nothing,
) -> T:
    """What `work` returns, given a connection to an empty database in memory; raises what it raises.

    It runs in a thread, because a signal's handler waits for the main thread to run Python. After a signal, the thread
    ends by itself; only it may close its connection, which is busy until then.

    Args:
        paths: the only files that the connection may open.
        stop: called if nobody waits for the answer any more.
    """
    connections: list[duckdb.DuckDBPyConnection] = []

    def query() -> T:
        with connected(resources, paths) as connection:
            connections.append(connection)
            return work(connection)

    thread = ThreadPoolExecutor(1, "scan")
    answer = thread.submit(query)
    try:
        return _waited(answer, connections, resources.moved)
    except BaseException:
        stop()
        if not answer.done():
            for connection in connections:
                connection.interrupt()
        raise
    finally:
        thread.shutdown(wait=False)


def _waited(answer: Future[T], connections: Sequence[duckdb.DuckDBPyConnection], moved: Callable[[], None]) -> T:
    before = -1.0
    while True:
        try:
            return answer.result(timeout=_LOOK_S)
        except NotYet:
            if answer.done():  # then the work itself raised it
                raise
            share = _share(connections)
            if share != before:
                moved()
            before = share


def _share(connections: Sequence[duckdb.DuckDBPyConnection]) -> float:
    """How far its query is, in percent; -1 if it has none."""
    import duckdb

    try:
        return connections[0].query_progress() if connections else -1.0
    except duckdb.Error:  # it was closed just now
        return -1.0


def connected(resources: Resources, paths: Sequence[str] = ()) -> duckdb.DuckDBPyConnection:
    """A connection to an empty database in memory, which reaches no file but these, and whose settings are locked."""
    import duckdb

    connection = duckdb.connect(":memory:", config=_config(resources))
    if paths:
        listed = ", ".join(f"'{path}'" for path in paths)
        assert listed.count("'") == 2 * len(paths)
        connection.execute(f"SET allowed_paths = [{listed}]")
    # A minimum or a number of nulls in a footer is what the writer claimed, not what the pages hold. A filter that is
    # pushed down would use them, or be Arrow's; and rows that no condition can keep would not be read, nor counted.
    connection.execute("SET disabled_optimizers = 'statistics_propagation,filter_pushdown'")
    connection.execute("SET enable_progress_bar = true")  # it is computed, not printed
    connection.execute("SET enable_progress_bar_print = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _config(resources: Resources) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "allow_community_extensions": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "memory_limit": f"{resources.memory_bytes}B",
        "preserve_insertion_order": "false",
        "python_enable_replacements": "false",
        "temp_directory": str(resources.folder),
        "threads": str(resources.threads),
    }
