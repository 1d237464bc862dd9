"""Writes one query of DuckDB's for measures over the same rows, and reads its answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from data_contracts.contract.measures import Measure, MeasuredValues
from data_contracts.contract.scan.duck import Resources
from data_contracts.errors import OutOfMemory

if TYPE_CHECKING:
    import duckdb


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


def words_of(one: Measure, names: dict[str, str]) -> dict[str, str]:
    """What stands for the columns of a measure."""
    return {"c": names.get(one.column or "", ""), **_words("c", (one.column or "", *one.more), names)}


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
