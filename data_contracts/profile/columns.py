"""Profiles one column of one part (a file) of the data, from its batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.contract.frames import is_text, is_time
from data_contracts.profile import bins
from data_contracts.profile.hashes import of_patterns
from data_contracts.profile.moments import MomentCounter, mean_and_stdev
from data_contracts.profile.record import Bins, ColumnProfile, Kind, Moments, Sample
from data_contracts.profile.samples import NumberSample, TextSample, as_texts, distinct

Floats = NDArray[np.float64]


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


class Values:
    """Bins, moments and different values of numbers; they are counted in blocks, whatever the batches are.

    Args:
        block: values in a block.
        whole: whether all are whole numbers.
        hashed: whether different values are counted, too.
    """

    def __init__(self, block: int, whole: bool, hashed: bool) -> None:
        self.infinite = 0
        self._whole, self._hashed = whole, hashed
        self._bins, self._moments, self._sample = bins.BinCounter(), MomentCounter(), NumberSample()
        self._seen = False
        self._range: tuple[float, float] | None = None
        self._size = block
        self._waiting: list[Floats] = []
        self._filled = 0

    def add(self, values: Floats) -> None:
        """Count values, none of which is NaN."""
        while len(values):
            taken, values = values[: self._size - self._filled], values[self._size - self._filled :]
            self._waiting.append(taken)
            self._filled += len(taken)
            if self._filled == self._size:
                self._count()

    def _count(self) -> None:
        if not self._filled:
            return
        block = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        self._waiting, self._filled = [], 0
        low, high = float(block.min()), float(block.max())
        finite = block
        if np.isinf(low) or np.isinf(high):
            finite = block[np.isfinite(block)]
            self.infinite += len(block) - len(finite)
        if len(finite):
            self._moments.add(finite)
            least, most = float(finite.min()) + 0.0, float(finite.max()) + 0.0  # -0.0 or 0.0 would be chance
            self._range = (min(least, self._range[0]), max(most, self._range[1])) if self._range else (least, most)
        patterns = bins.ordered(block)
        whole = block.astype(np.int64) if self._whole and abs(low) < 2**62 and abs(high) < 2**62 else None
        before = self._bins.patterns
        exact = self._bins.shift == 0
        self._bins.add(patterns, whole)
        if self._hashed and self._bins.shift:
            if exact:
                self._sample.add(of_patterns(before))
            self._sample.add(of_patterns(patterns))

    def fields(self) -> dict[str, Any]:
        """What the column's profile has of them."""
        self._count()
        counted = self._bins.record()
        sample = self._sample.record() if self._hashed and counted.shift else None
        return {"infinite": self.infinite, **summary(counted, self._moments.record(), sample, self._range)}


def summary(
    counted: Bins, moments: Moments | None, sample: Sample | None, finite: tuple[float, float] | None
) -> dict[str, Any]:
    """Fields of a profile, and those that follow from them.

    Args:
        finite: the least and the greatest finite value; None if there is none.
    """
    fields: dict[str, Any] = {"bins": counted, "moments": moments, "sample": sample}
    if finite is not None:
        fields["minimum"], fields["maximum"] = finite
        fields["quantiles"] = bins.quantiles(counted, *finite)
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
        plain = type_.value_type if pa.types.is_dictionary(type_) else type_
        whole = self._kind in ("time", "text", "bytes", "flag") or pa.types.is_integer(plain)
        counted = self._kind not in ("other", "sensitive")
        self._values = Values(block, whole, hashed=self._kind in ("number", "time")) if counted else None
        self._texts = TextSample() if self._kind == "text" else None

    def add(self, column: pa.Array) -> None:
        """Count the rows of a batch."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if is_text(column.type):
            column = column.cast(pa.large_string())  # Arrow cannot filter string views
        self._rows += len(column)
        if pa.types.is_floating(column.type):
            numbers = pc.drop_null(column).to_numpy(zero_copy_only=False).astype(np.float64)
            missing = np.isnan(numbers)
            if missing.any():
                numbers = numbers[~missing]
            self._nulls += len(column) - len(numbers)
        else:
            self._nulls += column.null_count
            numbers = None
        if self._values is not None:
            self._values.add(self._numbers(pc.drop_null(column)) if numbers is None else numbers)

    def _numbers(self, column: pa.Array) -> Floats:
        """What the bins hold of values without nulls."""
        match self._kind:
            case "text":
                try:
                    texts = as_texts(column)
                except pa.ArrowInvalid:  # other bytes than UTF-8: of such a column, nothing but its nulls
                    self._texts = self._values = None
                    return np.empty(0)
                if self._texts is not None:
                    self._texts.add(texts)
                column = pc.utf8_length(texts)
            case "bytes":
                column = pc.binary_length(column)
            case "flag":
                column = column.cast(pa.int8())
            case "time":
                column = _microseconds(column)
            case "number" if pa.types.is_decimal(column.type):
                column = column.cast(pa.float64())
        return column.to_numpy(zero_copy_only=False).astype(np.float64)

    def record(self) -> ColumnProfile:
        """The profile of all rows so far; nothing can be added after it."""
        fields = self._values.fields() if self._values is not None else {}
        if self._kind in ("text", "bytes"):
            sample = self._texts.record() if self._texts is not None else None
            fields |= of_texts(sample)
        return ColumnProfile(
            name=self._name, type=str(self._type), kind=self._kind, rows=self._rows, nulls=self._nulls, **fields
        )


def of_texts(sample: Sample | None) -> dict[str, Any]:
    """The fields about different values, where the other fields are about lengths."""
    if sample is None:
        return {"sample": None, "distinct": None, "distinct_exact": True}
    return {"sample": sample, "distinct": distinct(sample), "distinct_exact": sample.exact}


def _microseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        return pc.multiply(column, pa.scalar(86_400_000_000, pa.int64()))
    zone = getattr(column.type, "tz", None)
    return column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
