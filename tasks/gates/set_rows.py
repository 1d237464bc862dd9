"""Reads the rows that a set is scored on: a sketch of them for the exposure ledger, their units, and their slices.

Row i here is the row at `position` i of an evaluation's outcomes: both follow the shards in stored order. No torch is
needed, so this runs in the process of the flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.arrow_rows import UnfitColumn, rows_that_meet
from data_contracts.contract.suites import nearest
from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.expressions import Condition
from data_contracts.handoffs import Dataset
from data_contracts.pipeline_spec import SliceSpec
from data_contracts.profile.sketches import row_hashes, value_hashes
from data_contracts.quoting import absent_name, columns_shown
from infra.records.evaluations import TestRows
from infra.records.handoffs import local_split
from infra.sources.documents import PLACE
from tasks.run.run import Run
from training.formats import Shards

_BLOCK_ROWS = 2**16
Digests = NDArray[np.uint64]
# The sets that an evaluation scores by name ("" is the spec's own split): each a dataset and a split of it.
Sets = dict[str, tuple[Dataset, str]]


@dataclass(frozen=True)
class SetRows:
    """The rows of a set, in stored order.

    Attributes:
        rows: what the exposure ledger knows them by.
        units: (num_rows,) the number of each row's unit from 0; a row without one is a unit of its own. None if no unit
            was asked for.
        slices: by name: (num_rows,) whether each row is in it.
        slice_rows: by name: what the exposure ledger knows the rows of a slice by.
    """

    rows: TestRows
    units: NDArray[np.int64] | None
    slices: dict[str, NDArray[np.bool_]]
    num_rows: int
    slice_rows: dict[str, TestRows] = field(default_factory=dict)


def read_test_rows(
    run: Run, dataset: Dataset, split: str, unit: str | None, slices: Mapping[str, SliceSpec]
) -> SetRows:
    """The rows of a split of a dataset; the memory it takes is 8 bytes a row for units and 1 byte for each slice.

    Args:
        unit, slices: of `evaluate`.

    Raises:
        UsageError: there is no such split or column, or a slice's condition does not fit a column's type.
        InsufficientEvidence: a slice has no row, or all rows are of one unit.
        CorruptError: a shard is not what was sealed.
    """
    with local_split(run.store, dataset, split) as folder:
        shards = Shards(folder, dataset, split)
        check_unit_and_slices(unit, slices, shards.schema, sensitive=run.withholds)
        reading = _Reading(shards, unit, {name: one.condition for name, one in slices.items()})
        return reading.read(hashed_columns(run, shards.schema.names))


def num_different(run: Run, dataset: Dataset, split: str, column: str) -> int:
    """How many different values a column has in a split; a row without a value counts as one of its own."""
    with local_split(run.store, dataset, split) as folder:
        shards, different, missing = Shards(folder, dataset, split), np.empty(0, np.uint64), 0
        nothing = value_hashes(pa.nulls(1))[0]
        for number in range(len(shards)):
            for table in shards.tables(number, [column]):
                hashes = value_hashes(_joined(table.column(column)))
                missing += int(np.count_nonzero(hashes == nothing))
                different = np.union1d(different, hashes[hashes != nothing])
    return len(different) + missing


def row_digests(run: Run, dataset: Dataset, split: str, unit: str | None = None) -> tuple[Digests, Digests | None]:
    """The digest of each row (rows,) of a split in stored order, and that of its unit; the memory is 8 bytes for each.

    A row without a unit has the digest of the missing value. Raises as `read_test_rows`.
    """
    with local_split(run.store, dataset, split) as folder:
        shards = Shards(folder, dataset, split)
        if unit is not None:
            check_unit_and_slices(unit, {}, shards.schema, sensitive=run.withholds)
        hashed = hashed_columns(run, shards.schema.names)
        rows, units = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for block in _Reading(shards, unit, {}).blocks():
            rows.append(row_hashes(block[name] for name in hashed))
            if unit is not None:
                units.append(value_hashes(block[unit]))
    return np.concatenate(rows), None if unit is None else np.concatenate(units)


def hashed_columns(run: Run, columns: Sequence[str]) -> list[str]:
    """The columns that make a row: all but the name of its split and the place of its text."""
    shards, data = run.spec.shards, run.spec.data
    out = {shards.split.column} if shards is not None else set()
    if not isinstance(data, str) and any(one.format == "text" for one in data.source):
        out |= set(PLACE)
    return [name for name in columns if name not in out] or list(columns)


def check_unit_and_slices(
    unit: str | None, slices: Mapping[str, SliceSpec], schema: pa.Schema, *, sensitive: bool = False
) -> None:
    """UsageError if the unit or a slice names no column, or one whose type does not fit the slice's condition."""
    wanted = [("evaluate.unit", unit)] if unit is not None else []
    conditions = {name: one.condition for name, one in slices.items()}
    for name, condition in conditions.items():
        wanted += [(f"evaluate.slices.{name}", column) for column in condition.columns]
    for place, column in wanted:
        if schema.get_field_index(column) < 0:
            visible = [] if sensitive else schema.names
            hint = nearest(column, visible) or "."
            raise UsageError(
                f"{place}: the dataset keeps no column {absent_name(column, visible)}{hint}",
                remedy=f"It has {columns_shown(schema.names, sensitive)}.",
            )
    for name, condition in conditions.items():
        meeting(name, condition, {column: pa.array([], schema.field(column).type) for column in condition.columns})


def meeting(name: str, condition: Condition, columns: Mapping[str, pa.Array]) -> NDArray[np.bool_]:
    """Which rows are in a slice: (rows,); UsageError if a column's type does not fit its condition."""
    try:
        return rows_that_meet(condition, {column: columns[column] for column in condition.columns})
    except UnfitColumn as error:
        raise UsageError(
            f"evaluate.slices.{name}: the condition {error}.", remedy="Correct it, or leave the slice out."
        ) from error


@dataclass(frozen=True)
class _Reading:
    """What is read of a split."""

    shards: Shards
    unit: str | None
    conditions: Mapping[str, Condition]

    def read(self, hashed: list[str]) -> SetRows:
        """One pass over the shards."""
        rows, units = TestRows.of(np.empty(0, np.uint64)), [np.empty(0, np.uint64)]
        missing = [np.empty(0, bool)]
        slices = {name: [np.empty(0, bool)] for name in self.conditions}
        slice_rows = dict.fromkeys(self.conditions, rows)
        for block in self.blocks():
            hashes = row_hashes(block[name] for name in hashed)
            rows = rows.with_more(hashes)
            if self.unit is not None:
                units.append(value_hashes(block[self.unit]))
                missing.append(value_hashes(pa.nulls(1))[0] == units[-1])
            for name, condition in self.conditions.items():
                met = meeting(name, condition, block)
                slices[name].append(met)
                slice_rows[name] = slice_rows[name].with_more(hashes[met])
        found = {name: np.concatenate(parts) for name, parts in slices.items()}
        self._refuse_empty(found)
        which = None if self.unit is None else numbered(np.concatenate(units), np.concatenate(missing))
        if which is not None and len(which) > 1 and not which.any():
            raise InsufficientEvidence(
                f"evaluate.unit: all {len(which):,} rows of {self.shards.split} have the same "
                f"{self.unit!r}, so there is one unit and nothing to compare",
                remedy="Name a column with several values, or leave evaluate.unit out.",
            )
        return SetRows(rows, which, found, self.shards.num_rows, slice_rows)

    def blocks(self) -> Iterator[dict[str, pa.Array]]:
        """The rows of all shards in stored order, as columns by name."""
        names = self.shards.schema.names
        for number in range(len(self.shards)):
            for table in self.shards.tables(number, names):
                for start in range(0, table.num_rows, _BLOCK_ROWS):
                    block = table.slice(start, _BLOCK_ROWS)
                    yield {name: _joined(block.column(name)) for name in names}

    def _refuse_empty(self, slices: Mapping[str, NDArray[np.bool_]]) -> None:
        for name, rows in slices.items():
            if not rows.any():
                raise InsufficientEvidence(
                    f"evaluate.slices.{name}: none of the {len(rows):,} rows of {self.shards.split} is in this slice",
                    remedy="Correct its condition, add such rows, or leave the slice out.",
                )


def _joined(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def numbered(hashes: NDArray[np.uint64], missing: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Units as numbers from 0, by their hashes (rows,); each row without one (`missing`) is a unit of its own."""
    different, numbers = np.unique(hashes, return_inverse=True)
    numbers = numbers.astype(np.int64)
    count = int(missing.sum())
    if count:
        numbers[missing] = len(different) + np.arange(count)
        numbers = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
    return numbers
