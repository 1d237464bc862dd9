"""Reads a Great Expectations suite as plain JSON: its structure, its expectations and their arguments, its digest.

Great Expectations is not imported here, because that would cost each run some seconds. Its expectations are listed in
expectations.json, and a test compares the list with the installed version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import yaml

from data_contracts.canonical import digest
from data_contracts.contract.syntax import parameter_names, wrong_argument, wrong_condition
from data_contracts.errors import SpecError
from data_contracts.foreign_json import TooDeep, parse_json
from data_contracts.plain_file import read_plain
from data_contracts.quoting import name_shown, nearest_name

SEVERITIES = ("info", "warning", "critical")
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
        path = list(path)
        line = self._line(path)
        where = f"{self.name}:{line}" if line else self.name
        field = ".".join(map(str, path))
        return SpecError(f"{where}: {field}: {what}" if field else f"{where}: {what}")

    @cached_property
    def _nodes(self) -> yaml.Node | None:
        """The text as YAML's nodes, which know their lines; JSON is YAML."""
        if not self.text or len(self.text) > _MOST_WITH_LINES:
            return None
        try:
            return yaml.compose(self.text)
        except yaml.YAMLError:
            return None

    def _line(self, path: list[str | int]) -> int | None:
        node = self._nodes
        for step in path:
            below = {}
            if isinstance(node, yaml.MappingNode):
                below = {key.value: value for key, value in node.value}
            elif isinstance(node, yaml.SequenceNode):
                below = dict(enumerate(node.value))
            if step not in below:
                break
            node = below[step]
        return node.start_mark.line + 1 if node is not None else None


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean x?"` with the nearest known name, or ""."""
    known = list(known)
    near = nearest_name(name, known) or next((one for one in known if one.startswith(name)), None)
    return "" if near is None else f"; did you mean {name_shown(near, name)}?"


def _open(suite: str | dict[str, Any], root: Path) -> tuple[dict[str, Any], SuiteText]:
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
    return {"name": name, "expectations": expectations}, text


def load_suite(
    suite: str | dict[str, Any], root: Path, parameters: Mapping[str, Any] | None = MappingProxyType({})
) -> dict[str, Any]:
    """The suite, checked without loading Great Expectations, and without the ids and versions that GX writes.

    Args:
        suite: path of its JSON from `root` (the spec's folder), or the suite itself.
        parameters: the values for each `{"$PARAMETER": name}` in it, which they replace; None: they stay as they are.

    Raises:
        SpecError: no file, not JSON, an expectation or argument that Great Expectations does not have, or a parameter
            without a value.
    """
    plain, text = _open(suite, root)
    checked: list[dict[str, Any]] = []
    refused: list[SpecError] = []
    for index, raw in enumerate(plain["expectations"]):
        try:
            checked.append(_expectation(text, index, raw, parameters))
            refused += _refusals(text, ["expectations", index], checked[-1])
        except SpecError as error:
            refused.append(error)
    if refused:
        raise refused[0] if len(refused) == 1 else _joined(text, refused)
    return {**plain, "expectations": checked}


def _refusals(text: SuiteText, here: list[str | int], expectation: dict[str, Any]) -> Iterator[SpecError]:
    """What is wrong with an expectation and its arguments."""
    name, kwargs, listed = expectation["type"], expectation["kwargs"], _catalogue()
    if "class_path" in expectation:  # only the child process that imports the class knows its other arguments
        if why := wrong_condition(kwargs):
            yield text.refusal([*here, "kwargs", "row_condition"], why)
        return
    if name in listed["sql_only"]:
        yield text.refusal([*here, "type"], f"{name} needs a SQL database and cannot run on files; leave it out.")
        return
    known = listed["expectations"]
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


def with_line(message: str, field: str, suite: str | dict[str, Any], root: Path) -> str:
    """An error about an expectation that begins with the suite's field, with its file and line instead, if it has one.

    What only Great Expectations or the user's class refuses is found where the suite is no longer a text.
    """
    found = re.match(rf"{re.escape(field)}: (expectations(?:\.\w+)+): ", message)
    if found is None or not isinstance(suite, str):
        return message
    try:
        line = _read(suite, root)._line([int(one) if one.isdigit() else one for one in found[1].split(".")])
    except SpecError:  # it is gone meanwhile
        return message
    return f"{suite}{f':{line}' if line else ''}: {message.removeprefix(f'{field}: ')}"


def parameters_of(suite: str | dict[str, Any], root: Path) -> set[str]:
    """The names of the parameters that a suite uses; SpecError as `load_suite`."""
    entries = _open(suite, root)[0]["expectations"]
    return {name for one in entries if isinstance(one, dict) for name in parameter_names(one.get("kwargs"))}


@cache
def _catalogue() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("expectations.json").read_text())


def own_classes(suite: Mapping[str, Any]) -> dict[int, str]:
    """The paths of the user's own classes that a suite names, by the expectation's index."""
    return {index: one["class_path"] for index, one in enumerate(suite["expectations"]) if "class_path" in one}


def suite_digest(suite: dict[str, Any]) -> str:
    """SHA-256 of everything that decides the verdict: each expectation's type, arguments and severity, in order."""
    return digest([{key: e[key] for key in ("type", "kwargs", "severity")} for e in suite["expectations"]])


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


def _expectation(text: SuiteText, index: int, raw: Any, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
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
            hint = nearest(error.name, parameters) or "; give it one in contract.parameters."
            text.refuse([*here, "kwargs", key], f"the suite parameter {error.name} has no value{hint}")
    severity = raw.get("severity") or "critical"
    if severity not in SEVERITIES:
        text.refuse([*here, "severity"], f"{severity!r} is not a severity; use critical, warning or info.")
    plain = {key: raw[key] for key in ("description", "meta") if raw.get(key)}
    return {
        "type": own.get("class_path", raw.get("type")),
        **own,
        "kwargs": {key: value for key, value in kwargs.items() if key not in _RUNTIME and (value or key not in _GONE)},
        "severity": severity,
        **plain,
    }


def _own_class(text: SuiteText, here: list[str | int], raw: dict[str, Any]) -> str:
    path = raw["class_path"]
    if "type" in raw:
        text.refuse(here, "an expectation has a type or a class_path, not both; leave one of them out.")
    if not isinstance(path, str) or "." not in path or not all(part.isidentifier() for part in path.split(".")):
        text.refuse([*here, "class_path"], f"{path!r} is not the path of a class; write it as package.module.Class.")
    return path


class _WithoutValue(Exception):
    """A suite parameter that contract.parameters does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


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
