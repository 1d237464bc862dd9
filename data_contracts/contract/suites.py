"""Reads a Great Expectations suite as plain JSON: its structure, its expectations and their arguments, its digest.

Great Expectations is not imported here, because that would cost each run some seconds. Its expectations are listed in
expectations.json, and a test compares the list with the installed version. An argument is refused, whatever the data
is, if Great Expectations would certainly refuse it, or would carry it out as a program.

A `row_condition` is such a text: Great Expectations gives it to `DataFrame.query`, where it can run programs; but a
suite is reviewed as data. So Great Expectations never gets one. This grammar alone is read, and the rows are chosen
beforehand, by the operations of pandas that `query` would use:

    col("name"), `name` or name, compared by == != < <= > >= with a number, a text, True, False or another column;
    in and not in a list; .isnull(), .notnull(), is None, is not None, .isin([…]); joined by and, or, not, & | ~

Great Expectations' condition objects, as JSON, say the same. Nothing of a text is ever executed.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeGuard

from data_contracts.canonical import digest
from data_contracts.errors import SpecError
from data_contracts.expressions import expression_tree
from data_contracts.foreign_files import TooDeep, parse_json, read_plain
from data_contracts.handoffs import Expectation, Suite
from data_contracts.quoting import name_shown, nearest_name
from data_contracts.yaml_text import Document, dotted, parse

SEVERITIES = ("info", "warning", "critical")
# Expectations of Great Expectations that judge rows; every other one is about a column or the table as a whole.
ABOUT_ROWS = (
    "expect_column_value", "expect_column_pair_values", "expect_compound_columns", "expect_multicolumn",
    "expect_select_column_values",
)  # fmt: skip
_KEYS = ("type", "class_path", "kwargs", "severity", "description", "meta")
_LISTED = f"{', '.join(_KEYS[:-1])} and {_KEYS[-1]}"
# Written by GX beside the expectation; they differ from one save to the next and do not affect the result.
_NOISE = ("id", "notes", "rendered_content", "expectation_context", "ge_cloud_id", "success_on_last_run")
# Arguments about how GX runs or shows an expectation, which we decide; those after the third are of GX before 1.0.
_RUNTIME = (
    *("batch_id", "result_format", "catch_exceptions"),
    *("include_config", "auto", "profiler_config", "output_strftime_format", "interactive_evaluation"),
)
# Arguments of GX before 1.0 that changed what is compared: only where they did not can they be left out.
_GONE = {
    "parse_strings_as_datetimes": "texts are not read as times; leave it out, and store the column as a time",
    "allow_cross_type_comparisons": "values of another type break the expectation; leave it out",
}
_INSTEAD = {
    "expect_multicolumn_values_to_be_unique": "use expect_select_column_values_to_be_unique_within_record.",
    **dict.fromkeys(
        (
            "expect_column_bootstrapped_ks_test_p_value_to_be_greater_than",
            "expect_column_chisquare_test_p_value_to_be_greater_than",
            "expect_column_parameterized_distribution_ks_test_p_value_to_be_greater_than",
        ),
        "use expect_column_kl_divergence_to_be_less_than, or contract.drift (docs/drift.md).",
    ),
    "expect_column_pair_cramers_phi_value_to_be_less_than": "write a class of your own (class_path).",
}
# YAML's nodes of a larger suite take minutes to make.
_MOST_WITH_LINES = 2**20
_MOST_REFUSED = 100
# What Spark and databases call types, none of which a column has in pandas.
_FOREIGN_TYPE = re.compile(r"[A-Z]\w*Type|[A-Z][A-Z_0-9 ]+(\(.*\))?")
# Of pandas' quantiles.
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# As drafts before and since 6 write it. A reference within a part that names itself leads to that name.
_NAMES = ("$id", "id")
# Of a row_condition: its characters and levels, and the characters of a part that an error quotes.
_LONGEST = 2000
_DEEPEST = 40
_SHOWN = 40
# Texts, columns' names in backticks, and the signs that pandas reads as words.
_TOKENS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|[&|]""")
_WORDS = {"&": " and ", "|": " or "}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SIGNS: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "IN",
    ast.NotIn: "NOT_IN",
}  # fmt: skip
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OF_LISTS = {"==": "IN", "!=": "NOT_IN", "IN": "IN", "NOT_IN": "NOT_IN"}
_NULLNESS = {"isnull": True, "isna": True, "is_null": True, "notnull": False, "notna": False, "is_not_null": False}


class SuiteText:
    """The suite's JSON as it was written, kept to name the line of an error.

    Args:
        name: the file's path as the user wrote it, or `contract.suite` for an inline suite.
        text: the JSON, or "" for an inline suite.
    """

    def __init__(self, name: str, text: str = "") -> None:
        self.name = name
        self.text = text

    def refuse(self, path: Iterable[str | int], what: str, cause: Exception | None = None) -> NoReturn:
        """Raise SpecError `file:line: field: what`."""
        raise self.refusal(path, what) from cause

    def refusal(self, path: Iterable[str | int], what: str) -> SpecError:
        """The error `file:line: field: what`."""
        field = tuple(path)
        return SpecError(f"{self.document.place(field)}: {dotted(field)}{': ' * bool(field)}{what}")

    @cached_property
    def document(self) -> Document:
        """The text as YAML, which knows its lines; JSON is YAML."""
        if len(self.text) <= _MOST_WITH_LINES:
            with suppress(SpecError):
                return parse(self.text, self.name)
        return Document(self.name, None, {})


def nearest(name: str, names: Iterable[str]) -> str:
    """`"; did you mean x?"` with the nearest known name, or ""."""
    names = list(names)
    near = nearest_name(name, names) or next((one for one in names if one.startswith(name)), None)
    return "" if near is None else f"; did you mean {name_shown(near, name)}?"


def _open(suite: str | Mapping[str, object], root: Path) -> tuple[str, list[Any], SuiteText]:
    """The suite's name and its expectations as they are written, and its text for error messages.

    Args:
        suite: path of its JSON from `root`, or the suite itself.
        root: the spec's folder.

    Raises:
        SpecError: the file is missing or not JSON, or the suite does not have GX's structure.
    """
    if isinstance(suite, str):
        text = _read(suite, root)
        try:
            raw = parse_json(text.text.encode(), parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            raise SpecError(
                f"{suite}:{error.lineno}: contract.suite: the suite is not JSON: {error.msg} (column {error.colno}).",
                remedy="Look at this line and the one before: a comma, quote or bracket may be missing, or be one too "
                "many.",
            ) from error
        except TooDeep as error:
            raise SpecError(
                f"{suite}: contract.suite: the suite is nested too deeply.", remedy="Write it flat."
            ) from error
        except ValueError as error:
            text.refuse([], f"the suite holds {error}, which JSON does not have; leave that argument out.", error)
    else:
        text, raw = SuiteText("contract.suite"), suite
    expectations = raw.get("expectations") if isinstance(raw, dict) else None
    if not isinstance(expectations, list):
        text.refuse([], 'a suite is an object {"name": …, "expectations": […]}; this one has no list of expectations.')
    name = raw.get("name", raw.get("expectation_suite_name", "suite"))  # the latter before GX 1.0
    return name, expectations, text


def load_suite(
    suite: str | Mapping[str, object], root: Path, parameters: Mapping[str, Any] | None = MappingProxyType({})
) -> Suite:
    """The suite, checked without loading Great Expectations, and without the ids and versions that GX writes.

    Args:
        suite: path of its JSON from `root` (the spec's folder), or the suite itself.
        parameters: the values for each `{"$PARAMETER": name}` in it, which they replace; None: they stay as they are.

    Raises:
        SpecError: no file, not JSON, an expectation or argument that Great Expectations does not have, or a parameter
            without a value.
    """
    name, expectations, text = _open(suite, root)
    checked: list[Expectation] = []
    refused: list[SpecError] = []
    for index, raw in enumerate(expectations):
        try:
            checked.append(_expectation(text, index, raw, parameters))
            refused += _refusals(text, ["expectations", index], checked[-1])
        except SpecError as error:
            refused.append(error)
    if refused:
        raise refused[0] if len(refused) == 1 else _joined(text, refused)
    return {"name": name, "expectations": checked}


def _refusals(text: SuiteText, here: list[str | int], expectation: Expectation) -> Iterator[SpecError]:
    """What is wrong with an expectation and its arguments."""
    name, kwargs, (known, sql_only) = expectation["type"], expectation["kwargs"], _catalogue()
    if "class_path" in expectation:  # only the child process that imports the class knows its other arguments
        if why := wrong_condition(kwargs):
            yield text.refusal([*here, "kwargs", "row_condition"], why)
        return
    if name in sql_only:
        yield text.refusal([*here, "type"], f"{name} needs a SQL database and cannot run on files; leave it out.")
        return
    if name not in known:
        hint = nearest(name, known) or "; write an expectation of its gallery, or leave this one out."
        hint = "; name a class of your own as class_path." if "." in name else hint
        hint = f" any more; {_INSTEAD[name]}" if name in _INSTEAD else hint
        yield text.refusal([*here, "type"], f"Great Expectations has no {name}{hint}")
        return
    required, optional = known[name]["required"], known[name]["optional"]
    for argument in kwargs:
        if argument not in required and argument not in optional:
            hint = nearest(argument, [*required, *optional]) or f"; it has {', '.join([*required, *optional])}."
            hint = f" any more: {_GONE[argument]}." if argument in _GONE else hint
            yield text.refusal([*here, "kwargs", argument], f"{name} has no argument {argument}{hint}")
    for argument in required:
        if argument not in kwargs:
            yield text.refusal([*here, "kwargs"], f"{name} needs the argument {argument}.")
    if wrong := wrong_argument(name, kwargs):
        yield text.refusal([*here, "kwargs", wrong[0]], wrong[1])


def _joined(text: SuiteText, refused: list[SpecError]) -> SpecError:
    more = len(refused) - _MOST_REFUSED
    lines = [str(error) for error in refused[:_MOST_REFUSED]] + ([f"and {more} more"] if more > 0 else [])
    return SpecError("\n  ".join([f"{text.name}: the suite needs {len(refused)} changes:", *lines]))


def with_line(message: str, field: str, suite: str | Mapping[str, object], root: Path) -> str:
    """An error about an expectation that begins with the suite's field, with its file and line instead, if it has one.

    What only Great Expectations or the user's class refuses is found where the suite is no longer a text.
    """
    found = re.match(rf"{re.escape(field)}: (expectations(?:\.\w+)+): ", message)
    if found is None or not isinstance(suite, str):
        return message
    try:
        document = _read(suite, root).document
    except SpecError:  # it is gone meanwhile
        return message
    path = tuple(int(one) if one.isdigit() else one for one in found[1].split("."))
    return f"{document.place(path)}: {message.removeprefix(f'{field}: ')}"


def parameters_of(suite: str | Mapping[str, object], root: Path) -> set[str]:
    """The names of the parameters that a suite uses; SpecError as `load_suite`."""
    entries = _open(suite, root)[1]
    return {name for one in entries if isinstance(one, dict) for name in parameter_names(one.get("kwargs"))}


@cache
def _catalogue() -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """The arguments of each expectation that runs on files, and the names of those that need a SQL database."""
    listed = json.loads(Path(__file__).with_name("expectations.json").read_text())
    return listed["expectations"], listed["sql_only"]


def own_classes(suite: Suite) -> dict[int, str]:
    """The paths of the user's own classes that a suite names, by the expectation's index."""
    return {index: one["class_path"] for index, one in enumerate(suite["expectations"]) if "class_path" in one}


def suite_digest(suite: Suite) -> str:
    """SHA-256 of everything that decides the verdict: each expectation's type, arguments and severity, in order."""
    return digest(
        [{"type": e["type"], "kwargs": e["kwargs"], "severity": e["severity"]} for e in suite["expectations"]]
    )


def _read(path: str, root: Path) -> SuiteText:
    try:
        return SuiteText(path, read_plain(root / path).decode())
    except FileNotFoundError as error:
        beside = sorted(str(Path(path).with_name(file.name)) for file in (root / path).parent.glob("*.json"))
        hint = nearest(path, beside) or "; correct the path, or write the suite there."
        raise SpecError(f"contract.suite: there is no file {path} in {root}{hint}") from error
    except IsADirectoryError as error:
        raise SpecError(f"contract.suite: {path} is a folder in {root}; name the suite's JSON file in it.") from error
    except UnicodeDecodeError as error:
        raise SpecError(
            f"contract.suite: {path} in {root} cannot be read as text: its byte {error.start} is not UTF-8; save it as "
            "UTF-8."
        ) from error
    except OSError as error:
        raise SpecError(
            f"contract.suite: {path} in {root} cannot be read ({error.strerror}); check its permissions."
        ) from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _expectation(text: SuiteText, index: int, raw: Any, parameters: Mapping[str, Any] | None) -> Expectation:
    here: list[str | int] = ["expectations", index]
    if not isinstance(raw, dict):
        text.refuse(here, "an expectation is an object with type and kwargs.")
    if "expectation_type" in raw and "type" not in raw:  # as before GX 1.0
        raw = {"type" if key == "expectation_type" else key: value for key, value in raw.items()}
    for key in raw:
        if key not in _KEYS and key not in _NOISE:
            text.refuse([*here, key], f"unknown key{nearest(key, _KEYS) or f'; an expectation has {_LISTED}.'}")
    own = {"class_path": _own_class(text, here, raw)} if "class_path" in raw else {}
    if not own and not isinstance(raw.get("type"), str):
        text.refuse(here, "the expectation has no type; give its name, such as expect_column_values_to_not_be_null.")
    kwargs = raw.get("kwargs", {})
    if not isinstance(kwargs, dict):
        text.refuse([*here, "kwargs"], 'the arguments are an object, such as {"column": "price"}.')
    for key, value in kwargs.items() if parameters is not None else ():
        assert parameters is not None
        try:
            kwargs = {**kwargs, key: _filled(value, parameters)}
        except _WithoutValue as error:
            (name,) = error.args
            hint = nearest(name, parameters) or "; give it one in contract.parameters."
            text.refuse([*here, "kwargs", key], f"the suite parameter {name} has no value{hint}")
    severity = raw.get("severity") or "critical"
    if severity not in SEVERITIES:
        text.refuse([*here, "severity"], f"{severity!r} is not a severity; use critical, warning or info.")
    plain = {key: raw[key] for key in ("description", "meta") if raw.get(key)}
    entry: Any = {
        "type": own.get("class_path", raw.get("type")),
        **own,
        "kwargs": {key: value for key, value in kwargs.items() if key not in _RUNTIME and (value or key not in _GONE)},
        "severity": severity,
        **plain,
    }
    return entry


def _own_class(text: SuiteText, here: list[str | int], raw: Mapping[str, object]) -> str:
    path = raw["class_path"]
    if "type" in raw:
        text.refuse(here, "an expectation has a type or a class_path, not both; leave one of them out.")
    if not isinstance(path, str) or "." not in path or not all(part.isidentifier() for part in path.split(".")):
        text.refuse([*here, "class_path"], f"{path!r} is not the path of a class; write it as package.module.Class.")
    return path


class _WithoutValue(KeyError):
    """The name of a suite parameter that contract.parameters does not have."""


def _filled(value: Any, parameters: Mapping[str, Any]) -> Any:
    """An argument with the values of its parameters, at any depth."""
    if isinstance(value, list):
        return [_filled(one, parameters) for one in value]
    if not isinstance(value, dict):
        return value
    if "$PARAMETER" not in value:
        return {key: _filled(one, parameters) for key, one in value.items()}
    name = str(value["$PARAMETER"])
    if name not in parameters:
        raise _WithoutValue(name)
    return parameters[name]


def wrong_argument(kind: str, kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """The argument of an expectation of this type that cannot be read, and why; None if there is none."""
    for name in ("column", "column_A", "column_B"):
        if name in kwargs and not _may_be_name(kwargs[name]):
            return name, f"{kwargs[name]!r} is not the name of a column; write it in quotes."
    listed = kwargs.get("column_list", [])
    if not _is_parameter(listed) and not (isinstance(listed, list) and all(map(_may_be_name, listed))):
        return "column_list", f"{listed!r} is not a list of columns' names."
    for name in ("regex", "regex_list"):
        given = kwargs.get(name)
        for regex in given if isinstance(given, list) else [given]:
            if isinstance(regex, str) and (reason := _why_no_regex(regex)):
                return name, f"{regex!r} is not a regular expression: {reason}."
    for name in ("type_", "type_list"):
        types = kwargs.get(name) or ["str"]
        types = types if isinstance(types, list) else [types]
        if all(isinstance(one, str) and _FOREIGN_TYPE.fullmatch(one) for one in types):
            return name, (
                f"{', '.join(types)}: no type of pandas, as which rows are read here; use str, int64, float64, bool, "
                "datetime64[us] or date."
            )
    if wrong := _wrong_bounds(kind, kwargs):
        return wrong
    try:
        local_schema(kwargs.get("json_schema"))
    except ForeignReference as error:
        return "json_schema", f"{error}."
    return ("row_condition", reason) if (reason := wrong_condition(kwargs)) else None


def _wrong_bounds(kind: str, kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """The bounds or quantiles that pandas or Great Expectations refuses when it measures, as `wrong_argument`."""
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if kind == "expect_column_values_to_be_between" and _is_number(low) and _is_number(high) and low > high:
        return "min_value", f"{low!r} is greater than max_value, {high!r}."
    if kind != "expect_column_quantile_values_to_be_between":
        return None
    ranges, interpolation = kwargs.get("quantile_ranges"), kwargs.get("allow_relative_error")
    asked, bounds = (ranges.get(name) if isinstance(ranges, dict) else None for name in ("quantiles", "value_ranges"))
    for quantile in asked if isinstance(asked, list) else []:
        if _is_number(quantile) and not 0 <= quantile <= 1:
            return "quantile_ranges", f"{quantile!r} is not a quantile; write a number from 0 to 1."
    # Great Expectations refuses these only in Python; of a JSON suite it would leave out the last quantiles.
    if isinstance(asked, list) and isinstance(bounds, list) and len(asked) != len(bounds):
        return "quantile_ranges", f"quantiles and value_ranges differ in number: {len(asked)} and {len(bounds)}."
    if interpolation and not _is_parameter(interpolation) and interpolation not in INTERPOLATIONS:
        return "allow_relative_error", f"{interpolation!r} is not one of {', '.join(INTERPOLATIONS)}."
    return None


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _may_be_name(value: Any) -> bool:
    return isinstance(value, str) or _is_parameter(value)


def _is_parameter(value: Any) -> bool:
    """Whether it stands for a value that is not known yet, as when a suite is explained without its spec."""
    return isinstance(value, dict) and "$PARAMETER" in value


def wrong_condition(kwargs: Mapping[str, Any]) -> str:
    """Why an expectation's `row_condition` cannot be read; "" if it can."""
    condition = kwargs.get("row_condition")
    if any(parameter_names(condition)):
        return ""
    try:
        read_condition(condition)
    except ConditionError as error:
        return f"{condition!r} is not a condition on rows: {error}; docs/validate.md lists what is."
    return ""


def parameter_names(value: Any) -> Iterator[str]:
    """The suite parameters that an argument names, at any depth."""
    if isinstance(value, dict) and "$PARAMETER" in value:
        yield str(value["$PARAMETER"])
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parameter_names(part)


def _why_no_regex(regex: str) -> str:
    """Why neither engine that Great Expectations may use reads a regular expression: Python's and pyarrow's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            pc.match_substring_regex(pa.array([""]), regex)
        except pa.ArrowInvalid:
            return str(error)
    return ""


class ForeignReference(ValueError):
    """A part of a JSON Schema leads, or could lead, out of it; the message names the part."""


def local_schema(schema: Any) -> Any:
    """A suite's JSON Schema without the name that it gives itself, so that references are looked up in it alone.

    The library that Great Expectations uses fetches the address to which a `$ref` leads.

    Raises:
        ForeignReference: a reference does not begin with #, or a part of the schema has a name of its own.
    """
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts.extend(part)
        if not isinstance(part, dict):
            continue
        for key, value in part.items():
            if key in _REFERENCES and not (isinstance(value, dict) or str(value).startswith("#")):
                raise ForeignReference(f"its {key} {value!r} leads out of the schema; write the part under $defs")
            if key in _NAMES and isinstance(value, str) and part is not schema:
                raise ForeignReference(f"a part of it has the {key} {value!r}; leave that out")
            parts.append(value)
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if not (key in _NAMES and isinstance(value, str))}


# As one of Great Expectations' conditions; besides, `not`, and {"column": name} for another column as the parameter.
Tree = dict[str, Any]


class ConditionError(ValueError):
    """A condition that is not of the grammar; the message says which part of it."""


@dataclass(frozen=True)
class Condition:
    """A condition that was read.

    Attributes:
        text: the same for conditions that mean the same.
        columns: those that it reads.
    """

    text: str
    tree: Tree = field(compare=False)
    columns: tuple[str, ...] = field(compare=False)


def read_condition(written: Any) -> Condition | None:
    """The condition that a suite's `row_condition` states; None if it states none.

    Args:
        written: a text, or one of Great Expectations' conditions as JSON.

    Raises:
        ConditionError: a part of it is not of the grammar.
    """
    if not written:
        return None
    columns: dict[str, None] = {}
    tree = _of_text(written, columns) if isinstance(written, str) else _of_object(written, columns, 0)
    return Condition(json.dumps(tree), tree, tuple(columns))


def _of_text(text: str, columns: dict[str, None]) -> Tree:
    if len(text) > _LONGEST:
        raise ConditionError(f"it has {len(text):,} characters; at most {_LONGEST:,} are read")
    plain = _TOKENS.sub(_plain, text.strip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = expression_tree(plain)
    except SyntaxError as error:
        rest = plain[error.offset - 1 :] if error.offset and error.lineno == 1 else plain
        raise ConditionError(f"{error.msg} at {_short(rest)}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConditionError("it is nested too deeply, or holds a character that no text can have") from error
    return _Text(plain, columns).condition(tree, 0)


def _plain(match: re.Match[str]) -> str:
    token = match[0]
    return _WORDS.get(token) or (f"col({token[1:-1]!r})" if token[0] == "`" else token)


def _short(part: str) -> str:
    return repr(part if len(part) <= _SHOWN else f"{part[: _SHOWN - 1]}…")


@dataclass(frozen=True)
class _Text:
    """Reads the tree that Python's parser makes of a text."""

    text: str
    columns: dict[str, None]

    def condition(self, node: ast.expr, depth: int) -> Tree:
        """Something that is true or false."""
        if depth > _DEEPEST:
            raise self._refused(node)
        match node:
            case ast.BoolOp(op=joins, values=values):
                parts = [self.condition(value, depth + 1) for value in values]
                return {"type": "and" if isinstance(joins, ast.And) else "or", "conditions": parts}
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
                return {"type": "not", "conditions": [self.condition(operand, depth + 1)]}
            case ast.Compare(left=left, ops=signs, comparators=others):
                pairs = zip([left, *others], signs, others, strict=False)
                parts = [self._comparison(node, *pair) for pair in pairs]
                return parts[0] if len(parts) == 1 else {"type": "and", "conditions": parts}
            case ast.Call(func=ast.Attribute(value=of, attr=method), args=[], keywords=[]):
                if (is_null := _NULLNESS.get(method.lower())) is not None:
                    return {"type": "nullity", "column": self._column(of), "is_null": is_null}
            case ast.Call(func=ast.Attribute(value=of, attr="isin"), args=[listed], keywords=[]):
                return _compared(self._column(of), "IN", self._value(listed))
        raise self._refused(node)

    def _comparison(self, whole: ast.expr, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Tree:
        if isinstance(sign, ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None:
            return {"type": "nullity", "column": self._column(left), "is_null": isinstance(sign, ast.Is)}
        named = _SIGNS.get(type(sign))
        if named in _TURNED and isinstance(left, ast.Constant | ast.UnaryOp):
            left, named, right = right, _TURNED[named], left
        value = self._value(right)
        if named is None or (isinstance(value, list) and named not in _OF_LISTS):
            raise self._refused(whole)
        if named in ("IN", "NOT_IN") and not isinstance(value, list):
            raise self._refused(right)
        return _compared(self._column(left), named, value)

    def _column(self, node: ast.expr) -> Tree:
        match node:
            case (
                ast.Name(id=name) | ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))], keywords=[])
            ):
                self.columns[name] = None
                return {"name": name}
        raise self._refused(node)

    def _value(self, node: ast.expr) -> Any:
        """A number, a text, a flag, a list of these, or a column."""
        match node:
            case ast.Constant(value=value) if _is_literal(value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                values = [self._value(part) for part in parts]
                if all(map(_is_literal, values)):
                    return values
            case ast.Name() | ast.Call():
                return {"column": self._column(node)["name"]}
        raise self._refused(node)

    def _refused(self, node: ast.expr) -> ConditionError:
        return ConditionError(f"{_short(ast.get_source_segment(self.text, node) or self.text)} is not understood")


def _is_literal(value: Any) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and not math.isnan(value))


def _compared(column: Tree, sign: str, value: Any) -> Tree:
    # To pandas, `==` a list means `in` it.
    named = _OF_LISTS[sign] if isinstance(value, list) else sign
    return {"type": "comparison", "column": column, "operator": named, "parameter": value}


def _of_object(tree: Any, columns: dict[str, None], depth: int) -> Tree:
    match tree:
        case {"type": "and" | "or" as joins, "conditions": [_, *_] as parts} if depth <= _DEEPEST:
            return {"type": joins, "conditions": [_of_object(part, columns, depth + 1) for part in parts]}
        case {"type": "nullity", "column": {"name": str(name)}, "is_null": bool(is_null)}:
            columns[name] = None
            return {"type": "nullity", "column": {"name": name}, "is_null": is_null}
        case {"type": "comparison", "column": {"name": str(name)}, "operator": str(sign), "parameter": value}:
            several = isinstance(value, list) and all(map(_is_literal, value)) and sign in _OF_LISTS
            if several or (_is_literal(value) and sign in COMPARE):
                columns[name] = None
                return _compared({"name": name}, sign, value)
        case {"type": "pass_through", "pass_through_filter": str(text)}:
            return _of_text(text, columns)
    raise ConditionError(f"{_short(json.dumps(tree, ensure_ascii=False))} is not understood")
