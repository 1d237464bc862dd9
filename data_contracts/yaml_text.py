"""Reads YAML into a `Document` of plain values: text, numbers, true, false, null, lists and mappings.

Each value keeps its place in the file, so that an error names file, line and field. Values are read as LightningCLI
reads a config: `1e-3` is a number and a bare date is text; keys are always text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_contracts.errors import SpecError
from data_contracts.foreign_files import MAX_DEPTH, read_plain
from data_contracts.quoting import escaped

FieldPath = tuple[str | int, ...]
# Aliases are expanded, so a few lines of them can stand for billions of values.
MAX_VALUES = 100_000
_TOO_DEEP = "nests too deeply, or an alias contains itself; write it out"
_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# A longer number cannot be printed in an error, and no field has a use for it.
_MAX_DIGITS = 1000
_FLOAT = re.compile(
    r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*(?:[eE][-+]?\d+)?"
    r"|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)
# YAML 1.1 reads `012` as 10 and `1:30` as 90, which is rarely meant.
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+")


@dataclass(frozen=True)
class Problem:
    """One mistake: the field and a sentence about it."""

    field: FieldPath
    sentence: str


@dataclass(frozen=True)
class Document:
    """The content of a YAML text, with places.

    Attributes:
        name: the file as the user named it.
        value: plain values; in a spec a mapping.
        places: field → `file:line` (or `--set`), for each field that is written.
    """

    name: str
    value: Any
    places: dict[FieldPath, str]

    def place(self, field: FieldPath) -> str:
        """The place of a field, or of the nearest section around it that is written."""
        while field and field not in self.places:
            field = field[:-1]
        return self.places.get(field, self.name)

    def error(self, problems: Iterable[Problem]) -> SpecError:
        """All problems as one SpecError, a line for each, in the order of the file."""
        order = {place: rank for rank, place in enumerate(dict.fromkeys(self.places.values()))}
        unique = sorted(dict.fromkeys(problems), key=lambda problem: order.get(self.place(problem.field), -1))
        lines = [
            f"{self.place(problem.field)}: {dotted(problem.field)}{': ' * bool(problem.field)}{problem.sentence}"
            for problem in unique
        ]
        errors = [{"field": dotted(problem.field), "sentence": problem.sentence} for problem in unique]
        return SpecError("\n".join(map(escaped, lines)), details={"file": self.name, "errors": errors})

    def override(self, field: FieldPath, new: Document) -> None:
        """Put the value of `new` at `field` and create the sections above it; SpecError if the field cannot exist
        there.
        """
        here = self.value
        for depth, part in enumerate(field[:-1]):
            here = self._step(here, part, field[:depth])
        last = field[-1]
        if isinstance(here, list):
            self._index(here, last, field[:-1], end=len(here))
            here[int(last) : int(last) + 1] = [new.value]
        elif isinstance(here, dict):
            here[last] = new.value
        else:
            raise self._no_place(here, last, field[:-1])
        # In the values' own paths, a list's indices are numbers.
        full = _numbered(self.value, field)
        for old in [place for place in self.places if place[: len(full)] == full]:
            del self.places[old]
        self.places.update({full + inner: place for inner, place in new.places.items()})
        for depth in range(1, len(full)):
            self.places.setdefault(full[:depth], new.places[()])

    def _step(self, here: Any, part: str | int, above: FieldPath) -> Any:
        if isinstance(here, list):
            self._index(here, part, above, end=len(here) - 1)
            return here[int(part)]
        if not isinstance(here, dict):
            raise self._no_place(here, part, above)
        if here.get(part) is None:
            here[part] = {}
        return here[part]

    def _index(self, here: list[Any], part: str | int, above: FieldPath, end: int) -> None:
        if not (str(part).isdecimal() and int(part) <= end):
            raise SpecError(
                f"--set: {dotted((*above, part))}: {dotted(above)} is a list of {len(here)}; "
                f"name an entry by its number, counting from 0."
            )

    def _no_place(self, here: Any, part: str | int, above: FieldPath) -> SpecError:
        return SpecError(
            f"--set: {dotted((*above, part))}: {dotted(above)} is {shown(here)}, which has no fields; "
            f"set {dotted(above)} as a whole."
        )


def dotted(field: FieldPath) -> str:
    """A field as people write it: `promote.gates.0.metric`."""
    return ".".join(str(part) for part in field)


def shown(value: Any) -> str:
    """A value in an error message: short, one line, as YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"


def _numbered(value: Any, field: FieldPath) -> FieldPath:
    full: list[str | int] = []
    for part in field:
        full.append(int(part) if isinstance(value, list) else part)
        value = value[full[-1]]
    return tuple(full)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without two surprises: `1e-3` as text, and `2026-01-01` as a date object."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_document(path: Path, what: str, when_missing: str) -> Document:
    """Read a YAML file that holds a mapping.

    Args:
        what: what the file is, for errors: `a pipeline spec`.
        when_missing: what to do about a missing or empty file.

    Raises:
        SpecError: no such file, unreadable, empty, not YAML, a key written twice, or not a mapping.
    """
    name = _short(path)
    try:
        text = read_plain(path).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise SpecError(f"{name}: there is no such file; {when_missing}.") from error
    except IsADirectoryError as error:
        raise SpecError(f"{name}: is a folder; name the YAML file in it that is {what}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{name}: is not text in UTF-8 (byte {error.start}); name {what}.") from error
    except OSError as error:
        raise SpecError(f"{name}: cannot be read ({error.strerror}); check its permissions.") from error
    document = parse(text, name)
    if document.value is None:
        raise SpecError(f"{name}: is empty; {when_missing}.")
    if not isinstance(document.value, dict):
        raise SpecError(f"{document.place(())}: {what} is a mapping (`key: value` lines), not {shown(document.value)}.")
    return document


def _short(path: Path) -> str:
    """A file below the current folder relative to it; any other as it was given."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def parse(text: str, name: str, place: str | None = None) -> Document:
    """Parse YAML text; SpecError with the line of the mistake.

    Args:
        name: the text before the line number in places.
        place: instead, one place for everything in the text.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        walk = _Walk(loader, name, place)
        walk.places[()] = place or name
        value = None if root is None else walk.value(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SpecError(f"{place or f'{name}:{mark.line + 1 if mark else 1}'}: {_syntax(error)}.") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise SpecError(
            f"{place or f'{name}:{line}'}: is not valid YAML: it has a control character; remove it."
        ) from error
    except RecursionError as error:
        raise SpecError(f"{place or name}: {_TOO_DEEP}.") from error
    return Document(name, value, walk.places)


def _syntax(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "it cannot be parsed"
    if "'\\t'" in problem:
        return "is not valid YAML: a tab stands where YAML wants spaces; indent with spaces"
    if "but found another document" in problem:
        return "is not valid here: a second document begins (`---`); keep one"
    return f"is not valid YAML: {problem}; look at this line and the one before (indentation, colons, quotes)"


class _Walk:
    """Turns YAML nodes into plain values, and notes the line of each."""

    def __init__(self, loader: _Loader, name: str, place: str | None) -> None:
        self._loader, self._name, self._place = loader, name, place
        self._seen = 0
        self.places: dict[FieldPath, str] = {}

    def value(self, node: yaml.Node, field: FieldPath) -> Any:
        self._count(node)
        if len(field) > MAX_DEPTH:
            raise SpecError(f"{self._at(node)}: {_TOO_DEEP}.")
        if not field or isinstance(field[-1], int):
            self.places[field] = self._at(node)  # a key has its own line already
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*field, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            values = {}
            for key, (key_node, value_node) in self._pairs(node, field).items():
                self.places[(*field, key)] = self._at(key_node)
                values[key] = self.value(value_node, (*field, key))
            return values
        return self._scalar(node, field)

    def _count(self, node: yaml.Node) -> None:
        self._seen += 1
        if self._seen > MAX_VALUES:
            raise SpecError(f"{self._at(node)}: stands for more than {MAX_VALUES} values; use fewer aliases.")

    def _pairs(self, node: yaml.MappingNode, field: FieldPath) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            self._count(value_node)  # merges are expanded like aliases
            if key_node.tag == _MERGE:
                for base in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    self._count(base)
                    if not isinstance(base, yaml.MappingNode):
                        raise self._wrong(key_node, field, "`<<` merges mappings only; give it one")
                    for key, pair in self._pairs(base, field).items():
                        merged.setdefault(key, pair)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._wrong(key_node, field, "a key must be text, not a list or mapping; put quotes around it")
            key = self._text(key_node, key_node.value, field)
            if key in own:
                first = own[key][0].start_mark.line + 1
                raise self._wrong(key_node, (*field, key), f"stands twice, first in line {first}; keep one")
            own[key] = (key_node, value_node)
        return {**merged, **own}

    def _scalar(self, node: yaml.Node, field: FieldPath) -> str | int | float | bool | None:
        if node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS:
            raise self._wrong(node, field, f"is a number of more than {_MAX_DIGITS} digits; quote it as text")
        if node.tag == "tag:yaml.org,2002:int":
            if _OCTAL.fullmatch(node.value):
                raise self._wrong(
                    node, field, f"{node.value} would be an octal number; leave out the 0, or quote it as text"
                )
            if _SEXAGESIMAL.fullmatch(node.value):
                raise self._wrong(
                    node, field, f"{node.value} would be a number to base 60; write it out, or quote it as text"
                )
        try:
            value = self._loader.construct_object(node)
        except (yaml.constructor.ConstructorError, ValueError) as error:
            raise self._wrong(node, field, f"{node.value!r} cannot be read as {node.tag}; quote it as text") from error
        if value is not None and not isinstance(value, str | int | float):
            raise self._wrong(node, field, f"{node.value!r} is a {node.tag} value; quote it as text")
        if isinstance(value, str):
            return self._text(node, value, field)
        if isinstance(value, float) and not math.isfinite(value):
            raise self._wrong(node, field, f"must be a finite number, got {node.value}")
        return value

    def _text(self, node: yaml.Node, text: str, field: FieldPath) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise self._wrong(node, field, f"holds half a character ({half}); write all of it") from error
        return text

    def _wrong(self, node: yaml.Node, field: FieldPath, sentence: str) -> SpecError:
        return Document(self._name, None, {field: self._at(node)}).error([Problem(field, sentence)])

    def _at(self, node: yaml.Node) -> str:
        return self._place or f"{self._name}:{node.start_mark.line + 1}"
