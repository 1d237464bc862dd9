"""The rows that are compared: the shards of each side, read block by block, each block with its place and its digests.

Two rows have the same digest if and only if their columns hold the same values. A null equals a null and NaN equals
NaN, as in the splitter's keys; 0.0 equals -0.0, and numbers of different widths are equal by value. The values of a
tensor are compared byte for byte. The digest is 128 bits of BLAKE3, so equal digests stand for equal rows. NumPy lays
out a row's values; then one row at a time is hashed, at about 1 µs a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import Place, Side
from data_contracts.quoting import column_shown, type_shown
from training.formats.shards import Shards

BLOCK_ROWS = 2**16
# Called after each piece of work, so that a long comparison is not taken for a hung process.
Advance = Callable[[], None]


def no_report() -> None:
    """Report nothing."""


@dataclass
class OpenSide:
    """A side and its shards.

    Attributes:
        number: position among the sides.
        first_rows: per shard, the rows of all shards before it.
    """

    number: int
    side: Side
    shards: Shards
    first_rows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first_rows = [0, *np.cumsum(self.shards.rows).tolist()]

    @property
    def num_rows(self) -> int:
        """Rows of all shards."""
        return self.first_rows[-1]

    def place(self, row: int) -> Place:
        """Where a row of the side is, by its number over all shards."""
        shard = int(np.searchsorted(self.first_rows, row, "right")) - 1
        entry = self.side.dataset.splits[self.side.split][shard]
        return Place(shard=f"{entry.uri}/{entry.path}", row=row - self.first_rows[shard])


@dataclass(frozen=True)
class Compared:
    """All sides, and the common types of the columns in which they are compared.

    Attributes:
        fields: the field of the spec that asks for each column, for a message.
        advanced: called after each piece of work.
    """

    sides: Sequence[OpenSide]
    types: dict[str, pa.DataType]
    fields: Mapping[str, str]
    advanced: Advance = no_report

    def blocks(self, side: OpenSide, names: Sequence[str]) -> Iterator[tuple[int, list[pa.ChunkedArray]]]:
        """Columns of a side's rows in order, brought to the common types, each time with the first row's number."""
        for number, first in enumerate(side.first_rows[:-1]):
            for table in side.shards.tables(number, list(dict.fromkeys(names))):
                for start in range(0, table.num_rows, BLOCK_ROWS):
                    block = table.slice(start, BLOCK_ROWS)
                    yield first + start, [self._common(block, side, name) for name in names]
                    self.advanced()
                first += table.num_rows

    def _common(self, block: pa.Table, side: OpenSide, name: str) -> pa.ChunkedArray:
        """A block's column in the common type, in which NaN is a missing value as in pandas.

        Raises: UsageError, without the value, for one that this type cannot hold.
        """
        values, kind = block.column(name), self.types[name]
        try:
            common = values.cast(kind)
        except pa.ArrowException as error:
            raise UsageError(
                f"{self.fields[name]}: column {column_shown(repr(name))} is {values.type} in {side.side.name} and "
                f"{self.types[name]} beside it, which cannot hold all of its values exactly.",
                remedy="Give both the same type, or leave the column out.",
            ) from error
        return pc.if_else(pc.is_nan(common), pa.scalar(None, kind), common) if pa.types.is_floating(kind) else common


def open_sides(
    sides: Sequence[Side], folders: Sequence[Path], columns: Mapping[str, str], advanced: Advance = no_report
) -> Compared:
    """The sides' shards in these folders; UsageError if a column has types that do not compare.

    Args:
        columns: the columns, each with the field of the spec that asks for it.
    """
    opened = [
        OpenSide(number, side, Shards(folder, side.dataset, side.split))
        for number, (side, folder) in enumerate(zip(sides, folders, strict=True))
    ]
    return Compared(opened, {name: _common(opened, name, field) for name, field in columns.items()}, columns, advanced)


def _common(opened: Sequence[OpenSide], name: str, field: str) -> pa.DataType:
    fields = [one.shards.schema.field(name).remove_metadata() for one in opened]
    nested = next((one.type for one in fields if _is_nested(one.type)), None)
    if nested is not None:
        raise UsageError(
            f"{field}: column {column_shown(repr(name))} is {type_shown(nested)}, which cannot be compared.",
            remedy="Leave the column out with contract.contamination.ignore, or flatten it in shards.transform.",
        )
    try:
        return pa.unify_schemas([pa.schema([one]) for one in fields], promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        other = next(index for index, one in enumerate(fields) if one.type != fields[0].type)
        raise UsageError(
            f"{field}: column {column_shown(repr(name))} is {fields[0].type} in {opened[0].side.name} "
            f"and {fields[other].type} in {opened[other].side.name}, which cannot be compared.",
            remedy="Give both the same type, or leave the column out with contract.contamination.ignore.",
        ) from error


def _is_nested(type_: pa.DataType) -> bool:
    """Whether values have parts other than those of a list."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _is_nested(type_.value_type)
    return bool(pa.types.is_nested(type_))


DIGEST_BYTES = 16
_ZERO = b"\0" * DIGEST_BYTES


def row_digests(columns: Sequence[pa.ChunkedArray]) -> NDArray[np.uint64]:
    """The digest of each row: (rows, 2) uint64, little-endian; the columns have the same types in each call."""
    return _hashed(np.concatenate([_laid_out(_joined(column)) for column in columns], axis=1))


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _hashed(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    width, data = rows.shape[1], memoryview(rows.tobytes())
    found = [blake3(data[start : start + width]).digest(DIGEST_BYTES) for start in range(0, len(data), width)]
    return np.frombuffer(b"".join(found), "<u8").reshape(-1, 2)


def _laid_out(values: pa.Array) -> NDArray[np.uint8]:
    """A row of as many bytes for each value: whether there is one, and what it is."""
    there = values.is_valid().to_numpy(zero_copy_only=False)
    body = _bodies(values)
    body[~there] = 0
    return np.concatenate([there.astype(np.uint8)[:, None], body], axis=1)


def _bodies(values: pa.Array) -> NDArray[np.uint8]:
    type_ = values.type
    if pa.types.is_null(type_):
        return np.zeros((len(values), 0), np.uint8)
    if pa.types.is_floating(type_):
        numbers = values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        numbers[np.isnan(numbers)] = np.nan  # one of the many
        return _bytes_of(numbers.view(np.uint64))
    if pa.types.is_unsigned_integer(type_):
        return _bytes_of(values.cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False))
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return _bytes_of(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    if pa.types.is_temporal(type_):
        narrow = pa.types.is_date32(type_) or pa.types.is_time32(type_)
        whole = values.cast(pa.int32()).cast(pa.int64()) if narrow else values.cast(pa.int64())
        return _bytes_of(whole.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _lists(values)
    return _texts(values)


def _bytes_of(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(words, "<u8").view(np.uint8).reshape(-1, 8).copy()


def _texts(values: pa.Array) -> NDArray[np.uint8]:
    """Texts and bytes by their digests; Arrow finds the distinct values, which are hashed once."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    encoded = values.dictionary_encode()
    known = [
        blake3(one.encode() if isinstance(one, str) else one).digest(DIGEST_BYTES)
        for one in encoded.dictionary.to_pylist()
    ]
    table = np.frombuffer(b"".join([*known, _ZERO]), np.uint8).reshape(-1, DIGEST_BYTES)
    return table[encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)]


def _lists(values: pa.Array) -> NDArray[np.uint8]:
    """Lists by the digests of their values in order, so that no two lists of different lengths are the same bytes."""
    inner = _laid_out(pc.list_flatten(values))
    width, data = inner.shape[1], memoryview(inner.tobytes())
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths) * width
    starts = (ends - lengths * width).tolist()
    found = [blake3(data[a:b]).digest(DIGEST_BYTES) for a, b in zip(starts, ends.tolist(), strict=True)]
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, DIGEST_BYTES).copy()
