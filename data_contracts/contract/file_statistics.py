"""What the store keeps of a scan's findings in one raw file, so that the same suite need not read it again.

Only measures that add up exactly over files are kept. Minima, maxima and sums of a sensitive column are not, because
they are, or reveal, its values. The statistics of many files are added up, so that the findings in thousands of files
are a few records. Files are grouped only by the names of their statistics: a new or removed file changes only its own
group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa
from pydantic import Field, model_validator

from data_contracts.canonical import digest
from data_contracts.contract.questions import ALL, Measure, ScanQuestion
from data_contracts.handoffs import Expectation, HandOff, Record
from data_contracts.profile.profile import Merger
from data_contracts.records import Profile

# The number of all rows, and the expectations that certainly hold.
Settled = tuple[int, set[int]]
# In the names of expectations that do not add up: distinct values, squares, and several columns in each row.
_OVER_ALL = re.compile("unique|distinct|stdev|column_pair_|multicolumn_")
AnswerFromFindings = Callable[[dict[int, ScanQuestion], pa.Schema], Settled]
# Files in a group: so many on average, and at most.
USUAL, LARGEST = 64, 256


def name_of(measure: Measure) -> str:
    """A name for a measure that quotes none of its values."""
    values = [repr(value) for value in measure.values]
    return digest([measure.sql, measure.column, values, measure.rows])[:32]


def kept(measures: Iterable[Measure], sensitive: Collection[str]) -> list[Measure]:
    """Those of the measures that add up over files and may be kept."""
    found = [one for one in dict.fromkeys(measures) if _rule(one) is not None]
    return [one for one in found if one.column not in sensitive or _rule(one) is sum]


def reads_all_files(entry: Expectation) -> bool:
    """Whether an expectation, an entry of a suite, is measured over all files, whatever the types of its columns."""
    return bool(_OVER_ALL.search(entry["type"])) or entry["kwargs"].get("row_condition") is not None


def storable(value: Any) -> bool:
    """Whether JSON can hold a measure's value; an infinite extreme is measured again."""
    return value is None or (type(value) is int) or (type(value) is float and math.isfinite(value))


def added(measure: Measure, values: Sequence[Any]) -> Any:
    """A measure's value over all files, from that over each."""
    present = [value for value in values if value is not None]
    rule = _rule(measure)
    assert rule is not None
    return rule(present) if present else (0 if rule is sum else None)


def _rule(measure: Measure) -> Callable[[list[Any]], Any] | None:
    """How a measure's values add up; None if they do not. Measures not known here are measured over all files."""
    sql = measure.sql
    if measure.rows != ALL or measure.where is not None or measure.more or "{n}" in sql:
        return None
    if sql in ("count(*)", "count({c})") or measure.condition is not None:
        return sum
    if sql == "min({c})":
        return min
    if sql in ("max({c})", "max(abs({c}::DOUBLE))"):
        return max
    if sql == "sum({c}::HUGEINT)":
        return _total
    return math.fsum if sql in ("kahan_sum({c})", "sum(abs({c}::DOUBLE))") else None


def _total(values: list[Any]) -> int:
    return sum(values)


class FileStatistics(HandOff):
    """What is kept of a file that was checked.

    Attributes:
        own: the file's own Arrow schema, serialized, in hexadecimal digits.
        text_from: as in the file's facts.
        row_groups: as in the file's facts.
        schema_of_all: digest of the schema of all files, under which the rest was found.
        rows: its rows.
        values: of measures, by `data_contracts.contract.file_statistics.name_of`.
        profile: of its rows.
    """

    own: str
    text_from: dict[str, int]
    row_groups: list[tuple[int, int]]
    schema_of_all: str
    rows: int = Field(ge=0)
    values: dict[str, int | float | None]
    profile: Profile


Value = int | float | None


class GroupedFile(Record):
    """The facts about one file of a group.

    Attributes:
        schema_at: its own schema's position in the group's `schemas`.
        text_from, row_groups: as in its statistics.
    """

    schema_at: int
    text_from: dict[str, int]
    row_groups: list[tuple[int, int]]


class StatisticsGroup(HandOff):
    """The statistics of some files, in order.

    Attributes:
        schemas: the files' different Arrow schemas, serialized, in hexadecimal digits.
        files: facts about each file.
        schema_of_all: as in each file's statistics.
        rows: of all files together.
        values: of measures, as in each file's statistics, one for each file.
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
    """Cut the names of statistics into groups: the positions, and the group's name; None for what may still grow.

    A group ends after each name that begins with certain digits, so its bounds do not depend on the files before it.
    """
    start = 0
    for at, name in enumerate(names):
        ends = int(name[:8], 16) % USUAL == 0 or at + 1 - start == LARGEST
        if ends or at + 1 == len(names):
            several = ends and at > start
            yield range(start, at + 1), f"group-{digest(list(names[start : at + 1]))[:40]}.json" if several else None
            start = at + 1


class StatisticsSum:
    """Adds up statistics and groups; the memory grows by the measures of each file alone.

    Attributes:
        rows: of all files so far.
        values: of the measures that every file has, one for each file.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.values: dict[str, list[Value]] = {}
        self._merger: Merger | None = None

    def add(self, part: FileStatistics | StatisticsGroup) -> None:
        """Add a file's statistics, or those of a group."""
        values: Mapping[str, Sequence[Value]] = (
            part.values
            if isinstance(part, StatisticsGroup)
            else {name: (value,) for name, value in part.values.items()}
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


def grouped(parts: Sequence[FileStatistics]) -> StatisticsGroup | None:
    """The group of these statistics, of which there is at least one; None if their profiles together say less.

    Moments that are too large together for float64 may be small enough again beside further files.
    """
    total, schemas = StatisticsSum(), list(dict.fromkeys(part.own for part in parts))
    for part in parts:
        total.add(part)
    profile = total.profile()
    assert profile is not None
    for at, column in enumerate(profile.columns):
        if column.moments is None and any(part.profile.columns[at].moments is not None for part in parts):
            return None
    at_schema = {own: at for at, own in enumerate(schemas)}
    return StatisticsGroup(
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
