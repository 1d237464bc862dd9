"""Measures what is cheap in Parquet files first: it often decides what would cost more to measure.

The least and greatest value of a column show that no value is out of bounds, and whether there is a NaN, which DuckDB
sorts last. Integers that lie close together are marked in a bitmap, where a hash table would hold each of them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from data_contracts.contract.measures import ALL, DISTINCT, Measure, MeasuredValues

_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
# The most bits of a bitmap: of a table with few rows, and of other tables for each row.
_FEW_BITS = 1 << 20
_ROW_BITS = 64
# DuckDB refuses larger bitmaps, and then our own reader would have to read the files.
_MOST_BITS = 10**9


def ends(one: Measure) -> tuple[Measure, Measure]:
    """The least and the greatest of the values that a measure is about."""
    least = one._replace(sql="min({c})", values=(), bounds=())
    return least, least._replace(sql="max({c})")


def asked_first(measures: Collection[Measure], schema: pa.Schema) -> list[Measure]:
    """The measures to ask for first in place of these."""
    first: list[Measure] = []
    for one in measures:
        first += ends(one) if one.bounds else [one]
        if one.rows == ALL and not one.more and is_floating(one.column, schema):
            first.append(ends(one)[1])
    return list(dict.fromkeys(first))


def is_floating(column: str | None, schema: pa.Schema) -> bool:
    """Whether there is such a column, which may hold NaN."""
    return column is not None and pa.types.is_floating(schema.field(column).type)


def values_shown(measures: Collection[Measure], found: MeasuredValues, schema: pa.Schema) -> MeasuredValues:
    """The measures whose values follow from those of `asked_first`, in which NaN counts as a value like others."""
    values: MeasuredValues = {}
    for one in measures:
        least, greatest = ends(one)
        if one.rows == ALL and not one.more and is_floating(one.column, schema):
            greatest_value = found[greatest]
            if greatest_value is not None and math.isnan(greatest_value):
                continue
        if not one.bounds:
            values[one] = found[one]
        elif all(_kept(found[end], one.bounds) for end in (least, greatest)):
            values[one] = 0
    return values


def _kept(value: Any, bounds: tuple[tuple[str, float], ...]) -> bool:
    """Whether a value, seen as float64, keeps the bounds; also if there is none."""
    return value is None or all(_SIGNS[sign](float(value), bound) for sign, bound in bounds)


def distinct_by_bitmap(one: Measure, low: Any, high: Any, rows: int, most_bits: int) -> Measure | None:
    """The count of distinct integers by a bitmap from the least to the greatest; None if that would be too large."""
    if type(low) is not int or type(high) is not int:
        return None
    if high - low >= min(max(rows * _ROW_BITS, _FEW_BITS), most_bits, _MOST_BITS):
        return None
    span = f"({low})::HUGEINT::BIGINT, ({high})::HUGEINT::BIGINT"
    return one._replace(sql=f"bit_count(bitstring_agg({{c}}::BIGINT, {span}))")


def counts_distinct_integers(one: Measure, schema: pa.Schema) -> bool:
    """Whether a measure counts distinct integers."""
    return one.sql == DISTINCT and one.column is not None and pa.types.is_integer(schema.field(one.column).type)
