"""Splits documents by position: the first pieces of each go to train, the last to test, with gaps if asked.

A document of n pieces is cut at the nearest whole piece to each share of n. If that leaves a split without a piece of
it, the whole document goes to one split, drawn by the hash of its name as in a split by key.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def by_position(rows: pa.Table, shares: Sequence[float], gap: int, drawn: NDArray[np.int16]) -> NDArray[np.int16]:
    """The index of each row's split, or LEFT_OUT: (rows,) int16.

    Args:
        rows: with the columns `position` and `pieces`.
        shares: of the splits, in order.
        gap: pieces before each boundary that are left out.
        drawn: the split of each row's document, if it is too short to be cut: (rows,).
    """
    position, pieces = (rows.column(name).combine_chunks().to_numpy().astype(np.int64) for name in COLUMNS[1:])
    parts = [round(share * 2**_ONE) for share in np.cumsum(shares)[:-1].tolist()]
    bounds = [(pieces * part + (1 << (_ONE - 1))) >> _ONE for part in parts]
    found = np.zeros(len(position), np.int16)
    gone = np.zeros(len(position), bool)
    short = np.zeros(len(position), bool)
    before = np.zeros(len(position), np.int64)
    for bound in bounds:
        found += position >= bound
        gone |= (position >= bound - gap) & (position < bound)
        short |= bound - gap <= before
        before = bound
    short |= before >= pieces
    found[gone] = LEFT_OUT
    found[short] = drawn[short]
    return found
