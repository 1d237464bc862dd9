"""Writes docs/reference/: the spec's fields from its models, the options of the commands from their parser.

`python .ci/reference.py spec` and `python .ci/reference.py cli` print a page each. `make reference` writes them, and a
test compares them with the sources.
"""

from __future__ import annotations

import argparse
import re
import sys
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.base import Section, Shorthand, descriptions
from flows.cli import parser

# What a number counts, by how its field's name ends.
UNITS = {
    "_bytes": "bytes",
    "_s": "seconds",
    "_rows": "rows",
    "batch_size": "rows",
    "_steps": "steps",
    "_blocks": "blocks",
    "_ranks": "ranks",
    "nodes": "nodes",
    "devices": "ranks",
    "workers": "processes",
    "_factor": "times",
}
PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): ""}
BOUNDS = {annotated_types.Ge: "≥", annotated_types.Gt: ">", annotated_types.Le: "≤", annotated_types.Lt: "<"}
SPEC_TOP = """# Fields of the spec

`make reference` generates this page from the sources. Each heading is the path of a section in the spec: `<name>`
stands for a name that you choose, and `[]` for each entry of a list. `trainwright schema` prints the same as a JSON
Schema.
"""
# Options of every command, named once at the top of the page.
COMMON = {"--help", "--json", "--no-color", "--quiet"}
CLI_TOP = """# Options of the commands

`make reference` generates this page from the sources. [Commands](../commands.md) says what each command does. Every
command takes `--json` (one JSON object on stdout; logs go to stderr), `--quiet` (only errors and
the final line), `--no-color` and `--help`.
"""


def sections(model: type[Section] = PipelineSpec, path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Each section of the spec with its path, in the order of the fields."""
    yield path, model
    for name, field in model.model_fields.items():
        for mark, inner in _models(field.annotation):
            yield from sections(inner, f"{path}.{name}{mark}".removeprefix("."))


def _models(kind: Any, mark: str = "") -> Iterator[tuple[str, type[Section]]]:
    if isinstance(kind, type) and issubclass(kind, Section):
        yield mark, kind
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner = inner[:1]
    added = {list: "[]", dict: ".<name>"}.get(origin, "")
    for one in inner if origin is not Literal else ():
        yield from _models(one, mark + added)


def spec_page() -> str:
    """The page of the fields: a table for each section."""
    parts = [SPEC_TOP]
    for path, model in sections():
        doc = _one_line(model.__doc__ or "")
        if issubclass(model, Shorthand) and "short for" not in doc:
            doc += f" A plain string is short for `{model.short_for}`."
        title = f"`{path}`" if path else "The spec"
        parts.append(f"## {title}\n\n{doc}\n")
        if not model.model_fields:
            continue
        rows = ["| field | type | unit | default | meaning |", "|---|---|---|---|---|"]
        rows += [_field(name, field, descriptions(model).get(name, "")) for name, field in model.model_fields.items()]
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _field(name: str, field: FieldInfo, meaning: str) -> str:
    kind = _type(field.annotation)
    bounds = [
        (BOUNDS[type(one)], getattr(one, type(one).__name__.lower())) for one in field.metadata if type(one) in BOUNDS
    ]
    limits = [f"{sign} {value}" for sign, value in bounds]
    number = "number" in kind
    unit = next((unit for end, unit in UNITS.items() if number and f"_{name}".endswith(end)), "")
    cells = [f"`{name}`", " ".join([kind, *limits]), unit, _default(field), _one_line(meaning)]
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Section):
        return "its fields' defaults"
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "empty" if value in ([], {}) else f"`{value}`"


def _type(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Section):
        return "section"
    if origin is Annotated:
        return _type(inner[0])
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(text for one in inner if (text := _type(one))))
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"mapping of {_type(inner[0])} to {_type(inner[1])}"
    return PLAIN.get(kind, "any value")


def cli_page() -> str:
    """The page of the options: a table for each command."""
    [commands] = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    parts = [CLI_TOP]
    for name, command in commands.choices.items():
        parts.append(f"## `{name}`\n\n{command.description}\n")
        own = [one for one in command._actions if not COMMON & {*one.option_strings}]
        if own:
            rows = ["| argument | default | meaning |", "|---|---|---|", *map(_option, own)]
            parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _option(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else str(action.metavar or "/".join(action.choices or ()) or action.dest.upper())
    named = f"{action.option_strings[0]} {value}".strip() if action.option_strings else value
    if action.required:
        default = "*required*"
    else:
        default = "" if action.default in (None, False, "", []) else f"`{action.default}`"
    cells = [f"`{named}`", default, action.help or ""]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.stdout.write({"spec": spec_page, "cli": cli_page}[sys.argv[1]]())
