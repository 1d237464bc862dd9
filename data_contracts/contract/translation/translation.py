"""Translates expectations into questions for one scan, where the meaning is exactly Great Expectations'.

What is not translated runs on Great Expectations; `reason` and `translated` say why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from data_contracts.arrow_types import is_text
from data_contracts.contract.measures import Question
from data_contracts.contract.translation import order_statistics, questions
from data_contracts.contract.translation.conditions import Kinds, condition_sql, is_translatable
from data_contracts.contract.translation.distinct_values import distinct_values
from data_contracts.contract.translation.questions import EXACT, Kind, is_flag, is_number
from data_contracts.contract.translation.regular_expressions import is_for_re2, matching
from data_contracts.contract.translation.several_columns import IGNORED, compound, different, pair, sum_equal

# A larger set is looked up faster by the hash table of pandas than in a list, value by value.
_SET = 100


def kind_of(kind: pa.DataType) -> Kind | None:
    """How DuckDB sees a column of this type; None if it is left to Great Expectations."""
    if pa.types.is_integer(kind):
        return "whole" if kind != pa.uint64() else None
    if is_text(kind):
        return "text"
    known: dict[pa.DataType, Kind] = {pa.float64(): "real", pa.float32(): "short", pa.bool_(): "flag"}
    # With a time zone, Great Expectations cannot compute times after the year 9999.
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit in ("us", "ns") and kind.tz is None):
        return "time"
    return known.get(kind)


def reason(asked: dict[str, Any]) -> str:
    """Why an expectation runs on Great Expectations, whatever its column's type is; "" if it need not.

    Args:
        asked: one entry of the suite.
    """
    if "class_path" in asked:
        return "it is a class of your own"
    rule = _RULES.get(asked["type"])
    if rule is None:
        return "it has no exact translation"
    kwargs = _given(asked)
    if "row_condition" in kwargs and not (rule.kinds or rule.several):
        return "it has a row_condition"
    if "row_condition" in kwargs and not is_translatable(kwargs["row_condition"]):
        return "its row_condition has no exact translation"
    for name, value in kwargs.items():
        if name in ("row_condition", "condition_parser"):
            continue
        accepts = _ARGUMENTS.get(name) if name in rule.arguments else None
        if accepts is None or not accepts(value):
            return f"its argument {name} has no exact translation"
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if "min_value" not in rule.arguments:
        return ""
    if low is None and high is None:
        return "it has no bound"
    if low is not None and high is not None and low > high:
        return "its min_value is greater than its max_value"
    counts = all(type(bound) is int for bound in (low, high) if bound is not None)
    return "" if counts or not rule.counts else "its bounds are not whole numbers"


def every_translated(entries: Mapping[int, dict[str, Any]], schema: pa.Schema) -> dict[int, Question | str]:
    """`translated` of each; the columns, of which there may be thousands, are looked at once."""
    kinds = _kinds(schema)
    return {index: translated(entry, schema, kinds) for index, entry in entries.items()}


def _kinds(schema: pa.Schema) -> Kinds:
    return {field.name: kind_of(field.type) for field in schema}


def translated(asked: dict[str, Any], schema: pa.Schema, kinds: Kinds | None = None) -> Question | str:
    """What to measure for one expectation over data of this schema; or why it runs on Great Expectations.

    Args:
        kinds: of the schema, if they were found before.
    """
    if why := reason(asked):
        return why
    kinds = _kinds(schema) if kinds is None else kinds
    if "row_condition" not in asked["kwargs"] or asked["kwargs"]["row_condition"] is None:
        return _of_all_rows(asked, schema, kinds)
    where = condition_sql(asked["kwargs"]["row_condition"], kinds)
    if where is None:
        return "its row_condition has no exact translation"
    question = _of_all_rows(asked, schema, kinds)
    # An aggregate's value looks as the types of all rows are, those without a value among them.
    return question if isinstance(question, str) else replace(question.among(where), observed=None)


def _of_all_rows(asked: dict[str, Any], schema: pa.Schema, kinds: Kinds) -> Question | str:
    rule, kwargs = _RULES[asked["type"]], _given(asked)
    if rule.several:
        return _of_several(rule, kwargs, schema, kinds)
    column = kwargs.get("column")
    if column is None or not rule.kinds:
        return rule.build(kwargs, schema)
    if schema.get_field_index(column) < 0:
        return f"the data has no column {column}"
    type_ = schema.field(column).type
    kind = kind_of(type_)
    if kind not in rule.kinds:
        return f"its column is {type_}"
    question = rule.build(kwargs, kind)
    return question or f"its values have no exact translation for a column of {type_}"


def _of_several(rule: _Rule, kwargs: dict[str, Any], schema: pa.Schema, kinds: Kinds) -> Question | str:
    names = kwargs["column_list"] if "column_list" in kwargs else [kwargs["column_A"], kwargs["column_B"]]
    absent = [name for name in names if name not in kinds]
    if absent:
        return f"the data has no column {absent[0]}"
    seen = [kinds[name] for name in names]
    if len(set(names)) < max(len(names), 2) or None in seen or "time" in seen:
        return f"its columns are {', '.join(str(schema.field(name).type) for name in names)}"
    question = rule.build(kwargs, names, seen)
    return question or f"its columns are {', '.join(str(schema.field(name).type) for name in names)}"


def _given(asked: dict[str, Any]) -> dict[str, Any]:
    """Its arguments without those that say null, which is the default of these."""
    optional = ("min_value", "max_value", "row_condition", "condition_parser", "column_index")
    return {key: value for key, value in asked["kwargs"].items() if value is not None or key not in optional}


_ARGUMENTS: dict[str, Callable[[Any], bool]] = {
    "column": lambda value: questions.is_text(value) and bool(value),
    "mostly": lambda value: type(value) in (int, float) and 0 <= value <= 1,
    "min_value": is_number,
    "max_value": is_number,
    "strict_min": is_flag,
    "strict_max": is_flag,
    "type_": questions.is_text,
    "value": lambda value: type(value) is int and abs(value) <= EXACT,
    "value_set": lambda value: type(value) is list and 0 < len(value) <= _SET,
    "column_set": lambda value: type(value) is list and bool(value) and all(map(questions.is_text, value)),
    "column_list": lambda value: type(value) is list and bool(value) and all(map(questions.is_text, value)),
    "exact_match": is_flag,
    "column_A": lambda value: questions.is_text(value) and bool(value),
    "column_B": lambda value: questions.is_text(value) and bool(value),
    "or_equal": is_flag,
    "sum_total": is_number,
    "regex": is_for_re2,
    "regex_list": lambda value: type(value) is list and bool(value) and all(map(is_for_re2, value)),
    "match_on": lambda value: value in ("any", "all"),
    "type_list": lambda value: type(value) is list and all(map(questions.is_text, value)),
    "quantile_ranges": order_statistics.is_bounded,
    "allow_relative_error": order_statistics.is_interpolation,
    "ignore_row_if": lambda value: isinstance(value, str) and value in IGNORED,
}


class _Rule(NamedTuple):
    """How a type of expectation is translated: its arguments, the kinds of columns, what makes the question.

    Without kinds it is about the table, and gets the schema for the kind. With `counts`, its bounds are whole numbers.
    With `several`, it is about several columns, and gets their names and kinds.
    """

    arguments: Collection[str]
    kinds: Collection[Kind]
    build: Callable[..., Any]
    counts: bool = False
    several: bool = False


_TEXT: tuple[Kind, ...] = ("text",)
_ONE = ("column", "mostly")
_RANGE = ("column", "min_value", "max_value", "strict_min", "strict_max")
_NUMBERS: tuple[Kind, ...] = ("whole", "real", "short")
_DOUBLES: tuple[Kind, ...] = ("whole", "real")
_VALUES: tuple[Kind, ...] = (*_NUMBERS, "text", "flag")


def _rules() -> Iterator[tuple[str, _Rule]]:
    yield "column_values_to_not_be_null", _Rule(_ONE, (*_VALUES, "time"), questions.not_null)
    yield "column_values_to_be_null", _Rule(_ONE, (*_VALUES, "time"), questions.null)
    yield "column_values_to_be_between", _Rule((*_RANGE, "mostly"), _NUMBERS, questions.between)
    lengths = _Rule((*_RANGE, "mostly"), _TEXT, questions.lengths_between, counts=True)
    yield "column_value_lengths_to_be_between", lengths
    yield "column_value_lengths_to_equal", _Rule((*_ONE, "value"), _TEXT, questions.lengths_equal)
    yield "column_values_to_be_in_set", _Rule((*_ONE, "value_set"), _VALUES, questions.in_set)
    yield "column_values_to_not_be_in_set", _Rule((*_ONE, "value_set"), _VALUES, questions.not_in_set)
    yield "column_values_to_be_unique", _Rule(_ONE, _VALUES, questions.unique)
    yield "column_min_to_be_between", _Rule(_RANGE, _DOUBLES, questions.extreme("min"))
    yield "column_max_to_be_between", _Rule(_RANGE, _DOUBLES, questions.extreme("max"))
    yield "column_mean_to_be_between", _Rule(_RANGE, _DOUBLES, questions.mean)
    yield "column_median_to_be_between", _Rule(_RANGE, _DOUBLES, order_statistics.median)
    of_quantiles = ("column", "quantile_ranges", "allow_relative_error")
    yield "column_quantile_values_to_be_between", _Rule(of_quantiles, _DOUBLES, order_statistics.quantiles)
    yield "column_sum_to_be_between", _Rule(_RANGE, _DOUBLES, questions.sum_of)
    yield "column_stdev_to_be_between", _Rule(_RANGE, _DOUBLES, questions.deviation)
    yield "column_unique_value_count_to_be_between", _Rule(_RANGE, _VALUES, questions.distinct_count, counts=True)
    yield "column_proportion_of_unique_values_to_be_between", _Rule(_RANGE, _VALUES, questions.proportion)
    yield "column_values_to_be_of_type", _Rule(("column", "type_"), (), questions.typed)
    of_set = ("column", "value_set")
    yield "column_distinct_values_to_be_in_set", _Rule(of_set, _VALUES, distinct_values(only=True, every=False))
    yield "column_distinct_values_to_contain_set", _Rule(of_set, _VALUES, distinct_values(only=False, every=True))
    yield "column_distinct_values_to_equal_set", _Rule(of_set, _VALUES, distinct_values(only=True, every=True))
    expressions = ("regex", "regex_list", "match_on")
    for at, names in enumerate((("match_regex", "not_match_regex"), ("match_regex_list", "not_match_regex_list"))):
        of = (*_ONE, *((expressions[0],) if at == 0 else expressions[1:]))
        yield f"column_values_to_{names[0]}", _Rule(of, _TEXT, matching(wanted=True))
        yield f"column_values_to_{names[1]}", _Rule(of[:3], _TEXT, matching(wanted=False))
    yield "column_values_to_be_in_type_list", _Rule(("column", "type_list"), (), questions.typed)
    two, many = ("column_A", "column_B", "ignore_row_if", "mostly"), ("column_list", "ignore_row_if", "mostly")
    yield "column_pair_values_to_be_equal", _Rule(two, (), pair("="), several=True)
    yield "column_pair_values_a_to_be_greater_than_b", _Rule((*two, "or_equal"), (), pair(">"), several=True)
    yield "compound_columns_to_be_unique", _Rule(many, (), compound, several=True)
    yield "select_column_values_to_be_unique_within_record", _Rule(many, (), different, several=True)
    yield "multicolumn_sum_to_equal", _Rule((*many, "sum_total"), (), sum_equal, several=True)
    yield "column_to_exist", _Rule(("column",), (), questions.exists)
    yield "table_row_count_to_be_between", _Rule(_RANGE[1:], (), questions.row_count, counts=True)
    yield "table_row_count_to_equal", _Rule(("value",), (), questions.row_count)
    yield "table_column_count_to_be_between", _Rule(_RANGE[1:3], (), questions.column_count, counts=True)
    yield "table_column_count_to_equal", _Rule(("value",), (), questions.column_count)
    yield "table_columns_to_match_ordered_list", _Rule(("column_list",), (), questions.columns_listed)
    yield "table_columns_to_match_set", _Rule(("column_set", "exact_match"), (), questions.columns_in_set)


_RULES = {f"expect_{name}": rule for name, rule in _rules()}
