"""Splits documents by position: the first pieces of each go to train, the last to test, with gaps if asked.

A document of n pieces is cut at the nearest whole piece to each share of n. If that leaves a split without a piece of
it, the whole document goes to one split, drawn by the hash of its name as in a split by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.errors import UsageError

COLUMNS = ("document", "position", "pieces")
LEFT_OUT = -1
# Shares are fractions of 2^32 and are compared as integers, so every machine rounds alike.
_ONE = 32


def check(schema: pa.Schema) -> None:
    """UsageError unless the columns that a split by position reads are what `format: text` gives."""
    for name in COLUMNS[1:]:
        if not pa.types.is_integer(schema.field(name).type):
            raise UsageError(
                f"shards.split.by: the column {name} is {schema.field(name).type}, not whole numbers.",
                remedy="Read documents with format: text.",
            )


@dataclass
class Documents:
    """How many documents there are, how many are too short to be cut, and how many of these only because of the gap."""

    all: int = 0
    short: int = 0
    by_gap: int = 0

    def count(self, pieces: NDArray[np.int64], shares: Sequence[float], gap: int) -> None:
        """Add documents of so many pieces: (documents,)."""
        self.all += len(pieces)
        self.short += int(too_short(pieces, shares, gap).sum())
        self.by_gap += int((too_short(pieces, shares, gap) & ~too_short(pieces, shares, 0)).sum())

    def merge(self, other: Documents) -> None:
        """Add the documents of later units."""
        self.all, self.short, self.by_gap = self.all + other.all, self.short + other.short, self.by_gap + other.by_gap


def starts(
    names: NDArray[np.uint64], position: NDArray[np.int64], last: tuple[NDArray[np.uint64], int] | None
) -> NDArray[np.bool_]:
    """Whether each row is of another document than the row before it: (rows,) bool.

    Args:
        names: digests of the documents' names: (rows, 2).
        last: digest and position of the row before these; None if these are the first.
    """
    found = np.ones(len(position), bool)
    # Rows of a document stand together, in order; two sources may have a document of the same name.
    found[1:] = (names[1:] != names[:-1]).any(1) | (position[1:] <= position[:-1])
    if last is not None and len(position):
        found[0] = (names[0] != last[0]).any() or position[0] <= last[1]
    return found


def numbers(rows: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The columns `position` and `pieces`."""
    position, pieces = (rows.column(name).combine_chunks().to_numpy().astype(np.int64) for name in COLUMNS[1:])
    return position, pieces


def too_short(pieces: NDArray[np.int64], shares: Sequence[float], gap: int) -> NDArray[np.bool_]:
    """Whether documents of so many pieces are too short to be cut: a split would get no piece of them."""
    short = np.zeros(len(pieces), bool)
    before = np.zeros(len(pieces), np.int64)
    for bound in _bounds(pieces, shares):
        short |= bound - gap <= before
        before = bound
    return short | (before >= pieces)


def _bounds(pieces: NDArray[np.int64], shares: Sequence[float]) -> list[NDArray[np.int64]]:
    """The first position of each later split in documents of so many pieces."""
    parts = [round(share * 2**_ONE) for share in np.cumsum(shares)[:-1].tolist()]
    return [(pieces * part + (1 << (_ONE - 1))) >> _ONE for part in parts]


def by_position(
    position: NDArray[np.int64], pieces: NDArray[np.int64], shares: Sequence[float], gap: int, drawn: NDArray[np.int16]
) -> NDArray[np.int16]:
    """The index of each row's split, or LEFT_OUT: (rows,) int16.

    Args:
        position, pieces: the rows' columns.
        shares: of the splits, in order.
        gap: pieces before each boundary that are left out.
        drawn: the split of each row's document, if it is too short to be cut: (rows,).
    """
    found = np.zeros(len(position), np.int16)
    gone = np.zeros(len(position), bool)
    for bound in _bounds(pieces, shares):
        found += position >= bound
        gone |= (position >= bound - gap) & (position < bound)
    short = too_short(pieces, shares, gap)
    found[gone] = LEFT_OUT
    found[short] = drawn[short]
    return found
