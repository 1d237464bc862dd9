"""The parts of many raw files, added up, so that the findings in thousands of files are a few records.

Files are grouped only by the names of their parts. So a new or removed file changes only its own group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from pydantic import Field, model_validator

from data_contracts.canonical import digest
from data_contracts.file_part import FilePart
from data_contracts.handoffs import HandOff, Record
from data_contracts.profile.merge import Merger
from data_contracts.profile.record import Profile

# Files in a group: so many on average, and at most.
USUAL, LARGEST = 64, 256
Value = int | float | None


class GroupedFile(Record):
    """The facts about one file of a group.

    Attributes:
        schema_at: its own schema's position in the group's `schemas`.
        text_from, row_groups: as in its part.
    """

    schema_at: int
    text_from: dict[str, int]
    row_groups: list[tuple[int, int]]


class PartGroup(HandOff):
    """The parts of some files, in order.

    Attributes:
        schemas: the files' different Arrow schemas, serialized, in hexadecimal digits.
        files: facts about each file.
        schema_of_all: as in each part.
        rows: of all files together.
        values: of measures, as in each part, one for each file.
        profile: of all rows.
    """

    schemas: list[str]
    files: list[GroupedFile]
    schema_of_all: str
    rows: int = Field(ge=0)
    values: dict[str, list[Value]]
    profile: Profile

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not all(0 <= one.schema_at < len(self.schemas) for one in self.files):
            raise ValueError("a file has none of the group's schemas")
        if not all(len(every) == len(self.files) for every in self.values.values()):
            raise ValueError("a measure does not have one value for each file")
        return self


def cut(names: Sequence[str]) -> Iterator[tuple[range, str | None]]:
    """Cut the names of parts into groups: the positions, and the group's name; None for what may still grow.

    A group ends after each name that begins with certain digits, so its bounds do not depend on the files before it.
    """
    start = 0
    for at, name in enumerate(names):
        ends = int(name[:8], 16) % USUAL == 0 or at + 1 - start == LARGEST
        if ends or at + 1 == len(names):
            several = ends and at > start
            yield range(start, at + 1), f"group-{digest(list(names[start : at + 1]))[:40]}.json" if several else None
            start = at + 1


class PartSum:
    """Adds up parts and groups; the memory grows by the measures of each file alone.

    Attributes:
        rows: of all files so far.
        values: of the measures that every file has, one for each file.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.values: dict[str, list[Value]] = {}
        self._merger: Merger | None = None

    def add(self, part: FilePart | PartGroup) -> None:
        """Add a file's part, or those of a group."""
        values: Mapping[str, Sequence[Value]] = (
            part.values if isinstance(part, PartGroup) else {name: (value,) for name, value in part.values.items()}
        )
        if self._merger is None:
            self._merger, self.values = Merger(), {name: [] for name in values}
        self.rows += part.rows
        self.values = {name: every for name, every in self.values.items() if name in values}
        for name, every in self.values.items():
            every.extend(values[name])
        self._merger.add(part.profile)

    def profile(self) -> Profile | None:
        """The profile of all files so far; None without files."""
        return None if self._merger is None else self._merger.record()


def grouped(parts: Sequence[FilePart]) -> PartGroup | None:
    """The group of these parts, of which there is at least one; None if their profiles together say less.

    Moments that are too large together for float64 may be small enough again beside further files.
    """
    total, schemas = PartSum(), list(dict.fromkeys(part.own for part in parts))
    for part in parts:
        total.add(part)
    profile = total.profile()
    assert profile is not None
    for at, column in enumerate(profile.columns):
        if column.moments is None and any(part.profile.columns[at].moments is not None for part in parts):
            return None
    at_schema = {own: at for at, own in enumerate(schemas)}
    return PartGroup(
        schemas=schemas,
        files=[
            GroupedFile(schema_at=at_schema[part.own], text_from=part.text_from, row_groups=part.row_groups)
            for part in parts
        ],
        schema_of_all=parts[0].schema_of_all,
        rows=total.rows,
        values=total.values,
        profile=profile,
    )
