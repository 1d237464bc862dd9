"""The user's own expectations: what a class that a suite names by `class_path` reads, and how to make an object of it.

The classes are imported by the child process that runs them, never here.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from data_contracts.contract.exact_numbers import FLOAT_DIGITS
from data_contracts.contract.expectation_scope import Scope, exact_in_condition, without_condition
from data_contracts.contract.frames import Layout
from data_contracts.errors import SpecError
from data_contracts.quoting import text_of

# The user's own classes by their path, as a suite names them.
Classes = Mapping[str, type]


def base_class() -> type:
    """Great Expectations' base class of all expectations."""
    from great_expectations.expectations.expectation import Expectation

    return Expectation


@contextlib.contextmanager
def catalogue_kept() -> Iterator[None]:
    """Keep the catalogue's expectations as they are while a user's classes are defined, which may have their names."""
    from great_expectations.expectations import registry

    before = dict(registry._registered_expectations)
    try:
        yield
    finally:
        registry._registered_expectations.update(before)


def why_unusable(kind: type) -> str:
    """Why Great Expectations cannot run a class that is derived from its Expectation; "" if it can."""
    from great_expectations.expectations import registry

    if kind.is_abstract():  # type: ignore[attr-defined]
        return "is abstract: Great Expectations lacks a part of it, such as its map_metric"
    # While it runs one, it looks the class up by its name alone.
    if registry._registered_expectations.get(kind.expectation_type) is not kind:  # type: ignore[attr-defined]
        return "has the name of another expectation; give it a name of its own"
    return ""


def own_expectation(index: int, asked: dict[str, Any], kind: type) -> Any:
    """An object of a user's own class; SpecError if it refuses its arguments.

    Args:
        index: of the expectation in the suite.
        asked: its entry.
    """
    try:
        return kind(**copy.deepcopy(without_condition(asked)[1]))
    except (ValueError, TypeError) as error:
        reasons = error.errors() if hasattr(error, "errors") else []
        field, reason = (".".join(map(str, reasons[0]["loc"])), reasons[0]["msg"]) if reasons else ("", text_of(error))
        where = f"contract.suite: expectations.{index}.kwargs{'.' + field if field and field != '__root__' else ''}"
        raise SpecError(
            f"{where}: {asked['class_path']} refuses the value: {reason}.", remedy="Correct the arguments of the class."
        ) from error


def own_scope(index: int, expectation: Any, asked: dict[str, Any], schema: pa.Schema) -> Scope:
    """What an expectation of a user's own reads: its columns in full; all columns if it may read others.

    The columns may be set by the class itself, which Great Expectations recommends. SpecError if it would take two of
    them for one.
    """
    from great_expectations.expectations.expectation import (
        ColumnAggregateExpectation,
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )

    of_columns = (
        ColumnAggregateExpectation,
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )
    named = [getattr(expectation, key, None) for key in ("column", "column_A", "column_B")]
    listed = getattr(expectation, "column_list", None) or []
    columns = [one for one in [*named, *listed] if isinstance(one, str)]
    condition, kwargs = without_condition(asked)
    read = columns if condition is None else [*columns, *condition.columns]
    absent = [one for one in read if schema.get_field_index(one) < 0]
    # The class itself may state a condition, which is code, as the class is.
    whole = not isinstance(expectation, of_columns) or getattr(expectation, "row_condition", None) is not None
    reads = tuple(one for one in schema.names if whole or one in read)
    given = {one: one for one in reads if whole or one in columns}
    _refuse_twins(f"contract.suite: expectations.{index}: {asked['class_path']}", given)
    exact, condition = exact_in_condition((), condition, reads, schema)
    decimals = {one for one in reads if pa.types.is_decimal(schema.field(one).type)}
    floats = sorted(one for one in decimals.intersection(given) if schema.field(one).type.precision <= FLOAT_DIGITS)
    shown = tuple(sorted({*exact, *decimals}))
    layout = Layout(reads, "nan", None, condition, shown, tuple(floats), tuple(given.items()), nanoseconds=True)
    return Scope(columns, absent, False, False, layout, kwargs)


def _refuse_twins(where: str, names: Iterable[str]) -> None:
    """SpecError if Great Expectations would find another column by the name of one of these."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(name.casefold().strip("`"), name)) != name:
            raise SpecError(
                f"{where} gets the columns {other} and {name}, which Great Expectations takes for one.",
                remedy="Rename one of them, or write the expectation for its own columns alone.",
            )
