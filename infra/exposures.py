"""The exposure ledger: which comparisons a set of test rows has decided, so that the next one asks for more evidence.

An entry is created once and numbered within its rows; it is keyed by candidate and champion, so that a comparison made
again spends nothing. Rows are known by what is in them, not by a name, a place or an order. A set of rows that shares
some with an earlier set inherits what that one has spent, by the share. Nothing here is ever deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_contracts.canonical import digest
from infra.store import Store, layout

# Of a set of more rows, so many of the smallest digests stand for it: a share is then known to about one in a hundred.
SAMPLE = 8192


@dataclass(frozen=True)
class TestRows:
    """The rows of a test set, known by their digests.

    Attributes:
        digests: (≤ SAMPLE,) the smallest different digests of its rows, ascending.
    """

    digests: NDArray[np.uint64]

    @classmethod
    def of(cls, digests: NDArray[np.uint64]) -> TestRows:
        """From the digests (rows,) of all rows in any order."""
        return cls(np.unique(digests)[:SAMPLE])

    @property
    def id(self) -> str:
        """The same for the same rows, in whatever order."""
        return digest(self.digests.astype("<u8").tobytes().hex())

    def covered_by(self, other: TestRows) -> float:
        """The share of these rows that the other set has, too."""
        if not len(self.digests):
            return 0.0
        # Both samples are whole below the smaller of their largest digests.
        mine = self.digests
        if len(other.digests) == SAMPLE:
            mine = mine[mine <= other.digests[-1]]
        if not len(mine):
            return 0.0
        return float(np.isin(mine, other.digests, assume_unique=True).mean())


@dataclass(frozen=True)
class Exposure:
    """One comparison and what these rows had decided before it.

    Attributes:
        before, promoted: comparisons before this one, and those of them that promoted; a comparison on other rows that
            shares some with these counts by the share.
    """

    path: str
    before: float
    promoted: float


def expose(store: Store, rows: TestRows, candidate: str, champion: str) -> Exposure:
    """The entry of a comparison, made unless it is there."""
    folder = layout.exposures(rows.id)
    store.create_once(layout.exposed_rows(rows.id), rows.digests.astype("<u8").tobytes())
    before, promoted = _inherited(store, rows)
    pair = {"candidate": candidate, "champion": champion}
    n = 0
    while True:
        path = layout.exposure(rows.id, n)
        found = store.find_as(path, dict)
        if found is None:
            better = sum(name.endswith(".better") for name in store.list(folder))
            entry = {**pair, "before": before + n, "promoted": promoted + better}
            if store.create_once(path, entry):
                return Exposure(path, entry["before"], entry["promoted"])
            continue  # another run took this number
        if found["candidate"] == candidate and found["champion"] == champion:
            return Exposure(path, found["before"], found["promoted"])
        n += 1


def was_better(store: Store, exposure: Exposure) -> None:
    """Record that the comparison found the candidate better; before anyone is told so."""
    store.create_once(f"{exposure.path.removesuffix('.json')}.better", b"")


def _inherited(store: Store, rows: TestRows) -> tuple[float, float]:
    """Comparisons, and promotions, on other rows, by the share of these rows that they had."""
    before = promoted = 0.0
    for other in store.list(layout.exposures()):
        if other == rows.id:
            continue
        known = np.frombuffer(store.read(layout.exposed_rows(other)), "<u8").astype(np.uint64)
        share = rows.covered_by(TestRows(known))
        if share:
            names = store.list(layout.exposures(other))
            before += share * sum(name.endswith(".json") for name in names)
            promoted += share * sum(name.endswith(".better") for name in names)
    return before, promoted
