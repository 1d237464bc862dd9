"""Assigns rows to train, val and test: by hash of a key, by time, by position, or by a column that names the split.

A row's split by key depends on its own key and the seed alone, so it never changes when data is added. A `Splitter`
assigns batch by batch, in any process. It notes facts that only all rows can show (a null somewhere, a key in two
splits), unit by unit; `Notes` are merged, and judged at the end. For a split by time, the times at which a split begins
are found in bounded memory. Keys in two splits of a split by time or column are found in bounded memory, too: equal
keys meet by digest.

A split by position sends the first pieces of each document to train, the last to test, with gaps if asked. A document
of n pieces is cut at the nearest whole piece to each share of n. If that leaves a split without a piece of it, the
whole document goes to one split, drawn by the hash of its name as in a split by key.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts import arrow_rows
from data_contracts.arrow_rows import Numbers, decoded_column, is_text, number_before
from data_contracts.canonical import valid_name
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from data_contracts.quoting import MASK, absent_shown, type_shown
from training.shard.key_digests import UnusableKey, group_starts, key_digests
from training.shard.spill import Spill, Spilled

REQUIRED = ("train", "test")
LEFT_OUT = -1
SECOND = 10**6
_LATEST_S = (2**63 - 1) // SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Select = Callable[[int], tuple[int, int, int]]
COLUMNS = ("document", "position", "pieces")
# Shares are fractions of 2^32 and are compared as integers, so every machine rounds alike.
_ONE = 32
USUAL = ("train", "val", "test")
UnitRow = tuple[int, int]  # number of a unit, number of a row in it
# Records that are compared at once, of about 50 bytes each.
CHECKED_ROWS = 2**18
_SCHEMA = pa.schema(
    [
        ("key", pa.uint64()),
        ("rest", pa.uint64()),
        ("split", pa.string()),
        *((n, pa.int64()) for n in ("unit", "first", "last")),
    ]
)


class Splitter:
    """Assigns the rows of batches to splits.

    Args:
        schema: the rows' own types.
        bounds: for `time` with fractions: the times at which the later splits begin, see `cut`.
        sensitive: columns whose values no message may show.

    Attributes:
        names: the splits in order; with `column`, those seen so far, in order of appearance.

    Raises:
        UsageError: a column is missing or unusable.
    """

    def __init__(
        self,
        spec: SplitSpec,
        schema: pa.Schema,
        bounds: Sequence[int] | None = None,
        sensitive: Collection[str] = (),
    ) -> None:
        there = set(schema.names)
        for name in columns_needed(spec):
            if name not in there:
                raise UsageError(
                    f"{_setting(spec, name)}: the data has no column {absent_shown(name, schema.names)}.",
                    remedy="Name one of these.",
                )
        self.spec, self._sensitive = spec, sensitive
        self.notes = Notes()
        self._place_of: dict[str, int] = {}
        self._last: tuple[NDArray[np.uint64], int] | None = None  # the digest and position of the last document's row
        if spec.boundaries:
            bounds = [boundary(text) for text in spec.boundaries.values()]
        self._bounds = np.array(bounds or [], np.int64)
        later = np.cumsum(list(shares(spec).values()))[:-1]
        # A share is a fraction of 2^64 and is compared as an integer, so every machine rounds alike.
        self._thresholds = np.array([min(round(share * 2**64), 2**64 - 1) for share in later.tolist()], np.uint64)
        self.names: list[str] = list(shares(spec)) if spec.names is not None else []
        if spec.boundaries:
            self.names = ["train", *spec.boundaries]
        # Types are checked before the first row is read.
        needed = [schema.field(name) for name in columns_needed(spec)]
        nothing = pa.table([pa.chunked_array([], field.type) for field in needed], schema=pa.schema(needed))
        if spec.column is not None and pa.types.is_nested(decoded_column(nothing.column(spec.column)).type):
            raise UsageError(
                f"shards.split.column: {spec.column!r} is {schema.field(spec.column).type}, which cannot name a split.",
                remedy="Name a column of texts.",
            )
        if keys_of(spec):
            self.digests(nothing)
        if spec.time is not None:
            self.times(nothing, (0, 0))
        for name in COLUMNS[1:] if spec.by is not None else ():
            if not pa.types.is_integer(schema.field(name).type):
                raise UsageError(
                    f"shards.split.by: the column {name} is {schema.field(name).type}, not whole numbers.",
                    remedy="Read documents with format: text.",
                )

    def assign(self, rows: pa.Table, at: UnitRow) -> NDArray[np.int16]:
        """Index into `names` of each row's split, or LEFT_OUT: (rows,) int16. `at`: place of the first row."""
        if self.spec.time is not None:
            return self._by_time(rows, at)
        if self.spec.column is not None:
            return self._by_column(rows.column(self.spec.column), at)
        if self.spec.by is not None:
            return self._by_position(rows)
        digests = self.digests(rows)
        self.notes.look_at(digests[:, 0])
        return self._drawn(digests)

    def _drawn(self, digests: NDArray[np.uint64]) -> NDArray[np.int16]:
        drawn = np.ascontiguousarray(digests[:, 0])
        return np.searchsorted(self._thresholds, drawn, side="right").astype(np.int16)

    def times(self, rows: pa.Table, at: UnitRow) -> NDArray[np.int64]:
        """The times in microseconds since 1970 (UTC), (n,) int64, rounded down, without rows that have no time."""
        column = decoded_column(rows.column(self.spec.time))
        if column.null_count:
            self._note_nulls(column, at)
            column = column.drop_null()
        if is_text(column.type):
            column, zone = parsed(column, self.spec)
            if len(column):
                self.notes.zones.add(zone)
        return microseconds(column, self.spec)

    def digests(self, rows: pa.Table) -> NDArray[np.uint64]:
        """The digests of the rows' keys: (rows, 2) uint64."""
        try:
            return key_digests([rows.column(name) for name in keys_of(self.spec)], self.spec.seed)
        except UnusableKey as error:
            name = keys_of(self.spec)[error.column]
            raise UsageError(f"shards.split.key: {name!r} {error}.", remedy="Name another column.") from error

    def _by_position(self, rows: pa.Table) -> NDArray[np.int16]:
        shares_of, gap, names = list(shares(self.spec).values()), self.spec.gap, self.digests(rows)
        position, pieces = (rows.column(name).to_numpy().astype(np.int64) for name in COLUMNS[1:])
        first = starts(names, position, self._last)
        self.notes.documents.count(pieces[first], shares_of, gap)
        if rows.num_rows:
            self._last = (names[-1], int(position[-1]))
        found = by_position(position, pieces, shares_of, gap, self._drawn(names))
        if left_out := int((found == LEFT_OUT).sum()):
            self.notes.dropped["gap"] = self.notes.dropped.get("gap", 0) + left_out
        return found

    def _by_time(self, rows: pa.Table, at: UnitRow) -> NDArray[np.int16]:
        found = np.full(rows.num_rows, LEFT_OUT, np.int16)
        nulls = self.notes.nulls
        when = self.times(rows, at)
        if self.notes.nulls > nulls:
            return found  # the rows will be refused
        found[:] = np.searchsorted(self._bounds, when, side="right")
        if self.spec.gap_s:
            gap = np.zeros(len(when), bool)
            for bound in self._bounds.tolist():
                gap |= (when >= bound - round(self.spec.gap_s * SECOND)) & (when < bound)
            found[gap] = LEFT_OUT
            self.notes.dropped["gap"] = self.notes.dropped.get("gap", 0) + int(gap.sum())
        return found

    def _by_column(self, column: pa.ChunkedArray, at: UnitRow) -> NDArray[np.int16]:
        column = decoded_column(column)
        if column.null_count:
            self._note_nulls(column, at)
        values = column.combine_chunks().dictionary_encode()
        indices = values.indices.fill_null(0).to_numpy()
        places = []
        for index, value in enumerate(values.dictionary.to_pylist()):
            name = str(value)
            try:
                valid_name(name)
                if self.spec.column in self._sensitive and name not in USUAL:
                    raise ValueError("the names of splits appear in files and reports")
            except ValueError as error:
                if self.notes.bad_name is None:
                    row = int(np.flatnonzero(indices == index)[0])
                    self.notes.bad_name = ((at[0], at[1] + row), str(error))
            if name not in self._place_of:
                self._place_of[name] = len(self.names)
                self.names.append(name)
            places.append(self._place_of[name])
        if not places:
            return np.full(len(column), LEFT_OUT, np.int16)
        found = np.array(places, np.int16)[indices]
        if column.null_count:
            found[column.is_null().to_numpy()] = LEFT_OUT
        return found

    def _note_nulls(self, column: pa.ChunkedArray, at: UnitRow) -> None:
        self.notes.nulls += column.null_count
        if self.notes.first_null is None:
            self.notes.first_null = (at[0], at[1] + int(np.flatnonzero(column.is_null().to_numpy())[0]))


def columns_needed(spec: SplitSpec) -> list[str]:
    """The columns that a `Splitter` reads."""
    by = COLUMNS if spec.by is not None else ()
    named = (*keys_of(spec), spec.time, spec.column, *by)
    return list(dict.fromkeys(name for name in named if name is not None))


def in_order(names: Collection[str]) -> list[str]:
    """Splits that a column names: train, val and test first, others by name, whichever row came first."""
    return sorted(names, key=lambda name: (USUAL.index(name) if name in USUAL else len(USUAL), name))


def keys_of(spec: SplitSpec) -> list[str]:
    """The columns of the key; [] without one. Of a split by position, that of documents too short to be cut."""
    if spec.by is not None:
        return [COLUMNS[0]]
    return [spec.key] if isinstance(spec.key, str) else list(spec.key or [])


def _setting(spec: SplitSpec, column: str) -> str:
    if spec.by is not None:
        return "shards.split.by"
    if column in keys_of(spec):
        return "shards.split.key"
    return "shards.split.time" if column == spec.time else "shards.split.column"


def selector(files: Sequence[Path], joined: Path) -> Select:
    """A function from a rank to the time at that rank, how many times are less, and how many are equal.

    Args:
        files: times as raw int64.
        joined: a new file for all of them, which is mapped, so that memory does not limit their number.
    """
    with joined.open("wb") as out:
        for path in files:
            with path.open("rb") as file:
                shutil.copyfileobj(file, out)
    times = np.memmap(joined, np.int64, "r+")

    def select(rank: int) -> tuple[int, int, int]:
        times.partition(rank)
        time = times[rank]
        return int(time), int(np.count_nonzero(times[:rank] < time)), int(np.count_nonzero(times == time))

    return select


def cut(select: Select, num_rows: int, spec: SplitSpec, sensitive: Collection[str] = ()) -> list[int]:
    """The times at which the later splits begin, so that the splits have their fractions of the rows.

    Args:
        select: gives the time at a rank, how many times are less, and how many are equal.
    """
    share_of = shares(spec)
    names = list(share_of)
    bounds = []
    for before, name, share in zip(names, names[1:], np.cumsum(list(share_of.values())).tolist(), strict=False):
        at = round(share * num_rows)
        if at >= num_rows:
            raise UsageError(
                f"shards.split.time leaves no rows for {name!r}; there are {num_rows} rows in all.",
                remedy="Give more data, or change shards.split.fractions.",
            )
        time, less, same = select(at)
        if at > less:
            when = "" if spec.time in sensitive else _iso(time)
            shown = MASK if spec.time in sensitive else when or "a time outside of the years 1 to 9999"
            raise UsageError(
                f"shards.split.time: {shown} would be in both {before!r} and {name!r}, because "
                f"{same} rows have this time.",
                remedy=f"Set where {name!r} begins with shards.split.boundaries"
                + (f", such as {{{name}: {when}}}." if when else "."),
            )
        bounds.append(time)
    return bounds


def _iso(time: int) -> str:
    """A time in microseconds since 1970 in ISO format; "" if Python's years do not reach it."""
    try:
        return (_EPOCH + timedelta(microseconds=time)).isoformat()
    except OverflowError:
        return ""


def shares(spec: SplitSpec) -> dict[str, float]:
    """The splits that have a share, with their shares."""
    return {name: share for name, share in spec.fractions.items() if share > 0}


def microseconds(column: pa.ChunkedArray, spec: SplitSpec) -> NDArray[np.int64]:
    """Microseconds since 1970 (UTC; times without a zone count as UTC; numbers are seconds), (n,), rounded down."""
    type_ = column.type
    if pa.types.is_null(type_):
        return np.zeros(0, np.int64)  # all values are null and were left out
    if arrow_rows.is_time(type_):
        return arrow_rows.microseconds(column).to_numpy()
    if pa.types.is_integer(type_):
        return _within(column.cast(pa.int64()).to_numpy(), spec) * SECOND
    if pa.types.is_floating(type_):
        seconds = column.to_numpy().astype(np.float64)
        if not np.isfinite(seconds).all():
            raise UsageError(
                f"shards.split.time: {spec.time!r} has rows whose time is not finite.",
                remedy="Correct or drop these rows in the data.",
            )
        return np.floor(_within(seconds, spec) * SECOND).astype(np.int64)
    raise UsageError(
        f"shards.split.time: {spec.time!r} is {type_shown(type_)}, which is not a time.",
        remedy="Name a column with times or dates.",
    )


def _within(seconds: NDArray[Any], spec: SplitSpec) -> NDArray[Any]:
    if len(seconds) and (seconds.max() > _LATEST_S or seconds.min() < -_LATEST_S):
        raise UsageError(
            f"shards.split.time: {spec.time!r} has numbers beyond {_LATEST_S} seconds; they look like micro- or "
            "nanoseconds.",
            remedy="Make them timestamps, or seconds, in the data.",
        )
    return seconds


def parsed(column: pa.ChunkedArray, spec: SplitSpec) -> tuple[pa.ChunkedArray, bool]:
    """Texts as times, and whether they have a time zone; refused unless all of them or none of them have a zone."""
    for type_ in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return column.cast(type_), type_.tz is not None
        except pa.ArrowInvalid:
            continue
    raise no_times(spec)


def no_times(spec: SplitSpec) -> UsageError:
    """The error for texts of which at least one is not a time, or has a zone where others have none."""
    return UsageError(
        f"shards.split.time: {spec.time!r} holds text that is not an ISO 8601 time in every row.",
        remedy="Write every time as ISO 8601, all with a time zone or none, or make them timestamps in the data.",
    )


def boundary(text: str) -> int:
    """An ISO time in microseconds since 1970 (UTC)."""
    when = datetime.fromisoformat(text)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


@dataclass
class Documents:
    """How many documents there are, how many are too short to be cut, and how many of these only because of the gap."""

    all: int = 0
    short: int = 0
    by_gap: int = 0

    def count(self, pieces: NDArray[np.int64], shares: Sequence[float], gap: int) -> None:
        """Add documents of so many pieces: (documents,)."""
        self.all += len(pieces)
        self.short += int(too_short(pieces, shares, gap).sum())
        self.by_gap += int((too_short(pieces, shares, gap) & ~too_short(pieces, shares, 0)).sum())

    def merge(self, other: Documents) -> None:
        """Add the documents of later units."""
        self.all, self.short, self.by_gap = self.all + other.all, self.short + other.short, self.by_gap + other.by_gap


def starts(
    names: NDArray[np.uint64], position: NDArray[np.int64], last: tuple[NDArray[np.uint64], int] | None
) -> NDArray[np.bool_]:
    """Whether each row is of another document than the row before it: (rows,) bool.

    Args:
        names: digests of the documents' names: (rows, 2).
        last: digest and position of the row before these; None if these are the first.
    """
    found = np.ones(len(position), bool)
    # Rows of a document stand together, in order; two sources may have a document of the same name.
    found[1:] = (names[1:] != names[:-1]).any(1) | (position[1:] <= position[:-1])
    if last is not None and len(position):
        found[0] = (names[0] != last[0]).any() or position[0] <= last[1]
    return found


def too_short(pieces: NDArray[np.int64], shares: Sequence[float], gap: int) -> NDArray[np.bool_]:
    """Whether documents of so many pieces are too short to be cut: a split would get no piece of them."""
    short = np.zeros(len(pieces), bool)
    before = np.zeros(len(pieces), np.int64)
    for bound in _bounds(pieces, shares):
        short |= bound - gap <= before
        before = bound
    return short | (before >= pieces)


def _bounds(pieces: NDArray[np.int64], shares: Sequence[float]) -> list[NDArray[np.int64]]:
    """The first position of each later split in documents of so many pieces."""
    parts = [round(share * 2**_ONE) for share in np.cumsum(shares)[:-1].tolist()]
    return [(pieces * part + (1 << (_ONE - 1))) >> _ONE for part in parts]


def by_position(
    position: NDArray[np.int64], pieces: NDArray[np.int64], shares: Sequence[float], gap: int, drawn: NDArray[np.int16]
) -> NDArray[np.int16]:
    """The index of each row's split, or LEFT_OUT: (rows,) int16.

    Args:
        position, pieces: the rows' columns.
        shares: of the splits, in order.
        gap: pieces before each boundary that are left out.
        drawn: the split of each row's document, if it is too short to be cut: (rows,).
    """
    found = np.zeros(len(position), np.int16)
    gone = np.zeros(len(position), bool)
    for bound in _bounds(pieces, shares):
        found += position >= bound
        gone |= (position >= bound - gap) & (position < bound)
    short = too_short(pieces, shares, gap)
    found[gone] = LEFT_OUT
    found[short] = drawn[short]
    return found


@dataclass
class Notes:
    """Observations in some units' rows that can be judged only with all rows.

    Attributes:
        nulls: rows without a time or a split, and the first of them.
        bad_name: the first row whose column does not name a split, and the column's value.
        zones: whether texts with (True) or without (False) a time zone were seen.
        dropped: rows left out, by reason.
        documents: counted by a split by position.
        key: the digest of a row's key, for a split by key alone.
        several_keys: whether another row has another.
    """

    nulls: int = 0
    first_null: UnitRow | None = None
    bad_name: tuple[UnitRow, str] | None = None
    zones: set[bool] = field(default_factory=set)
    dropped: dict[str, int] = field(default_factory=dict)
    documents: Documents = field(default_factory=Documents)
    key: int | None = None
    several_keys: bool = False

    def look_at(self, digests: NDArray[np.uint64]) -> None:
        """Note whether rows have several keys: the first half of the digest of each row's key, (rows,)."""
        if len(digests) and not self.several_keys:
            self.key = int(digests[0]) if self.key is None else self.key
            self.several_keys = bool((digests != self.key).any())

    def merge(self, other: Notes) -> None:
        """Add the notes about later units."""
        self.nulls += other.nulls
        self.first_null = self.first_null or other.first_null
        self.bad_name = self.bad_name or other.bad_name
        self.zones |= other.zones
        self.documents.merge(other.documents)
        if other.key is not None:
            self.several_keys |= other.several_keys or self.key not in (None, other.key)
            self.key = other.key
        for reason, rows in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + rows

    @property
    def spoilt(self) -> bool:
        """Whether the rows will be refused."""
        return bool(self.nulls or self.bad_name or len(self.zones) > 1)


def judge(
    notes: Notes,
    spec: SplitSpec,
    first_rows: Sequence[int],
    sensitive: Collection[str] = (),
    left_out: Numbers | None = None,
) -> None:
    """UsageError if the notes about all rows show that they cannot be split.

    Args:
        first_rows: per unit, how many rows all units before it have.
        left_out: the numbers of rows that no unit has.
    """

    def number(place: UnitRow) -> int:
        row = first_rows[place[0]] + place[1]
        return row if left_out is None else number_before(row, left_out)

    if notes.nulls and notes.first_null is not None:
        what = f"shards.split.column: rows without a value in {spec.column!r} belong to no split"
        if spec.time is not None:
            what = f"shards.split.time: {spec.time!r} has rows without a time"
        raise UsageError(
            f"{what}: {notes.nulls}, the first is row {number(notes.first_null)}.",
            remedy="Fill or drop them in the data, and let the contract check for them.",
        )
    if len(notes.zones) > 1:
        raise no_times(spec)
    if notes.bad_name is not None:
        place, why = notes.bad_name
        if spec.column in sensitive:
            why = f"{MASK} cannot be a name; that of a sensitive column is {', '.join(USUAL[:-1])} or {USUAL[-1]}"
        raise UsageError(
            f"shards.split.column: row {number(place)} names no split in {spec.column!r}: {why}.",
            remedy="Correct the row, or name another column.",
        )


def refuse_empty(counts: dict[str, int], required: Collection[str], who: str, why: str = "") -> None:
    """UsageError if `who` (a field of the spec) leaves a required split without rows; `why` ends the sentence."""
    for name in required:
        if not counts.get(name):
            left = ", ".join(f"{split} {number}" for split, number in counts.items()) or "no rows at all"
            raise UsageError(
                f"{who} leaves no rows for {name!r} ({left}){why}.",
                remedy=f"Change {who} so that {name!r} gets some, or give more data.",
                details={"split": name, "rows": counts},
            )


@dataclass(frozen=True)
class Shared:
    """A row whose key is in another split too, both splits, and the number of such keys."""

    row: int
    here: str
    there: str
    keys: int


def note_sides(
    spill: Spill, digests: NDArray[np.uint64], of_row: NDArray[np.int16], names: Sequence[str], at: UnitRow
) -> None:
    """Record in which splits keys were seen: the digests of the rows' keys, (rows, 2), and their splits, (rows,).

    Rows that are left out are in no split. `at`: place of the first row.
    """
    kept = np.flatnonzero(of_row != LEFT_OUT)
    if not len(kept):
        return
    key, rest, split = digests[kept, 0], digests[kept, 1], of_row[kept]
    # One record for each key and split of a batch, with the first and the last of its rows.
    order = np.lexsort((kept, split, rest, key))
    key, rest, split, rows = key[order], rest[order], split[order], kept[order] + at[1]
    begins = group_starts(key, rest, split)
    ends = np.append(begins[1:], len(key)) - 1
    columns = {
        "key": key[begins],
        "rest": rest[begins],
        "split": pa.array(list(names), pa.string()).take(pa.array(split[begins])),
        "unit": np.full(len(begins), at[0], np.int64),
        "first": rows[begins],
        "last": rows[ends],
    }
    spill.put("", key[begins], pa.table(columns, schema=_SCHEMA))


def find_shared(noted: Spilled, first_rows: Sequence[int]) -> Shared | None:
    """The first row whose key's last row is in another split.

    Args:
        first_rows: per unit, how many rows all units before it have; row numbers count over all units.
    """
    found: tuple[int, str, str] | None = None
    keys = 0
    for start, stop in noted.ranges("", CHECKED_ROWS) if noted.rows("") else []:
        table = noted.part("", start, stop).read(lambda rows: rows, _SCHEMA)
        one, count = _shared_of(table, np.array(first_rows, np.int64))
        keys += count
        if one is not None and (found is None or one < found):
            found = one
    return None if found is None else Shared(*found, keys)


def refuse_shared(
    shared: Shared, spec: SplitSpec, values: Mapping[str, object], sensitive: Collection[str]
) -> UsageError:
    """The error for a key in two splits; `values` are those of the row's key columns."""
    shown = ", ".join(f"{name} = {MASK if name in sensitive else repr(values[name])}" for name in keys_of(spec))
    return UsageError(
        f"shards.split.key: {shown} (row {shared.row}) is in both {shared.here!r} and {shared.there!r}; "
        f"keys like this: {shared.keys}.",
        remedy="Split by key alone, or move the boundary so that no key is on two sides.",
        details={"row": shared.row, "columns": keys_of(spec)},
    )


def _shared_of(table: pa.Table, first_rows: NDArray[np.int64]) -> tuple[tuple[int, str, str] | None, int]:
    key, rest, unit, first, last = (table.column(n).to_numpy() for n in ("key", "rest", "unit", "first", "last"))
    splits = table.column("split").combine_chunks().dictionary_encode()
    split, names = splits.indices.to_numpy(), splits.dictionary.to_pylist()
    order = np.lexsort((first_rows[unit] + last, rest, key))
    begins = group_starts(key[order], rest[order])
    ends = np.append(begins[1:], len(order))
    there = np.repeat(split[order][ends - 1], ends - begins)  # the split of each key's last row
    apart = np.flatnonzero(split[order] != there)
    if not len(apart):
        return None, 0
    rows = (first_rows[unit] + first)[order][apart]
    at = int(np.argmin(rows))
    keys = len(np.unique(np.searchsorted(begins, apart, "right")))
    return (int(rows[at]), names[split[order][apart[at]]], names[there[apart[at]]]), keys
