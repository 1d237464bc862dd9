"""Finds keys in two splits of a split by time or column, in bounded memory: equal keys meet by digest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from data_contracts.quoting import MASK
from training.shard.key_digests import group_starts
from training.shard.spill import Spill, Spilled
from training.shard.splitter import LEFT_OUT, keys_of

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


@dataclass(frozen=True)
class Shared:
    """A row whose key is in another split too, both splits, and the number of such keys."""

    row: int
    here: str
    there: str
    keys: int


class Sides:
    """Records in which splits each key was seen."""

    def __init__(self, folder: Path, run_bytes: int, keep_bytes: int) -> None:
        self._spill = Spill(folder, run_bytes, keep_bytes)

    def note(
        self, digests: NDArray[np.uint64], of_row: NDArray[np.int16], names: Sequence[str], unit: int, first_row: int
    ) -> None:
        """Record rows: the digests of their keys, (rows, 2), and their splits, (rows,).

        Rows that are left out are in no split.
        """
        kept = np.flatnonzero(of_row != LEFT_OUT)
        if not len(kept):
            return
        key, rest, split = digests[kept, 0], digests[kept, 1], of_row[kept]
        # One record for each key and split of a batch, with the first and the last of its rows.
        order = np.lexsort((kept, split, rest, key))
        key, rest, split, rows = key[order], rest[order], split[order], kept[order] + first_row
        begins = group_starts(key, rest, split)
        ends = np.append(begins[1:], len(key)) - 1
        columns = {
            "key": key[begins],
            "rest": rest[begins],
            "split": pa.array(list(names), pa.string()).take(pa.array(split[begins])),
            "unit": np.full(len(begins), unit, np.int64),
            "first": rows[begins],
            "last": rows[ends],
        }
        self._spill.put("", key[begins], pa.table(columns, schema=_SCHEMA))

    def close(self) -> Spilled:
        """All records."""
        return self._spill.close()


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


def refuse_shared(shared: Shared, spec: SplitSpec, values: dict[str, Any], sensitive: Collection[str]) -> UsageError:
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
