"""A YAML document as plain values, each with its place in the file, so that an error names file, line and field."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import SpecError
from data_contracts.quoting import escaped

FieldPath = tuple[str | int, ...]


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
