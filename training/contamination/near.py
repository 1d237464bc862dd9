"""Finds near duplicates of a text column across sides: candidates share a MinHash band, and each is then verified.

The bands of all texts are sorted on disk; texts of rows that share a band with a row of a side used at another time are
kept in a file; their pairs are compared by their sets of shingles, so that no pair below the similarity is reported.
Equal texts are found by their digests and compared once. Memory is bounded by one byte or a few for each row, 24 bytes
for each candidate, the rows of one band, and CACHED_CHARS of shingles.

A shingle is a run of `size` characters (code points); a shorter text is one shingle. Each of a text's minima under
BANDS × rows hash functions equals another text's with the probability of their Jaccard similarity s (Broder, "On the
resemblance and containment of documents", 1997), so that with b bands of r minima the probability of a shared band is 1
- (1 - s^r)^b (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", chapter 3).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rensa import RMinHash

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import MOST_NEAR_SIDES, Overlap, RowPosition
from data_contracts.pipeline_spec import NearSpec
from data_contracts.quoting import column_shown
from training.contamination.exact import CHECKED_ROWS, EXAMPLES, KEEP_BYTES, RUN_BYTES, Compared, OpenSide
from training.shard.key_digests import DIGEST_BYTES, binary_parts, digests, group_starts
from training.shard.spill import Spill, Spilled

CACHED_CHARS = 2**20
_SCHEMA = pa.schema([("key", pa.uint64()), ("row", pa.int64())])
_TEXT_SCHEMA = pa.schema([("text", pa.large_string())])
# Rows with the same text, by side, ascending.
Same = dict[int, list[int]]
# Minima of a text, at most; the probability that a pair at the stated similarity shares no band, at most.
MINIMA = 72
MISSED = 0.005
# Of longer texts only the beginning is compared, so that memory is bounded.
LONGEST = 2**20


class Near:
    """Which rows are near duplicates of rows in which sides.

    Attributes:
        first_rows: per side, the rows of all sides before it; rows are numbered over all sides.
        near_of: per row, a bit for each side in which a near duplicate of it was found.
        examples: (earlier, later) → row of later → the first row of earlier that was found.
    """

    def __init__(self, sides: Sequence[OpenSide]) -> None:
        """Nothing is found yet."""
        assert len(sides) <= MOST_NEAR_SIDES  # the stage refuses more
        self.sides = sides
        self.first_rows = np.cumsum([0, *(one.num_rows for one in sides)])
        self.near_of = np.zeros(int(self.first_rows[-1]), np.min_scalar_type(2 ** len(sides) - 1))
        self.examples: dict[tuple[int, int], dict[int, int]] = {}

    def is_noted(self, text: Same, other: Same) -> bool:
        """Whether all rows of two texts have a near duplicate in the other's sides already, or need none.

        Rows with the same text are in the same bands, so rows of one side know the same.
        """
        return all(
            self.near_of[rows_a[0]] >> b & 1 and self.near_of[rows_b[0]] >> a & 1
            for (a, rows_a), (b, rows_b) in product(text.items(), other.items())
            if self._use(a) != self._use(b)
        )

    def note(self, text: Same, other: Same) -> None:
        """Note that two texts are near each other, or that one is in several sides (`other` is `text` then)."""
        for (a, rows_a), (b, rows_b) in product(text.items(), other.items()):
            if self._use(a) == self._use(b):
                continue
            self.near_of[rows_a] |= self.near_of.dtype.type(1 << b)
            self.near_of[rows_b] |= self.near_of.dtype.type(1 << a)
            first, second = (a, rows_a), (b, rows_b)
            self._example(*((first, second) if self._use(a) < self._use(b) else (second, first)))

    def _example(self, earlier: tuple[int, list[int]], later: tuple[int, list[int]]) -> None:
        examples = self.examples.setdefault((earlier[0], later[0]), {})
        first = earlier[1][0]
        for row in later[1][:EXAMPLES]:
            examples[row] = min(first, examples.get(row, first))
        for row in sorted(examples)[EXAMPLES:]:
            del examples[row]

    def _use(self, side: int) -> int:
        return self.sides[side].side.use

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

    def _place(self, side: int, row: int) -> RowPosition:
        return self.sides[side].place(row - int(self.first_rows[side]))


def find_near(compared: Compared, spec: NearSpec, folder: Path) -> Near:
    """The near duplicates of all sides in a text column."""
    near = Near(compared.sides)
    banded = _banded(compared, spec, folder, near)
    candidates = np.unique(np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in _buckets(banded, near))]))
    if not len(candidates):
        return near
    texts = _Texts(compared, spec, candidates, near, folder / "candidates.arrow")
    for rows, sides in _buckets(banded, near):
        _verify(texts.same(rows, sides), texts, near, spec.similarity)
        compared.advanced()
    return near


def _banded(compared: Compared, spec: NearSpec, folder: Path, near: Near) -> Spilled:
    """Every text's bands with its row, sorted; texts that are empty or missing have none."""
    spill = Spill(folder, RUN_BYTES, KEEP_BYTES)
    for side, first, texts in _texts(compared, spec.column, near):
        there = np.flatnonzero(pc.fill_null(pc.greater(pc.binary_length(texts), 0), False).to_numpy())
        if len(there):
            keys = bands_of(texts.take(pa.array(there)).to_pylist(), spec.similarity, spec.shingle)
            rows = np.repeat(there + int(near.first_rows[side.number]) + first, keys.shape[1])
            spill.put("", keys.reshape(-1), pa.table([keys.reshape(-1), rows], schema=_SCHEMA))
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
        side = np.searchsorted(near.first_rows, row, "right") - 1
        begins = group_starts(key)
        use = uses[side]
        low, high = np.minimum.reduceat(use, begins), np.maximum.reduceat(use, begins)
        ends = np.append(begins[1:], len(key))
        for bucket in np.flatnonzero(low != high).tolist():
            inside = slice(int(begins[bucket]), int(ends[bucket]))
            yield row[inside], side[inside]


def _verify(same: list[Same], texts: _Texts, near: Near, similarity: float) -> None:
    """Compare the texts of a bucket whose sides are used at different times, until every row has what can be found."""
    for i, one in enumerate(same):
        texts.advanced()
        if not near.is_noted(one, one):
            near.note(one, one)
        for other in same[i + 1 :]:
            if not near.is_noted(one, other) and texts.similar(_row(one), _row(other), similarity):
                near.note(one, other)


def _row(same: Same) -> int:
    return next(iter(same.values()))[0]


class _Texts:
    """The texts of candidate rows, in a mapped file."""

    def __init__(
        self, compared: Compared, spec: NearSpec, candidates: NDArray[np.int64], near: Near, path: Path
    ) -> None:
        self._rows, self._size, self.advanced = candidates, spec.shingle, compared.advanced
        of_texts = []
        with pa.ipc.new_file(str(path), _TEXT_SCHEMA) as file:
            for side, first, texts in _texts(compared, spec.column, near):
                start = int(near.first_rows[side.number]) + first
                low, high = np.searchsorted(candidates, [start, start + len(texts)])
                chosen = texts.take(pa.array(candidates[low:high] - start)).combine_chunks().cast(pa.large_string())
                chosen = pc.utf8_slice_codeunits(chosen, 0, LONGEST)
                file.write_batch(pa.record_batch([chosen], schema=_TEXT_SCHEMA))
                of_texts.append(digests(*binary_parts(chosen)))
        self._digests = np.concatenate(of_texts).view(f"V{DIGEST_BYTES}").reshape(-1)
        self._texts = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column(0)
        self._cached: OrderedDict[int, frozenset[str]] = OrderedDict()
        self._chars = 0

    def same(self, rows: NDArray[np.int64], sides: NDArray[np.int64]) -> list[Same]:
        """Ascending rows, and their sides, by their texts."""
        digests = self._digests[np.searchsorted(self._rows, rows)]
        found: dict[bytes, Same] = {}
        for digest, row, side in zip(digests.tolist(), rows.tolist(), sides.tolist(), strict=True):
            found.setdefault(digest, {}).setdefault(side, []).append(row)
        return list(found.values())

    def similar(self, row: int, other_row: int, similarity: float) -> bool:
        """Whether two rows' sets of shingles have at least this Jaccard similarity."""
        one, other = self._shingles(row), self._shingles(other_row)
        small, large = sorted((len(one), len(other)))
        if small < similarity * large:
            return False
        shared = len(one & other)
        return shared >= similarity * (small + large - shared)

    def _shingles(self, row: int) -> frozenset[str]:
        """The set of a row's shingles."""
        if row in self._cached:
            self._cached.move_to_end(row)
            return self._cached[row]
        text = self._texts[int(np.searchsorted(self._rows, row))].as_py()
        made = shingles_of(text, self._size)
        self._cached[row] = made
        self._chars += len(made)
        while self._chars > CACHED_CHARS and len(self._cached) > 2:
            self._chars -= len(self._cached.popitem(last=False)[1])
        return made


def banding(similarity: float) -> tuple[int, int]:
    """Bands, and minima of each: the longest bands that miss at most MISSED of the pairs at this similarity."""
    for length in range(MINIMA, 0, -1):
        bands = MINIMA // length
        if (1 - similarity**length) ** bands <= MISSED:
            return bands, length
    raise AssertionError("one minimum a band misses nothing")


def bands_of(texts: Sequence[str], similarity: float, size: int) -> NDArray[np.uint64]:
    """The digest of each band of each text: (texts, bands) uint64."""
    bands, length = banding(similarity)
    minima = np.empty((len(texts), bands * length), "<u4")
    for row, text in enumerate(texts):
        sketch = RMinHash(num_perm=bands * length, seed=1)
        sketch.update(shingles_of(text, size))
        minima[row] = sketch.digest()
    data = minima.reshape(-1).view(np.uint8)
    return digests(data, np.arange(0, data.size + 1, 4 * length))[:, 0].reshape(len(texts), bands)


def shingles_of(text: str, size: int) -> frozenset[str]:
    """The set of a text's shingles."""
    text = text[:LONGEST]
    return frozenset(text[at : at + size] for at in range(max(1, len(text) - size + 1)))
