"""Profiles one part of the data, such as a file, from its batches; and merges the profiles of parts, in any order.

Numbers of a column are counted in blocks, so that the sizes of batches change nothing. Of texts that come as numbers of
a dictionary, as Parquet stores them, each different text is looked at once. Each part's profile is needed only while it
is added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_rows import is_text, is_time, microseconds
from data_contracts.profile import sketches
from data_contracts.profile.sketches import (
    BLOCK,
    EXACT,
    FIRST,
    FLOATS,
    BinCounter,
    Floats,
    Ints,
    MomentCounter,
    MomentSum,
    NumberSample,
    TextSample,
    as_arrow,
    as_texts,
    block_of,
    buffer,
    distinct,
    mean_and_stdev,
    of_patterns,
    without_nulls,
)
from data_contracts.quoting import type_shown
from data_contracts.records import Bins, ColumnProfile, Kind, Moments, Profile, Sample

_FLAGS = np.array([0, 1])
_PARTS = 4


def profile_of(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, sensitive: Collection[str], threads: int = 1
) -> Profile:
    """The profile of one part, such as a file.

    Args:
        batches: its rows, in batches of any sizes.
        schema: of all batches.
        sensitive: columns of which only rows and nulls are counted.
        threads: columns that are counted at once. It does not affect the result.
    """
    block, rows = block_of(len(schema)), 0
    columns = [Column(field.name, field.type, field.name in sensitive, block) for field in schema]
    # Several parts for each thread, because columns take unequal time.
    parts = _PARTS * threads

    def count(batch: pa.RecordBatch, first: int) -> None:
        for at in range(first, len(columns), parts):
            columns[at].add(batch.column(at))

    _keep_freed_memory()
    with ThreadPoolExecutor(threads, "profile") as pool:
        for batch in batches:
            rows += batch.num_rows
            list(pool.map(partial(count, batch), range(parts)))
        return Profile(rows=rows, columns=list(pool.map(Column.record, columns)))


def _keep_freed_memory() -> None:
    """Have glibc keep up to 8 MiB that are freed: giving each array back and getting it anew costs more than the work.

    Freeing a larger block raises the size from which memory is given back at once (mallopt(3), M_MMAP_THRESHOLD).
    """
    np.empty(1 << 22, np.uint8)


class Merger:
    """Adds up profiles of parts that have the same columns; the memory does not grow with the parts."""

    def __init__(self) -> None:
        self.rows = 0
        self._only: Profile | None = None  # a column of a single part is its own merge if it has values
        self._columns: list[_Column] = []

    def add(self, part: Profile) -> None:
        """Add a part."""
        self.rows += part.rows
        if self._only is None and not self._columns:
            self._only = part
            return
        parts = [part] if self._only is None else [self._only, part]
        self._only = None
        for one in parts:
            self._add(one)

    def _add(self, part: Profile) -> None:
        self._columns = self._columns or [_Column(one) for one in part.columns]
        for column, one in zip(self._columns, part.columns, strict=True):
            column.add(one)

    def record(self) -> Profile:
        """The profile of all parts so far."""
        if self._only is not None:
            return Profile(rows=self.rows, columns=[one if one.values else _alone(one) for one in self._only.columns])
        return Profile(rows=self.rows, columns=[column.record() for column in self._columns])


def _alone(part: ColumnProfile) -> ColumnProfile:
    """The merge of one part of a column."""
    column = _Column(part)
    column.add(part)
    return column.record()


class _Column:
    """The same column of all parts.

    Args:
        first: of one of the parts.
    """

    def __init__(self, first: ColumnProfile) -> None:
        self._first = first.model_copy(update={"bins": first.bins and Bins(shift=0, keys=[], counts=[])})
        self._counts = dict.fromkeys(("rows", "nulls", "infinite"), 0)
        self._bins, self._moments = BinCounter(), MomentSum()
        self._numbers = NumberSample() if first.kind in ("number", "time") else None
        self._texts: TextSample | None = TextSample() if first.kind == "text" else None
        self._range: tuple[float, float] | None = None
        self._known = True  # of each part that has values, their bins
        self._summed = True  # and their moments

    def add(self, part: ColumnProfile) -> None:
        for name in self._counts:
            self._counts[name] += getattr(part, name)
        if not part.values:
            return
        if part.bins is None:
            self._known = False
            return
        self._add_sample(part.bins, part.sample)
        if part.minimum is not None and part.maximum is not None:
            low, high = self._range or (part.minimum, part.maximum)
            self._range = (min(low, part.minimum), max(high, part.maximum))
        if part.moments is not None:
            self._moments.add(part.moments)
        elif part.values > part.infinite:
            self._summed = False

    def _add_sample(self, counted: Bins, sample: Sample | None) -> None:
        before = self._bins.patterns if self._bins.shift == 0 else None
        self._bins.merge(counted)
        if self._texts is not None:
            if sample is None:
                self._texts = None
            else:
                self._texts.merge(sample)
        if self._numbers is not None and self._bins.shift:
            if before is not None:
                self._numbers.add(of_patterns(before))
            hashes = of_patterns(np.array(counted.keys, np.int64)) if sample is None else sample.hashes
            self._numbers.add(np.array(hashes, np.uint64))

    def record(self) -> ColumnProfile:
        """The column's profile over all parts."""
        first = self._first
        plain = ColumnProfile(name=first.name, type=first.type, kind=first.kind, **self._counts)
        if not self._known:
            return plain
        if not plain.values:  # then the sample of each part is empty, too
            return plain.model_copy(update={"bins": first.bins, "sample": first.sample})
        sample = self._texts.record() if self._texts is not None else None
        if self._numbers is not None and self._bins.shift:
            sample = self._numbers.record()
        moments = self._moments.record() if self._summed else None
        fields = summary(self._bins.record(), moments, sample, self._range)
        return plain.model_copy(update=fields | (text_fields(sample) if first.kind in ("text", "bytes") else {}))


def kind_of(kind: pa.DataType, sensitive: bool) -> Kind:
    """How a column of this type is profiled."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if sensitive:
        return "sensitive"
    if pa.types.is_boolean(kind):
        return "flag"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if is_text(kind):
        return "text"
    if is_time(kind):
        return "time"
    of_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return "bytes" if of_bytes else "other"


class Column:
    """Profiles one column of one part.

    Args:
        name, type_: as in the schema of all files.
        sensitive: only rows and nulls are counted.
        block: values in a block (see `Values`).
    """

    def __init__(self, name: str, type_: pa.DataType, sensitive: bool, block: int) -> None:
        self._name, self._type = name, type_
        self._kind = kind_of(type_, sensitive)
        self._rows = self._nulls = 0
        counted = self._kind not in ("other", "sensitive")
        self._values = Values(block, hashed=self._kind in ("number", "time")) if counted else None
        self._texts = TextSample() if self._kind == "text" else None
        self._coded = CodedTexts(self._texts) if self._texts is not None else None

    def add(self, column: pa.Array) -> None:
        """Count the rows of a batch; a column of texts may be a dictionary in some batches and plain in others."""
        self._rows += len(column)
        if pa.types.is_dictionary(column.type):
            coded, values = self._coded, self._values
            if coded and values and not column.dictionary.null_count and coded.add(column, values):
                self._nulls += column.null_count
                return
            column = column.cast(column.type.value_type)
        if is_text(column.type):
            column = column.cast(pa.large_string())  # Arrow cannot filter string views
        if pa.types.is_floating(column.type):
            numbers = without_nulls(column).astype(np.float64, copy=False)
            if len(numbers) and np.isnan(numbers.min()):
                numbers = numbers[~np.isnan(numbers)]
            self._nulls += len(column) - len(numbers)
            if self._values is not None:
                self._values.add(numbers)
            return
        self._nulls += column.null_count
        if self._values is None:
            return
        if self._kind == "flag":
            self._values.add_coded(without_nulls(column), _FLAGS)
        else:
            self._values.add(self._numbers(column))

    def _numbers(self, column: pa.Array) -> Floats | Ints:
        """What the bins hold of the values that are not null."""
        match self._kind:
            case "text":
                try:
                    texts = as_texts(column)
                except pa.ArrowInvalid:  # other bytes than UTF-8: of such a column, nothing but its nulls
                    self._texts = self._values = self._coded = None
                    return np.empty(0)
                if self._texts is not None:
                    self._texts.add(texts)
                column = pc.utf8_length(texts)
            case "bytes":
                column = pc.binary_length(column)
            case "time":
                column = microseconds(column)
            case "number" if pa.types.is_decimal(column.type):
                column = column.cast(pa.float64())
        numbers = without_nulls(column)
        if pa.types.is_integer(column.type) and column.type != pa.uint64():
            return numbers.astype(np.int64, copy=False)
        return numbers.astype(np.float64, copy=False)

    def record(self) -> ColumnProfile:
        """The profile of all rows so far; nothing can be added after it."""
        if self._coded is not None:
            self._coded.flush()
        fields = self._values.fields() if self._values is not None else {}
        if self._kind in ("text", "bytes"):
            sample = self._texts.record() if self._texts is not None else None
            fields |= text_fields(sample)
        return ColumnProfile(
            name=self._name,
            type=type_shown(self._type, sensitive=self._kind == "sensitive"),
            kind=self._kind,
            rows=self._rows,
            nulls=self._nulls,
            **fields,
        )


def text_fields(sample: Sample | None) -> dict[str, object]:
    """The fields about different values, where the other fields are about lengths."""
    if sample is None:
        return {"sample": None, "distinct": None, "distinct_exact": True}
    return {"sample": sample, "distinct": distinct(sample), "distinct_exact": sample.exact}


class CodedTexts:
    """Rows of each text of a dictionary; a sample gets them when the next dictionary begins."""

    def __init__(self, sample: TextSample) -> None:
        self._sample = sample
        self._dictionary: pa.Array | None = None
        self._texts: pa.Array | None = None
        self._lengths: Ints = np.empty(0, np.int64)
        self._counts: Ints = np.empty(0, np.int64)

    def add(self, column: pa.DictionaryArray, lengths: Values) -> bool:
        """Count texts, and their lengths in order; False, and nothing, if the column must be read as plain texts."""
        if self._dictionary is None or not column.dictionary.equals(self._dictionary):
            self.flush()
            self._open(column.dictionary)
        if self._texts is None:
            return False
        self._counts += lengths.add_coded(without_nulls(column.indices), self._lengths)
        return True

    def flush(self) -> None:
        """Hand the counts to the sample."""
        if self._texts is not None:
            used = np.flatnonzero(self._counts)
            if len(used):
                self._sample.add_counts(self._texts.take(as_arrow(used)), self._counts[used].tolist())
        self._dictionary = self._texts = None

    def _open(self, dictionary: pa.Array) -> None:
        self._dictionary = dictionary
        if dictionary.null_count or pc.count_distinct(dictionary).as_py() < len(dictionary):
            return
        try:
            self._texts = as_texts(dictionary)
        except pa.ArrowInvalid:  # perhaps in a text that no row has
            return
        self._lengths = without_nulls(pc.utf8_length(self._texts)).astype(np.int64)
        self._counts = np.zeros(len(dictionary), np.int64)


@dataclass(frozen=True)
class _Coded:
    """Whole numbers by their places in a table, and how often each place occurs."""

    table: Ints
    codes: NDArray[Any]
    counts: Ints

    def __len__(self) -> int:
        return len(self.codes)


class Values:
    """Bins, moments and different values of numbers; they are counted in blocks, whatever the batches are.

    Args:
        block: values in a block.
        hashed: whether different values are counted, too.
    """

    def __init__(self, block: int, hashed: bool) -> None:
        self.infinite = 0
        self._hashed = hashed
        self._bins, self._moments, self._sample = sketches.BinCounter(), MomentCounter(), NumberSample()
        self._range: tuple[float, float] | None = None
        self._size = block
        self._waiting: list[Floats | Ints | _Coded] = []
        self._filled = 0

    def add(self, values: Floats | Ints) -> None:
        """Count values, none of which is NaN; all as float64, or all as int64."""
        while len(values):
            taken, values = values[: self._size - self._filled], values[self._size - self._filled :]
            self._wait(taken)

    def add_coded(self, codes: NDArray[Any], table: Ints) -> Ints:
        """Count whole numbers that are given by their places in a table; returns how often each place occurs."""
        total = np.zeros(len(table), np.int64)
        while len(codes):
            taken, codes = codes[: self._size - self._filled], codes[self._size - self._filled :]
            places = buffer(FIRST, len(taken))
            np.copyto(places, taken)
            counts = np.bincount(places, minlength=len(table))
            total += counts
            self._wait(_Coded(table, taken, counts))
        return total

    def _wait(self, taken: Floats | Ints | _Coded) -> None:
        self._waiting.append(taken)
        self._filled += len(taken)
        if self._filled == self._size:
            self._count()

    def _count(self) -> None:
        if not self._filled:
            return
        waiting, self._waiting, self._filled = self._waiting, [], 0
        coded = [one for one in waiting if isinstance(one, _Coded)]
        if len(coded) == len(waiting) and self._count_coded(coded):
            return
        parts = [one.table[one.codes] if isinstance(one, _Coded) else one for one in waiting]
        if parts[0].dtype == np.int64:
            block: Any = parts[0] if len(parts) == 1 else np.concatenate(parts, out=buffer(BLOCK, sum(map(len, parts))))
            if self._count_ints(block):
                return
            parts = [block]
        self._count_floats(_floats(parts))

    def _count_coded(self, coded: list[_Coded]) -> bool:
        """Count a block from how often each entry of its tables occurs; False, and nothing, if that is not enough."""
        used = [np.flatnonzero(one.counts) for one in coded]
        numbers = np.concatenate([one.table[at] for one, at in zip(coded, used, strict=True)])
        times = np.concatenate([one.counts[at] for one, at in zip(coded, used, strict=True)])
        low = int(numbers.min())
        if not _close(low, int(numbers.max()), sum(map(len, coded))):
            return False
        counts = np.bincount(numbers - low, weights=times).astype(np.int64)
        return self._count_whole(low, counts, int(coded[0].table[coded[0].codes[0]]))

    def _count_ints(self, block: Ints) -> bool:
        """Count a block from how often each number occurs; False, and nothing, if that is not enough."""
        low = int(block.min())
        if not _close(low, int(block.max()), len(block)):
            return False
        counts = np.bincount(np.subtract(block, low, out=buffer(FIRST, len(block))))
        return self._count_whole(low, counts, int(block[0]))

    def _count_whole(self, low: int, counts: Ints, first: int) -> bool:
        """Count a block from how often each number occurs, from `low` on; False, and nothing, if sums would round."""
        present = np.flatnonzero(counts > 0)
        numbers, counts = present + low, counts[present]
        if not self._moments.add_whole(numbers, counts, first):
            return False
        self._widen(float(numbers[0]), float(numbers[-1]))
        patterns = sketches.ordered(numbers.astype(np.float64))
        self._hashing(patterns, lambda: self._bins.add_counts(patterns, counts))
        return True

    def _count_floats(self, block: Floats) -> None:
        low, high = float(block.min()), float(block.max())
        finite = block
        if np.isinf(low) or np.isinf(high):
            finite = block[np.isfinite(block)]
            self.infinite += len(block) - len(finite)
        if len(finite):
            self._moments.add(finite)
            whole = len(finite) == len(block)
            self._widen(*((low, high) if whole else (float(finite.min()), float(finite.max()))))
        patterns = sketches.ordered(block, positive=low >= 0)
        self._hashing(patterns, lambda: self._bins.add(patterns, low, high))

    def _hashing(self, patterns: Ints, count: Any) -> None:
        """Count patterns; their hashes are needed once there are more different values than bins."""
        before = self._bins.patterns if self._bins.shift == 0 else None
        count()
        if self._hashed and self._bins.shift:
            if before is not None:
                self._sample.add(of_patterns(before))
            self._sample.add_patterns(patterns)

    def _widen(self, low: float, high: float) -> None:
        least, most = low + 0.0, high + 0.0  # -0.0 or 0.0 would be chance
        self._range = (min(least, self._range[0]), max(most, self._range[1])) if self._range else (least, most)

    def fields(self) -> dict[str, object]:
        """What the column's profile has of them."""
        self._count()
        counted = self._bins.record()
        sample = self._sample.record() if self._hashed and counted.shift else None
        return {"infinite": self.infinite, **summary(counted, self._moments.record(), sample, self._range)}


def _floats(parts: list[Floats | Ints]) -> Floats:
    """Numbers of some parts, in order, in the buffer FLOATS; zeros are without a sign."""
    numbers, at = buffer(FLOATS, sum(map(len, parts))).view(np.float64), 0
    for part in parts:
        np.add(part, 0.0, out=numbers[at : at + len(part)])  # -0.0 + 0.0 is 0.0
        at += len(part)
    return numbers


def _close(low: int, high: int, values: int) -> bool:
    """Whether whole numbers are close enough together to be counted in an array with one place for each."""
    return high - low < min(sketches.SPAN, max(values // 2, sketches.MOST_BINS)) and max(-low, high) <= EXACT


def summary(
    counted: Bins, moments: Moments | None, sample: Sample | None, finite: tuple[float, float] | None
) -> dict[str, object]:
    """Fields of a profile, and those that follow from them.

    Args:
        finite: the least and the greatest finite value; None if there is none.
    """
    fields: dict[str, object] = {"bins": counted, "moments": moments, "sample": sample}
    if finite is not None:
        fields["minimum"], fields["maximum"] = finite
        fields["quantiles"] = sketches.quantiles(counted, *finite)
    if moments is not None:
        try:
            fields["mean"], fields["stdev"] = mean_and_stdev(moments)
        except OverflowError:  # parts that are finite alone, such as 0 and 1e200, but not together
            fields["moments"] = None
    if sample is not None:
        fields["distinct"], fields["distinct_exact"] = distinct(sample), sample.exact
    elif counted.shift == 0:
        fields["distinct"] = len(counted.keys)
    return fields
