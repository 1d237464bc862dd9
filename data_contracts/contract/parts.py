"""A scan's findings in one file, kept so that it need not be read again: only those that add up exactly over files.

Minima, maxima and sums of a sensitive column are not kept, because they are, or reveal, its values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa

from data_contracts.canonical import digest
from data_contracts.contract.measures import ALL, Measure, Question

# The number of all rows, and the expectations that certainly hold.
Settled = tuple[int, set[int]]
# In the names of expectations that do not add up: distinct values, squares, and several columns in each row.
_OVER_ALL = re.compile("unique|distinct|stdev|column_pair_|multicolumn_")
Settle = Callable[[dict[int, Question], pa.Schema], Settled]


def name_of(measure: Measure) -> str:
    """A name for a measure that quotes none of its values."""
    values = [repr(value) for value in measure.values]
    return digest([measure.sql, measure.column, values, measure.rows])[:32]


def kept(measures: Iterable[Measure], sensitive: Collection[str]) -> list[Measure]:
    """Those of the measures that add up over files and may be kept."""
    found = [one for one in dict.fromkeys(measures) if _rule(one) is not None]
    return [one for one in found if one.column not in sensitive or _rule(one) is sum]


def reads_all_files(asked: dict[str, Any]) -> bool:
    """Whether an expectation, an entry of a suite, is measured over all files, whatever the types of its columns."""
    return bool(_OVER_ALL.search(asked["type"])) or asked["kwargs"].get("row_condition") is not None


def storable(value: Any) -> bool:
    """Whether JSON can hold a measure's value; an infinite extreme is measured again."""
    return value is None or (type(value) is int) or (type(value) is float and math.isfinite(value))


def added(measure: Measure, values: Sequence[Any]) -> Any:
    """A measure's value over all files, from that over each."""
    present = [value for value in values if value is not None]
    rule = _rule(measure)
    assert rule is not None
    return rule(present) if present else (0 if rule is sum else None)


def _rule(measure: Measure) -> Callable[[list[Any]], Any] | None:
    """How a measure's values add up; None if they do not. Measures not known here are measured over all files."""
    sql = measure.sql
    if measure.rows != ALL or measure.where is not None or measure.more or "{n}" in sql:
        return None
    if sql in ("count(*)", "count({c})") or measure.condition is not None:
        return sum
    if sql == "min({c})":
        return min
    if sql in ("max({c})", "max(abs({c}::DOUBLE))"):
        return max
    if sql == "sum({c}::HUGEINT)":
        return _total
    return math.fsum if sql in ("kahan_sum({c})", "sum(abs({c}::DOUBLE))") else None


def _total(values: list[Any]) -> int:
    return sum(values)
