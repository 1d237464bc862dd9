"""Numbers that float64 does not hold: decimals, and uint64. Great Expectations gets them as Python's decimals.

A number of a suite means what is written there: for a decimal column, 0.1 is a tenth, not the float64 beside it. All is
computed without rounding; only a mean or a standard deviation has no end, and is cut off where no bound can lie.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from decimal import Context, Decimal, InvalidOperation, localcontext
from typing import Any

import pyarrow as pa

# Digits enough for sums of squares of the longest decimals; what is not a number compares as false.
CONTEXT = Context(prec=240, Emin=-999_999, Emax=999_999, traps=[])
MISSING = Decimal("NaN")
# Decimals of so many digits differ as float64, and are equal to the same numbers of a suite.
FLOAT_DIGITS = 15
# Arguments that are compared with values.
_COMPARED = ("min_value", "max_value", "value_set", "value_pairs_set", "sum_total")
# They compare other numbers with their arguments, such as counts.
_OF_COUNTS = ("unique_value_count", "proportion_of", "value_lengths")
# They compute what has no exact value, or compare with a tolerance.
_OF_FLOATS = ("z_scores", "outliers", "quantile", "divergence", "_p_value_", "cramers_phi")


def is_exact(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers that float64 does not."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_decimal(kind) or kind == pa.uint64()


def is_for_floats(expectation: str) -> bool:
    """Whether an expectation is measured in float64, whatever the numbers are."""
    return any(part in expectation for part in _OF_FLOATS)


def exact_columns(columns: Collection[str], schema: pa.Schema) -> set[str]:
    """Those of the columns that are shown as decimals: of exact numbers, and of all numbers that stand beside these."""
    kinds = {name: schema.field(name).type for name in columns}
    exact = {name for name, kind in kinds.items() if is_exact(kind)}
    if not exact:
        return exact
    return exact | {name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)}


def exact_arguments(expectation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are compared with exact numbers, as they are written."""
    if is_for_floats(expectation) or any(part in expectation for part in _OF_COUNTS):
        return {}
    return {
        name: as_written(kwargs[name], texts=name != "value_pairs_set")  # a text may be of the other column
        for name in _COMPARED
        if kwargs.get(name) is not None
    }


def as_written(value: Any, texts: bool = True) -> Any:
    """A number as the decimal that its text is, at any depth of lists; also a text that is one. Else the value."""
    if isinstance(value, list | tuple):
        return [as_written(part, texts) for part in value]
    if isinstance(value, bool) or not isinstance(value, (int, float, str) if texts else (int, float)):
        return value
    try:
        return Decimal(value if isinstance(value, int) else str(value))
    except InvalidOperation:
        return value


def decimals_of(column: pa.ChunkedArray) -> list[Decimal]:
    """The numbers of a column as decimals, or MISSING."""
    return [MISSING if value is None or value != value else Decimal(str(value)) for value in column.to_pylist()]


def with_exact_literals(tree: dict[str, Any], exact: Collection[str]) -> dict[str, Any]:
    """A row condition's tree in which what is compared with these columns is as it is written."""
    if "conditions" in tree:
        return {**tree, "conditions": [with_exact_literals(part, exact) for part in tree["conditions"]]}
    if "parameter" not in tree or tree["column"]["name"] not in exact:
        return tree
    return {**tree, "parameter": as_written(tree["parameter"])}


def _mean(values: Sequence[Decimal]) -> Decimal | None:
    return sum(values) / Decimal(len(values)) if values else None


def _median(values: Sequence[Decimal]) -> Decimal | None:
    ordered, middle = sorted(values), len(values) // 2
    return _mean(ordered[middle - 1 + len(values) % 2 : middle + 1])


def _deviation(values: Sequence[Decimal]) -> Decimal | None:
    count = Decimal(len(values))
    if count < 2:
        return None
    squares = count * sum(value * value for value in values) - sum(values) ** 2
    return (squares / (count * (count - 1))).sqrt()


# Great Expectations computes these in float64, and of other rows where some values are missing.
AGGREGATES: dict[str, Callable[[Sequence[Decimal]], Decimal | int | None]] = {
    "column.mean": _mean,
    "column.median": _median,
    "column.standard_deviation": _deviation,
    "column.sum": sum,
}


def aggregate(metric: str, values: Sequence[Decimal]) -> Decimal | int | None:
    """The exact value of one of AGGREGATES over values that are all there."""
    with localcontext(CONTEXT):
        return AGGREGATES[metric](values)
