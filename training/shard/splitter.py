"""Assigns rows to train, val and test: by hash of a key, by time, by position, or by a column that names the split.

A row's split by key depends on its own key and the seed alone, so it never changes when data is added. A `Splitter`
assigns batch by batch, in any process. It notes facts that only all rows can show (a null somewhere, a key in two
splits); `split_notes` and `split_leakage` judge them at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.arrow_rows import decoded_column
from data_contracts.canonical import valid_name
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from data_contracts.quoting import absent_shown
from training.shard import position_split, time_split
from training.shard.key_digests import UnusableKey, key_digests
from training.shard.split_notes import USUAL, Notes, Place
from training.shard.time_split import SECOND, shares

REQUIRED = ("train", "test")
LEFT_OUT = -1


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
            bounds = [time_split.boundary(text) for text in spec.boundaries.values()]
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
        if spec.by is not None:
            position_split.check(schema)

    def assign(self, rows: pa.Table, at: Place) -> NDArray[np.int16]:
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

    def times(self, rows: pa.Table, at: Place) -> NDArray[np.int64]:
        """The times in microseconds since 1970 (UTC), (n,) int64, rounded down, without rows that have no time."""
        assert self.spec.time is not None
        column = decoded_column(rows.column(self.spec.time))
        if column.null_count:
            self._note_nulls(column, at)
            column = column.drop_null()
        if time_split.is_text(column.type):
            column, zone = time_split.parsed(column, self.spec)
            if len(column):
                self.notes.zones.add(zone)
        return time_split.microseconds(column, self.spec)

    def digests(self, rows: pa.Table) -> NDArray[np.uint64]:
        """The digests of the rows' keys: (rows, 2) uint64."""
        try:
            return key_digests([rows.column(name) for name in keys_of(self.spec)], self.spec.seed)
        except UnusableKey as error:
            name = keys_of(self.spec)[error.column]
            raise UsageError(f"shards.split.key: {name!r} {error}.", remedy="Name another column.") from error

    def _by_position(self, rows: pa.Table) -> NDArray[np.int16]:
        shares_of, gap, names = list(shares(self.spec).values()), self.spec.gap, self.digests(rows)
        position, pieces = position_split.numbers(rows)
        first = position_split.starts(names, position, self._last)
        self.notes.documents.count(pieces[first], shares_of, gap)
        if rows.num_rows:
            self._last = (names[-1], int(position[-1]))
        found = position_split.by_position(position, pieces, shares_of, gap, self._drawn(names))
        if left_out := int((found == LEFT_OUT).sum()):
            self.notes.dropped["gap"] = self.notes.dropped.get("gap", 0) + left_out
        return found

    def _by_time(self, rows: pa.Table, at: Place) -> NDArray[np.int16]:
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

    def _by_column(self, column: pa.ChunkedArray, at: Place) -> NDArray[np.int16]:
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

    def _note_nulls(self, column: pa.ChunkedArray, at: Place) -> None:
        self.notes.nulls += column.null_count
        if self.notes.first_null is None:
            self.notes.first_null = (at[0], at[1] + int(np.flatnonzero(column.is_null().to_numpy())[0]))


def columns_needed(spec: SplitSpec) -> list[str]:
    """The columns that a `Splitter` reads."""
    by = position_split.COLUMNS if spec.by is not None else ()
    named = (*keys_of(spec), spec.time, spec.column, *by)
    return list(dict.fromkeys(name for name in named if name is not None))


def in_order(names: Collection[str]) -> list[str]:
    """Splits that a column names: train, val and test first, others by name, whichever row came first."""
    return sorted(names, key=lambda name: (USUAL.index(name) if name in USUAL else len(USUAL), name))


def keys_of(spec: SplitSpec) -> list[str]:
    """The columns of the key; [] without one. Of a split by position, that of documents too short to be cut."""
    if spec.by is not None:
        return [position_split.COLUMNS[0]]
    return [spec.key] if isinstance(spec.key, str) else list(spec.key or [])


def _setting(spec: SplitSpec, column: str) -> str:
    if spec.by is not None:
        return "shards.split.by"
    if column in keys_of(spec):
        return "shards.split.key"
    return "shards.split.time" if column == spec.time else "shards.split.column"
