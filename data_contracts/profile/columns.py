"""Profiles one column of one part (a file) of the data, from its batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.arrow_types import is_text, is_time, microseconds
from data_contracts.profile.dictionaries import CodedTexts
from data_contracts.profile.numbers import without_nulls
from data_contracts.profile.record import ColumnProfile, Kind, Sample
from data_contracts.profile.samples import TextSample, as_texts, distinct
from data_contracts.profile.values import Floats, Ints, Values
from data_contracts.quoting import type_shown

_FLAGS = np.array([0, 1])


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
            fields |= of_texts(sample)
        return ColumnProfile(
            name=self._name,
            type=type_shown(self._type, sensitive=self._kind == "sensitive"),
            kind=self._kind,
            rows=self._rows,
            nulls=self._nulls,
            **fields,
        )


def of_texts(sample: Sample | None) -> dict[str, Any]:
    """The fields about different values, where the other fields are about lengths."""
    if sample is None:
        return {"sample": None, "distinct": None, "distinct_exact": True}
    return {"sample": sample, "distinct": distinct(sample), "distinct_exact": sample.exact}
