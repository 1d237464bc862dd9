"""Finds near duplicates of a text column across sides: candidates share a MinHash band, and each is then verified.

The bands of all texts are sorted on disk; texts of rows that share a band with a row of a side used at another time are
kept in a file; their pairs are compared by their sets of shingles, so that no pair below the similarity is reported.
Memory is bounded by one byte or a few for each row, the rows of one band, and CACHED_CHARS of shingles.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.errors import UsageError
from data_contracts.messages.contamination import Overlap, Place
from data_contracts.pipeline_spec import NearSpec
from data_contracts.quoting import column_shown
from training.contamination.exact import CHECKED_ROWS, EXAMPLES, KEEP_BYTES, RUN_BYTES
from training.contamination.minhash import LONGEST, Bands
from training.contamination.sides import Compared, OpenSide
from training.shard.spill import Spill, Spilled

CACHED_CHARS = 2**20
_SCHEMA = pa.schema([("key", pa.uint64()), ("row", pa.int64())])


@dataclass
class Near:
    """Which rows are near duplicates of rows in which sides.

    Attributes:
        first_rows: per side, the rows of all sides before it; rows are numbered over all sides.
        near_of: per row, a bit for each side in which a near duplicate of it was found.
        examples: (earlier, later) → row of later → the first row of earlier that was found.
    """

    sides: Sequence[OpenSide]
    first_rows: NDArray[np.int64]
    near_of: NDArray[np.unsignedinteger]
    examples: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, sides: Sequence[OpenSide]) -> Near:
        """Nothing is found yet."""
        first_rows = np.cumsum([0, *(one.num_rows for one in sides)])
        width = next(bits for bits in (8, 16, 32, 64) if len(sides) <= bits)
        return cls(sides, first_rows, np.zeros(int(first_rows[-1]), f"u{width // 8}"))

    def side_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each row's side."""
        return np.searchsorted(self.first_rows, rows, "right") - 1

    def known(self, a: int, side_a: int, b: int, side_b: int) -> bool:
        """Whether each row has a near duplicate in the other's side already."""
        return bool(self.near_of[a] >> side_b & 1) and bool(self.near_of[b] >> side_a & 1)

    def found(self, a: int, side_a: int, b: int, side_b: int) -> None:
        """Note a pair."""
        self.near_of[a] |= self.near_of.dtype.type(1 << side_b)
        self.near_of[b] |= self.near_of.dtype.type(1 << side_a)
        if self.sides[side_a].side.use > self.sides[side_b].side.use:
            a, side_a, b, side_b = b, side_b, a, side_a
        examples = self.examples.setdefault((side_a, side_b), {})
        examples[b] = min(a, examples.get(b, a))
        if len(examples) > EXAMPLES:
            del examples[max(examples)]

    def mask(self, side: int) -> NDArray[np.bool_]:
        """Rows of a side that are near a row of a side which is used later."""
        later = sum(1 << one.number for one in self.sides if one.side.use > self.sides[side].side.use)
        return self._rows(side) & self.near_of.dtype.type(later) != 0

    def overlaps(self) -> list[Overlap]:
        """The pairs of sides with near duplicates."""
        return [
            Overlap(
                kind="near",
                earlier=self.sides[a].side.name,
                later=self.sides[b].side.name,
                earlier_rows=int((self._rows(a) >> b & 1).sum()),
                later_rows=int((self._rows(b) >> a & 1).sum()),
                examples=[
                    (self._place(b, later), self._place(a, earlier)) for later, earlier in sorted(examples.items())
                ],
            )
            for (a, b), examples in sorted(self.examples.items())
        ]

    def _rows(self, side: int) -> NDArray[np.unsignedinteger]:
        return self.near_of[self.first_rows[side] : self.first_rows[side + 1]]

    def _place(self, side: int, row: int) -> Place:
        return self.sides[side].place(row - int(self.first_rows[side]))


def find_near(compared: Compared, asked: NearSpec, folder: Path) -> Near:
    """The near duplicates of all sides in a text column."""
    near = Near.of(compared.sides)
    banded = _banded(compared, asked, folder, near)
    wanted = np.unique(np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in _buckets(banded, near))]))
    if not len(wanted):
        return near
    with _Texts(compared, asked, wanted, near, folder / "candidates.utf8") as texts:
        for rows, sides in _buckets(banded, near):
            _verify(rows.tolist(), sides.tolist(), texts, near, asked.similarity)
            compared.advanced()
    return near


def _banded(compared: Compared, asked: NearSpec, folder: Path, near: Near) -> Spilled:
    """Every text's bands with its row, sorted; texts that are empty or missing have none."""
    bands, spill = Bands(asked.similarity, asked.shingle), Spill(folder, RUN_BYTES, KEEP_BYTES)
    for side, first, texts in _texts(compared, asked.column, near):
        there = np.flatnonzero(pc.fill_null(pc.greater(pc.binary_length(texts), 0), False).to_numpy())
        if len(there):
            keys = bands.of(texts.take(pa.array(there)).to_pylist()).reshape(-1)
            rows = np.repeat(there + int(near.first_rows[side.number]) + first, bands.bands)
            spill.put("", keys, pa.table([keys, rows], schema=_SCHEMA))
    return spill.close()


def _texts(compared: Compared, column: str, near: Near) -> Iterator[tuple[OpenSide, int, pa.ChunkedArray]]:
    kind = compared.types[column]
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UsageError(
            f"contract.contamination.near: column {column_shown(repr(column))} is {kind}, not text.",
            remedy="Name a column of texts.",
        )
    for side in compared.sides:
        for first, [texts] in compared.blocks(side, [column]):
            yield side, first, texts


def _buckets(banded: Spilled, near: Near) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows, and their sides, of each band that rows of sides with different uses share."""
    uses = np.array([one.side.use for one in near.sides])
    for start, stop in banded.ranges("", CHECKED_ROWS) if banded.rows("") else []:
        table = banded.part("", start, stop).read(lambda rows: rows, _SCHEMA)
        key, row = table.column("key").to_numpy(), table.column("row").to_numpy()
        order = np.lexsort((row, key))
        key, row = key[order], row[order]
        side = near.side_of(row)
        begins = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        use = uses[side]
        low, high = np.minimum.reduceat(use, begins), np.maximum.reduceat(use, begins)
        ends = np.append(begins[1:], len(key))
        for bucket in np.flatnonzero(low != high).tolist():
            inside = slice(int(begins[bucket]), int(ends[bucket]))
            yield row[inside], side[inside]


def _verify(rows: list[int], sides: list[int], texts: _Texts, near: Near, similarity: float) -> None:
    """Compare the pairs of a bucket whose sides are used at different times, until every row has what can be found."""
    uses = [near.sides[side].side.use for side in sides]
    for i, j in combinations(range(len(rows)), 2):
        if uses[i] == uses[j] or near.known(rows[i], sides[i], rows[j], sides[j]):
            continue
        one, other = texts.shingles(rows[i]), texts.shingles(rows[j])
        small, large = sorted((len(one), len(other)))
        if small < similarity * large:
            continue
        shared = len(one & other)
        if shared >= similarity * (small + large - shared):
            near.found(rows[i], sides[i], rows[j], sides[j])


class _Texts:
    """The texts of candidate rows, in a file; a context."""

    def __init__(self, compared: Compared, asked: NearSpec, wanted: NDArray[np.int64], near: Near, path: Path) -> None:
        self._rows, self._size, self._advanced = wanted, asked.shingle, compared.advanced
        lengths = []
        with path.open("wb") as file:
            for side, first, texts in _texts(compared, asked.column, near):
                start = int(near.first_rows[side.number]) + first
                low, high = np.searchsorted(wanted, [start, start + len(texts)])
                for text in texts.take(pa.array(wanted[low:high] - start)).to_pylist():
                    lengths.append(file.write(text[:LONGEST].encode("utf-8", "surrogatepass")))
        self._ends = np.cumsum(lengths)
        self._file = path.open("rb")
        self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._cached: OrderedDict[int, frozenset[str]] = OrderedDict()
        self._chars = 0

    def shingles(self, row: int) -> frozenset[str]:
        """The set of a row's shingles."""
        if row in self._cached:
            self._cached.move_to_end(row)
            return self._cached[row]
        self._advanced()
        at = int(np.searchsorted(self._rows, row))
        start = int(self._ends[at - 1]) if at else 0
        text = self._bytes[start : int(self._ends[at])].decode("utf-8", "surrogatepass")
        made = frozenset(text[i : i + self._size] for i in range(max(1, len(text) - self._size + 1)))
        self._cached[row] = made
        self._chars += len(made)
        while self._chars > CACHED_CHARS and len(self._cached) > 2:
            self._chars -= len(self._cached.popitem(last=False)[1])
        return made

    def __enter__(self) -> _Texts:
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes.close()
        self._file.close()
