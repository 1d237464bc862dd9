"""Facts about a split that only all rows can show: noted unit by unit, merged, and judged at the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data_contracts.arrow_rows import Numbers, number_before
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from data_contracts.quoting import MASK
from training.shard import time_split
from training.shard.position_split import Documents

USUAL = ("train", "val", "test")

Place = tuple[int, int]  # number of a unit, number of a row in it


@dataclass
class Notes:
    """Observations in some units' rows that can be judged only with all rows.

    Attributes:
        nulls: rows without a time or a split, and the first of them.
        bad_name: the first row whose column does not name a split, and the column's value.
        zones: whether texts with (True) or without (False) a time zone were seen.
        dropped: rows left out, by reason.
        documents: counted by a split by position.
        key: the digest of a row's key, for a split by key alone.
        several_keys: whether another row has another.
    """

    nulls: int = 0
    first_null: Place | None = None
    bad_name: tuple[Place, str] | None = None
    zones: set[bool] = field(default_factory=set)
    dropped: dict[str, int] = field(default_factory=dict)
    documents: Documents = field(default_factory=Documents)
    key: int | None = None
    several_keys: bool = False

    def look_at(self, digests: NDArray[np.uint64]) -> None:
        """Note whether rows have several keys: the first half of the digest of each row's key, (rows,)."""
        if len(digests) and not self.several_keys:
            self.key = int(digests[0]) if self.key is None else self.key
            self.several_keys = bool((digests != self.key).any())

    def merge(self, other: Notes) -> None:
        """Add the notes about later units."""
        self.nulls += other.nulls
        self.first_null = self.first_null or other.first_null
        self.bad_name = self.bad_name or other.bad_name
        self.zones |= other.zones
        self.documents.merge(other.documents)
        if other.key is not None:
            self.several_keys |= other.several_keys or self.key not in (None, other.key)
            self.key = other.key
        for reason, rows in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + rows

    @property
    def spoilt(self) -> bool:
        """Whether the rows will be refused."""
        return bool(self.nulls or self.bad_name or len(self.zones) > 1)


def judge(
    notes: Notes,
    spec: SplitSpec,
    first_rows: Sequence[int],
    sensitive: Collection[str] = (),
    left_out: Numbers | None = None,
) -> None:
    """UsageError if the notes about all rows show that they cannot be split.

    Args:
        first_rows: per unit, how many rows all units before it have.
        left_out: the numbers of rows that no unit has.
    """

    def number(place: Place) -> int:
        row = first_rows[place[0]] + place[1]
        return row if left_out is None else number_before(row, left_out)

    if notes.nulls and notes.first_null is not None:
        what = f"shards.split.column: rows without a value in {spec.column!r} belong to no split"
        if spec.time is not None:
            what = f"shards.split.time: {spec.time!r} has rows without a time"
        raise UsageError(
            f"{what}: {notes.nulls}, the first is row {number(notes.first_null)}.",
            remedy="Fill or drop them in the data, and let the contract check for them.",
        )
    if len(notes.zones) > 1:
        raise time_split.no_times(spec)
    if notes.bad_name is not None:
        place, why = notes.bad_name
        if spec.column in sensitive:
            why = f"{MASK} cannot be a name; that of a sensitive column is {', '.join(USUAL[:-1])} or {USUAL[-1]}"
        raise UsageError(
            f"shards.split.column: row {number(place)} names no split in {spec.column!r}: {why}.",
            remedy="Correct the row, or name another column.",
        )


def refuse_empty(counts: dict[str, int], required: Collection[str], who: str, why: str = "") -> None:
    """UsageError if `who` (a field of the spec) leaves a required split without rows; `why` ends the sentence."""
    for name in required:
        if not counts.get(name):
            left = ", ".join(f"{split} {number}" for split, number in counts.items()) or "no rows at all"
            raise UsageError(
                f"{who} leaves no rows for {name!r} ({left}){why}.",
                remedy=f"Change {who} so that {name!r} gets some, or give more data.",
                details={"split": name, "rows": counts},
            )
