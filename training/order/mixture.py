"""The order of a weighted mixture: kinds of rows take turns by weight, each in passes over all its rows.

It continues from epoch to epoch, so a position counts from the start of the training, and the cursor is sufficient.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from training.order.permutation import Permutation

# Number of positions in which each kind comes exactly as often as its weight says, in a new random order each time.
ROUND = 1000


class Mixture:
    """The order of one epoch, whose first position is `first` of the whole training."""

    def __init__(
        self, kinds: Mapping[str, NDArray[np.int64]], weights: Mapping[str, float], first: int, *words: str | int
    ) -> None:
        """Args: kinds: the rows of each kind, (its rows,) int64. Words: the seed."""
        # By name, so that the order in which a spec lists them has no effect.
        names = sorted(kinds)
        self._rows = [kinds[name] for name in names]
        self._names = names
        self._first, self._words = first, words
        self._turns = turns([weights[name] for name in names])
        self._kind_of = np.repeat(np.arange(len(names)), self._turns)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these positions of the epoch, both int64."""
        positions = np.asarray(positions, np.int64) + self._first
        rows = np.empty_like(positions)
        kind, turn = np.empty_like(positions), np.empty_like(positions)
        number = positions // ROUND
        for each in np.unique(number):
            here = number == each
            kinds = self._kind_of[Permutation(ROUND, *self._words, "round", int(each))(np.arange(ROUND))]
            at = positions[here] - each * ROUND
            kind[here] = kinds[at]
            turn[here] = each * self._turns[kind[here]] + _counted(kinds)[at]
        for one in np.unique(kind):
            held = self._rows[one]
            passes, inside = np.divmod(turn, len(held))
            for each in np.unique(passes[kind == one]):
                here = (kind == one) & (passes == each)
                order = Permutation(len(held), *self._words, "kind", self._names[one], int(each))
                rows[here] = held[order(inside[here])]
        return rows


def turns(weights: list[float]) -> NDArray[np.int64]:
    """How many of ROUND positions each weight gets, at least one; the largest remainders get what rounding leaves."""
    exact = np.array(weights) / sum(weights) * ROUND
    found = np.maximum(1, np.floor(exact)).astype(np.int64)
    for kind in np.argsort(found - exact, kind="stable")[: ROUND - found.sum()]:
        found[kind] += 1
    while found.sum() > ROUND:
        found[np.argmax(found)] -= 1
    return found


def _counted(kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place, the number of earlier places of its kind."""
    order = np.argsort(kinds, kind="stable")
    counts = np.bincount(kinds)
    before = np.empty_like(order)
    before[order] = np.arange(len(kinds)) - np.repeat(np.cumsum(counts) - counts, counts)
    return before
