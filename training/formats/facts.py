"""Facts about all rows that are needed before the first shard is written, gathered batch by batch and merged.

The form of each column, the bytes of each group's values, and a witness: one row with the extremes of each column (the
largest uint64, a null inside a list), so that a format can refuse them without seeing all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.quoting import column_shown, text_of
from training.formats.normalize import finish, narrow, widen
from training.formats.schema import tensor_of


class Mismatch(ValueError):
    """Two batches do not have the same columns and types."""


@dataclass
class Size:
    """Rows of a group and, per column, how many values its lists have and the bytes of its texts."""

    rows: int = 0
    values: dict[str, int] = field(default_factory=dict)
    text_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, other: Size) -> None:
        """Add another size to this one."""
        self.rows += other.rows
        for mine, theirs in ((self.values, other.values), (self.text_bytes, other.text_bytes)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count

    def logical_bytes(self, schema: pa.Schema) -> int:
        """Bytes of these rows' values under the shards' schema, whatever buffers hold them."""
        return sum(self._column_bytes(field) for field in schema)

    def _column_bytes(self, field: pa.Field) -> int:
        type_ = field.type
        if _is_text(type_):
            return self.text_bytes.get(field.name, 0)
        if pa.types.is_list(type_):
            item = type_.value_type
            values = self.values.get(field.name, 0)
            inside = self.text_bytes.get(field.name, 0) if _is_text(item) else values * item.bit_width // 8
            return 4 * self.rows + inside
        return 0 if pa.types.is_null(type_) else self.rows * type_.bit_width // 8


@dataclass
class Facts:
    """Facts about the rows of some batches.

    Attributes:
        raw: their own types, unified; None before the first batch.
        form: the narrowest form that holds them all.
        sizes: per group (a split).
        largest: the largest value of uint64 columns and lists.
        holed: columns with nulls inside lists.
    """

    raw: pa.Schema | None = None
    form: pa.Schema | None = None
    sizes: dict[str, Size] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    holed: set[str] = field(default_factory=set)

    def look(self, groups: Sequence[str], of_row: NDArray[np.int16], rows: pa.Table) -> pa.Table:
        """Record some rows and return them narrowed; Mismatch if their columns differ from earlier rows'.

        Args:
            of_row: each row's index into `groups`, (rows,).
        """
        narrowed = narrow(rows)
        counts = np.bincount(of_row, minlength=len(groups)).tolist()
        one = Facts(rows.schema.remove_metadata(), narrowed.schema, dict(zip(groups, map(Size, counts), strict=True)))
        for column_field, column in zip(narrowed.schema, narrowed.columns, strict=True):
            one._look_at(column_field, column, of_row)
        self.merge(one)
        return narrowed

    def merge(self, other: Facts) -> None:
        """Add the facts about later rows."""
        if other.raw is None or other.form is None:
            return
        if self.raw is None or self.form is None:
            self.raw, self.form = other.raw, other.form
        elif not (self.raw.equals(other.raw) and self.form.equals(other.form, check_metadata=True)):
            self.raw = _unified(self.raw, other.raw)
            try:
                self.form = widen(self.form, other.form)
            except TypeError as error:
                raise Mismatch(str(error)) from error
        for group, size in other.sizes.items():
            self.sizes.setdefault(group, Size()).add(size)
        for name, value in other.largest.items():
            self.largest[name] = max(value, self.largest.get(name, 0))
        self.holed |= other.holed

    def schema(self) -> pa.Schema:
        """The schema of shards; UsageError for a column that shards cannot hold."""
        assert self.form is not None
        assert self.raw is not None
        return finish(self.form, self.raw)

    def witness(self, schema: pa.Schema) -> pa.Table:
        """One row in the schema that shows each column's extremes."""
        columns = []
        for column_field in schema:
            name, type_ = column_field.name, column_field.type
            value: object = self.largest.get(name)
            if pa.types.is_list(type_):
                value = [None] if name in self.holed else None if value is None else [value]
            elif type_ != pa.uint64():
                value = None
            columns.append(pa.array([value], type_))
        return pa.Table.from_arrays(columns, schema=schema)

    def _look_at(self, column_field: pa.Field, column: pa.ChunkedArray, of_row: NDArray[np.int16]) -> None:
        name, type_ = column_field.name, column_field.type
        tensor = tensor_of(column_field)
        values: pa.ChunkedArray = column
        of_value = of_row
        if tensor is not None:
            valid = column.is_valid().to_numpy()
            for size, rows in self._sums(of_row, valid):
                size.values[name] = rows * math.prod(tensor[1])
            if tensor[0] == np.uint64:
                self.largest[name] = max((_largest_of(chunk) for chunk in column.chunks), default=0)
            return
        if pa.types.is_list(type_):
            values = pc.list_flatten(column)
            lengths = pc.list_value_length(column).fill_null(0).to_numpy()
            for size, count in self._sums(of_row, lengths):
                size.values[name] = count
            if _is_text(values.type):
                of_value = np.repeat(of_row, lengths)
            if values.null_count:
                self.holed.add(name)
        if _is_text(values.type):
            for size, count in self._sums(of_value, pc.binary_length(values).fill_null(0).to_numpy()):
                size.text_bytes[name] = count
        if values.type == pa.uint64():
            self.largest[name] = pc.max(values).as_py() or 0

    def _sums(self, of_value: NDArray[np.int16], amounts: NDArray[Any]) -> Iterator[tuple[Size, int]]:
        """Each group's size, in the order of their indices, and the sum of its amounts, which are whole numbers."""
        sums = np.bincount(of_value, amounts, minlength=len(self.sizes))
        return zip(self.sizes.values(), sums.astype(np.int64).tolist(), strict=True)


def _largest_of(rows: pa.Array) -> int:
    """The largest value of tensor rows of uint64; the bytes of null rows are zeros."""
    width = rows.type.byte_width
    flat = np.frombuffer(rows.buffers()[1], np.uint8)[rows.offset * width : (rows.offset + len(rows)) * width]
    return int(flat.view(np.uint64).max(initial=0))


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_binary(type_)


def _unified(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    both = {*one.names} & {*other.names}
    for name in [*other.names, *one.names]:
        if name not in both:
            raise Mismatch(f"column {column_shown(repr(name))} is not in all of them")
    try:
        return pa.unify_schemas([one, other])
    except pa.ArrowTypeError as error:
        raise Mismatch(text_of(error).splitlines()[0].rstrip(".")) from error
