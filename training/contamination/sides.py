"""The rows that are compared: the shards of each side, read block by block, each block with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
