"""Translates expectations into questions for one scan, where the meaning is exactly Great Expectations'.

What is not translated runs on Great Expectations; `reason` and `translated`, at the end of this file, say why.

A `row_condition` becomes SQL where that keeps exactly the rows that pandas keeps: comparisons of one column with a
literal, `in`, null checks, and these joined by `and` and `or`. Without `not`, it does not matter whether a comparison
with a missing value is false or unknown: the row is left out. What depends on the type that pandas gives a column
beside missing values (`!=` of whole numbers), rounds the literal (float32), or compares texts by order stays with
pandas.

A regular expression of Python's is written for RE2, DuckDB's engine, where both find a match in the same texts.
Python's own parser reads it, and each part is written anew, so that it does not matter how the two read a text. These
parts mean a set of texts, the same by definition: literals, sets and ranges of code points, any character but a line
break, alternatives, groups, repetitions. Which match is found, and what a group holds, does not count here. Of the
others,

- `\\d`, `\\s`, `\\w` and their opposites are the code points that Python counts to them: RE2's are of ASCII alone;
- flags, references, look-around, possessive and atomic groups, word boundaries: not written;
- `^` and `\\A` are the beginning of the text, since no flag is set; `\\Z` is its end;
- `$` is the end, or before a line break at the end: written as `\\n?\\z`, which is the same only if nothing follows it;
- a repetition of what may be empty, or holds one of these ends, is left to Python, which stops it by rules of its own.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.arrow_rows import is_text
from data_contracts.contract import questions
from data_contracts.contract.questions import (
    EXACT,
    IGNORED,
    Arguments,
    Kind,
    ScanQuestion,
    Where,
    compound,
    different,
    distinct_values,
    is_flag,
    is_number,
    is_text_value,
    of_rows,
    pair,
    sum_equal,
)
from data_contracts.contract.suites import ConditionError, Tree, read_condition
from data_contracts.handoffs import Expectation

_PARSER: Any = importlib.import_module("re._parser")
_LONGEST = 500
_MOST_PARTS = 1000  # repetitions, which RE2 writes out one after the other
_SURROGATES = range(0xD800, 0xE000)
_CLASSES = {
    "CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_NOT_WORD": r"\W",
}  # fmt: skip
_ENDS = {"AT_BEGINNING": r"\A", "AT_BEGINNING_STRING": r"\A", "AT_END_STRING": r"\z"}
_SIGNS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MOST_CONDITIONS = 100  # conditions, or values of a set
# A larger set is looked up faster by the hash table of pandas than in a list, value by value.
_SET = 100
_TEXT: tuple[Kind, ...] = ("text",)
_ONE = ("column", "mostly")
_RANGE = ("column", "min_value", "max_value", "strict_min", "strict_max")
_NUMBERS: tuple[Kind, ...] = ("whole", "real", "short")
_DOUBLES: tuple[Kind, ...] = ("whole", "real")
_VALUES: tuple[Kind, ...] = (*_NUMBERS, "text", "flag")


class _Other(Exception):
    """A part that may mean something else to RE2."""


@cache
def for_re2(regex: str) -> str | None:
    """The regular expression for RE2, of ASCII without quotes; None if it may not mean the same."""
    if len(regex) > _LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as a set that will mean something else in a later Python
            parsed = _PARSER.parse(regex)
        if parsed.state.flags != re.UNICODE.value:
            return None
        written = _sequence(parsed, tail=True, inside=False, times=1)
        pc.match_substring_regex(pa.array([""]), written)  # raises if its repetitions are too many for RE2
        return written
    except (_Other, re.error, OverflowError, RecursionError, Warning, pa.ArrowInvalid):
        return None


def is_for_re2(regex: Any) -> bool:
    """Whether a regular expression can be written for RE2."""
    return is_text_value(regex) and for_re2(regex) is not None


def matching(*, must_match: bool) -> Callable[[Arguments, Kind], ScanQuestion]:
    """The question whether texts match a regular expression, or one or all of a list; or match none."""

    def build(kwargs: Arguments, kind: Kind) -> ScanQuestion:
        listed = kwargs["regex_list"] if "regex_list" in kwargs else [kwargs["regex"]]
        # Not bound: DuckDB compiles a constant once. It holds numbers and signs alone, whatever the suite says.
        written = [str(for_re2(one)).replace("{", "{{").replace("}", "}}") for one in listed]
        joined = " AND " if kwargs.get("match_on") == "all" else " OR "
        matches = joined.join("regexp_matches({c}, '" + one + "')" for one in written)
        return of_rows(kwargs, f"({matches})" if must_match else f"NOT ({matches})", ())

    return build


def _sequence(parts: Any, *, tail: bool, inside: bool, times: int) -> str:
    """The parts one after the other.

    Args:
        tail: nothing follows them.
        inside: they are repeated.
        times: how often they are written out.
    """
    listed = list(parts)
    last = len(listed) - 1
    return "".join(_part(str(one), of, tail and at == last, inside, times) for at, (one, of) in enumerate(listed))


def _part(name: str, of: Any, tail: bool, inside: bool, times: int) -> str:
    if name == "LITERAL":
        return _point(of)
    if name == "NOT_LITERAL":
        return f"[^{_point(of)}]"
    if name == "ANY":
        return r"[^\x{a}]"
    if name == "IN":
        return _set(of)
    if name == "AT":
        return _end(str(of), tail, inside)
    if name == "SUBPATTERN":
        _, added, removed, parts = of
        # DuckDB 2.0 rewrites `(?:)a` to a search for another text.
        if added or removed or not len(parts):
            raise _Other
        return f"(?:{_sequence(parts, tail=tail, inside=inside, times=times)})"
    if name == "BRANCH":
        return f"(?:{'|'.join(_sequence(one, tail=tail, inside=inside, times=times) for one in of[1])})"
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        return _repeat(of[0], of[1], of[2], times)
    raise _Other


def _repeat(least: int, most: Any, parts: Any, times: int) -> str:
    endless = most == _PARSER.MAXREPEAT
    times *= max(least if endless else most, 1)
    if parts.getwidth()[0] == 0 or times > _MOST_PARTS:
        raise _Other
    body = _sequence(parts, tail=False, inside=True, times=times)
    return f"(?:{body}){{{least},{'' if endless else most}}}"


def _end(name: str, tail: bool, inside: bool) -> str:
    if inside:
        raise _Other
    if name == "AT_END" and tail:
        return r"(?:\x{a}?\z)"
    if name not in _ENDS:
        raise _Other
    return _ENDS[name]


def _set(items: Iterable[tuple[Any, Any]]) -> str:
    written = ""
    for kind, of in items:
        name = str(kind)
        if name == "NEGATE":
            written += "^"
        elif name == "LITERAL":
            written += _point(of)
        elif name == "RANGE" and not (of[0] < _SURROGATES.start and of[1] >= _SURROGATES.stop):
            written += f"{_point(of[0])}-{_point(of[1])}"
        elif name == "CATEGORY" and str(of) in _CLASSES:
            written += _class(_CLASSES[str(of)])
        else:
            raise _Other
    return f"[{written}]"


@cache
def _class(name: str) -> str:
    """The ranges of the code points that one of Python's classes, such as `\\d`, has."""
    runs = [
        run[0]
        for points in (range(_SURROGATES.start), range(_SURROGATES.stop, sys.maxunicode + 1))
        for run in re.finditer(f"{name}+", "".join(map(chr, points)))
    ]
    return "".join(f"{_point(ord(run[0]))}-{_point(ord(run[-1]))}" for run in runs)


def _point(code: int) -> str:
    if code in _SURROGATES:
        raise _Other
    return f"\\x{{{code:x}}}"


# Of each column of the data, how DuckDB sees it; None if it does not.
Kinds = Mapping[str, Kind | None]


def condition_sql(condition: Any, kinds: Kinds) -> Where | None:
    """The rows that meet a `row_condition` as a suite states it; None if it has no exact translation."""
    try:
        read = read_condition(condition)
    except ConditionError:
        return None  # refused where Great Expectations would carry it out
    columns: list[str] = []
    values: list[Any] = []
    sql = None if read is None else _joined(read.tree, kinds, columns, values)
    return None if sql is None or len(values) > _MOST_CONDITIONS else Where(sql, tuple(columns), tuple(values))


class _AnyColumn(dict[str, Kind | None]):
    """Every column, of whatever kind lets a comparison be translated."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Kind | None:
        return "any"  # type: ignore[return-value]


def is_translatable(condition: Any) -> bool:
    """Whether a `row_condition` has an exact translation for columns of some types."""
    return condition_sql(condition, _AnyColumn()) is not None


def _joined(tree: Tree, kinds: Kinds, columns: list[str], values: list[Any]) -> str | None:
    """The SQL of a condition; adds what it reads to `columns` and what it binds to `values`."""
    kind = tree["type"]
    if kind in ("and", "or"):
        found = [_joined(part, kinds, columns, values) for part in tree["conditions"]]
        return None if None in found else "(" + f" {kind.upper()} ".join(map(str, found)) + ")"
    name = None if kind == "not" else tree["column"]["name"]
    if name is None or name not in kinds:
        return None
    if name not in columns:
        columns.append(name)
    of = "{w" + str(columns.index(name)) + "}"
    if kind == "nullity":
        return None if kinds[name] is None else f"{of} IS {'' if tree['is_null'] else 'NOT '}NULL"
    sql = _comparison(of, tree["operator"], tree["parameter"], kinds[name])
    if sql is not None:
        given = tree["parameter"]
        values.append(tuple(given) if isinstance(given, list) else given)
    return sql


def _comparison(of: str, operator: Any, literal: Any, kind: Kind | None) -> str | None:
    if kind == "any":  # type: ignore[comparison-overlap]
        return next((sql for one in _LITERALS if (sql := _comparison(of, operator, literal, one))), None)
    accepts = _LITERALS.get(kind) if kind is not None else None
    if accepts is None:
        return None
    if operator in ("IN", "NOT_IN"):
        if (
            not isinstance(literal, list)
            or not 0 < len(literal) <= _MOST_CONDITIONS
            or len(set(map(type, literal))) > 1
        ):
            return None
        type_ = {accepts(one) for one in literal}
        if len(type_) > 1 or None in type_ or kind == "flag":
            return None
        sql = f"list_contains(?::{type_.pop()}[], {_as(of, literal[0], kind)})"
        if operator == "IN":
            return sql
        return f"({of} IS NULL OR NOT {sql})" if kind in ("real", "text") else None
    named, sign = accepts(literal), _SIGNS.get(operator) if isinstance(operator, str) else None
    if named is None or sign is None or (kind in ("text", "flag") and operator not in ("==", "!=")):
        return None
    sql = f"{_as(of, literal, kind)} {sign} ?::{named}"
    if operator != "!=":
        return sql
    # A missing value is not equal to anything, where pandas holds it as NaN whatever the other rows are.
    return f"({of} IS NULL OR {sql})" if kind in ("real", "text") else None


def _number(value: Any) -> str | None:
    # Below 2**53, rounding of the other side cannot cross it.
    if not is_number(value) or abs(value) >= EXACT:
        return None
    return "BIGINT" if type(value) is int else "DOUBLE"


_LITERALS: dict[Kind, Callable[[Any], str | None]] = {
    "whole": _number,
    "real": lambda value: "DOUBLE" if _number(value) else None,
    "text": lambda value: "VARCHAR" if is_text_value(value) else None,
    "flag": lambda value: "BOOLEAN" if is_flag(value) else None,
}


def _as(of: str, literal: Any, kind: Kind | None) -> str:
    return f"{of}::{'BIGINT' if type(literal) is int else 'DOUBLE'}" if kind == "whole" else of


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


def reason(entry: Expectation) -> str:
    """Why an expectation runs on Great Expectations, whatever its column's type is; "" if it need not.

    Args:
        entry: one entry of the suite.
    """
    if "class_path" in entry:
        return "it is a class of your own"
    rule = _RULES.get(entry["type"])
    if rule is None:
        return "it has no exact translation"
    kwargs = _given(entry)
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


def translated(entries: Mapping[int, Expectation], schema: pa.Schema) -> dict[int, ScanQuestion | str]:
    """What to measure for each expectation over data of this schema; or why it runs on Great Expectations."""
    kinds = {field.name: kind_of(field.type) for field in schema}  # there may be thousands
    return {index: _translated(entry, schema, kinds) for index, entry in entries.items()}


def _translated(entry: Expectation, schema: pa.Schema, kinds: Kinds) -> ScanQuestion | str:
    if why := reason(entry):
        return why
    condition = entry["kwargs"].get("row_condition")
    if condition is None:
        return _of_all_rows(entry, schema, kinds)
    where = condition_sql(condition, kinds)
    if where is None:
        return "its row_condition has no exact translation"
    question = _of_all_rows(entry, schema, kinds)
    # An aggregate's value looks as the types of all rows are, those without a value among them.
    return question if isinstance(question, str) else replace(question.among(where), observed=None)


def _of_all_rows(entry: Expectation, schema: pa.Schema, kinds: Kinds) -> ScanQuestion | str:
    rule, kwargs = _RULES[entry["type"]], _given(entry)
    if rule.several:
        return _of_several(rule, kwargs, schema, kinds)
    if not rule.kinds:
        return rule.build(kwargs, schema)
    column = kwargs["column"]
    if schema.get_field_index(column) < 0:
        return f"the data has no column {column}"
    type_, kind = schema.field(column).type, kinds[column]
    if kind not in rule.kinds:
        return f"its column is {type_}"
    question = rule.build(kwargs, kind)
    return question or f"its values have no exact translation for a column of {type_}"


def _of_several(rule: _Rule, kwargs: Arguments, schema: pa.Schema, kinds: Kinds) -> ScanQuestion | str:
    names = kwargs["column_list"] if "column_list" in kwargs else [kwargs["column_A"], kwargs["column_B"]]
    absent = [name for name in names if name not in kinds]
    if absent:
        return f"the data has no column {absent[0]}"
    seen = [kinds[name] for name in names]
    if len(set(names)) < max(len(names), 2) or None in seen or "time" in seen:
        return f"its columns are {', '.join(str(schema.field(name).type) for name in names)}"
    question = rule.build(kwargs, names, seen)
    return question or f"its columns are {', '.join(str(schema.field(name).type) for name in names)}"


def _given(entry: Expectation) -> Arguments:
    """Its arguments without those that say null, which is the default of these."""
    optional = ("min_value", "max_value", "row_condition", "condition_parser", "column_index")
    return {key: value for key, value in entry["kwargs"].items() if value is not None or key not in optional}


_ARGUMENTS: dict[str, Callable[[Any], bool]] = {
    "column": lambda value: questions.is_text_value(value) and bool(value),
    "mostly": lambda value: type(value) in (int, float) and 0 <= value <= 1,
    "min_value": is_number,
    "max_value": is_number,
    "strict_min": is_flag,
    "strict_max": is_flag,
    "type_": questions.is_text_value,
    "value": lambda value: type(value) is int and abs(value) <= EXACT,
    "value_set": lambda value: type(value) is list and 0 < len(value) <= _SET,
    "column_set": lambda value: type(value) is list and bool(value) and all(map(questions.is_text_value, value)),
    "column_list": lambda value: type(value) is list and bool(value) and all(map(questions.is_text_value, value)),
    "exact_match": is_flag,
    "column_A": lambda value: questions.is_text_value(value) and bool(value),
    "column_B": lambda value: questions.is_text_value(value) and bool(value),
    "or_equal": is_flag,
    "sum_total": is_number,
    "regex": is_for_re2,
    "regex_list": lambda value: type(value) is list and bool(value) and all(map(is_for_re2, value)),
    "match_on": lambda value: value in ("any", "all"),
    "type_list": lambda value: type(value) is list and all(map(questions.is_text_value, value)),
    "quantile_ranges": questions.is_bounded,
    "allow_relative_error": questions.is_interpolation,
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


_OF_SET = ("column", "value_set")
_TWO, _MANY = ("column_A", "column_B", "ignore_row_if", "mostly"), ("column_list", "ignore_row_if", "mostly")
_RULES = {
    "expect_column_values_to_not_be_null": _Rule(_ONE, (*_VALUES, "time"), questions.not_null),
    "expect_column_values_to_be_null": _Rule(_ONE, (*_VALUES, "time"), questions.null),
    "expect_column_values_to_be_between": _Rule((*_RANGE, "mostly"), _NUMBERS, questions.between),
    "expect_column_value_lengths_to_be_between": _Rule(
        (*_RANGE, "mostly"), _TEXT, questions.lengths_between, counts=True
    ),
    "expect_column_value_lengths_to_equal": _Rule((*_ONE, "value"), _TEXT, questions.lengths_equal),
    "expect_column_values_to_be_in_set": _Rule((*_ONE, "value_set"), _VALUES, questions.in_set),
    "expect_column_values_to_not_be_in_set": _Rule((*_ONE, "value_set"), _VALUES, questions.not_in_set),
    "expect_column_values_to_be_unique": _Rule(_ONE, _VALUES, questions.unique),
    "expect_column_min_to_be_between": _Rule(_RANGE, _DOUBLES, questions.extreme("min")),
    "expect_column_max_to_be_between": _Rule(_RANGE, _DOUBLES, questions.extreme("max")),
    "expect_column_mean_to_be_between": _Rule(_RANGE, _DOUBLES, questions.added_up(per_value=True)),
    "expect_column_median_to_be_between": _Rule(_RANGE, _DOUBLES, questions.median),
    "expect_column_quantile_values_to_be_between": _Rule(
        ("column", "quantile_ranges", "allow_relative_error"), _DOUBLES, questions.quantiles
    ),
    "expect_column_sum_to_be_between": _Rule(_RANGE, _DOUBLES, questions.added_up(per_value=False)),
    "expect_column_stdev_to_be_between": _Rule(_RANGE, _DOUBLES, questions.deviation),
    "expect_column_unique_value_count_to_be_between": _Rule(_RANGE, _VALUES, questions.distinct_count, counts=True),
    "expect_column_proportion_of_unique_values_to_be_between": _Rule(_RANGE, _VALUES, questions.proportion),
    "expect_column_distinct_values_to_be_in_set": _Rule(_OF_SET, _VALUES, distinct_values(only=True, every=False)),
    "expect_column_distinct_values_to_contain_set": _Rule(_OF_SET, _VALUES, distinct_values(only=False, every=True)),
    "expect_column_distinct_values_to_equal_set": _Rule(_OF_SET, _VALUES, distinct_values(only=True, every=True)),
    "expect_column_values_to_match_regex": _Rule((*_ONE, "regex"), _TEXT, matching(must_match=True)),
    "expect_column_values_to_not_match_regex": _Rule((*_ONE, "regex"), _TEXT, matching(must_match=False)),
    "expect_column_values_to_match_regex_list": _Rule(
        (*_ONE, "regex_list", "match_on"), _TEXT, matching(must_match=True)
    ),
    "expect_column_values_to_not_match_regex_list": _Rule((*_ONE, "regex_list"), _TEXT, matching(must_match=False)),
    "expect_column_values_to_be_of_type": _Rule(("column", "type_"), (), questions.typed),
    "expect_column_values_to_be_in_type_list": _Rule(("column", "type_list"), (), questions.typed),
    "expect_column_pair_values_to_be_equal": _Rule(_TWO, (), pair("="), several=True),
    "expect_column_pair_values_a_to_be_greater_than_b": _Rule((*_TWO, "or_equal"), (), pair(">"), several=True),
    "expect_compound_columns_to_be_unique": _Rule(_MANY, (), compound, several=True),
    "expect_select_column_values_to_be_unique_within_record": _Rule(_MANY, (), different, several=True),
    "expect_multicolumn_sum_to_equal": _Rule((*_MANY, "sum_total"), (), sum_equal, several=True),
    "expect_column_to_exist": _Rule(("column",), (), questions.exists),
    "expect_table_row_count_to_be_between": _Rule(_RANGE[1:], (), questions.row_count, counts=True),
    "expect_table_row_count_to_equal": _Rule(("value",), (), questions.row_count),
    "expect_table_column_count_to_be_between": _Rule(_RANGE[1:3], (), questions.column_count, counts=True),
    "expect_table_column_count_to_equal": _Rule(("value",), (), questions.column_count),
    "expect_table_columns_to_match_ordered_list": _Rule(("column_list",), (), questions.columns_listed),
    "expect_table_columns_to_match_set": _Rule(("column_set", "exact_match"), (), questions.columns_in_set),
}
