"""Facts about all rows that are needed before the first shard is written, gathered batch by batch and merged.

The form of each column, the bytes of each group's values, and a witness: one row with the extremes of each column (the
largest uint64, a null inside a list), so that a format can refuse them without seeing all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

    def look(self, group: str, rows: pa.Table) -> pa.Table:
        """Record some rows of a group; returns them narrowed. Mismatch if their columns differ from earlier rows'."""
        narrowed = narrow(rows)
        one = Facts(rows.schema.remove_metadata(), narrowed.schema, {group: Size(rows.num_rows)})
        for column_field, column in zip(narrowed.schema, narrowed.columns, strict=True):
            one._look_at(column_field, column, one.sizes[group])
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

    def _look_at(self, column_field: pa.Field, column: pa.ChunkedArray, size: Size) -> None:
        name, type_ = column_field.name, column_field.type
        tensor = tensor_of(column_field)
        values: pa.ChunkedArray = column
        if tensor is not None:
            size.values[name] = (len(column) - column.null_count) * math.prod(tensor[1])
            if tensor[0] == np.uint64:
                self.largest[name] = max((_largest_of(chunk) for chunk in column.chunks), default=0)
            return
        if pa.types.is_list(type_):
            values = pc.list_flatten(column)
            size.values[name] = len(values)
            if values.null_count:
                self.holed.add(name)
        if _is_text(values.type):
            size.text_bytes[name] = pc.sum(pc.binary_length(values)).as_py() or 0
        if values.type == pa.uint64():
            self.largest[name] = pc.max(values).as_py() or 0


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
