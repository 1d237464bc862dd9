"""How much evidence the next comparison on the same rows must bring, so that the promise holds for all of them.

The probability that *any* worse model is promoted while a test set is in use is to be at most α, whoever chooses the
candidates, as long as they are chosen by nothing of these rows but the verdicts. A chooser who has seen k - 1 verdicts,
j of them "better", can have seen C(k - 1, j) different sequences, and may have a candidate ready for each. So each gets
the level

    α / (k² (j + 1) (j + 2) C(k - 1, j))

which adds up to α over all sequences: a union bound over the tree of verdicts. It is the Ladder's argument (Blum and
Hardt 2015) with a test in place of its fixed step. ADR 0040 compares it with an always-valid confidence sequence and
with the Ladder itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import gammaln, ndtri, ndtri_exp

# How likely a gain should be found, where a number of rows is recommended.
POWER = 0.8
# Rows are used up once they can only show gains so many times as large as fresh rows could.
MOST_EFFORT = 3.0


@dataclass(frozen=True)
class Spent:
    """What rows have decided before.

    Attributes:
        comparisons: on these rows; a part of one if it shared a part of the rows.
        promotions: those of them that found the candidate better.
    """

    comparisons: float = 0.0
    promotions: float = 0.0


NOTHING = Spent()


def level(alpha: float, spent: Spent = NOTHING) -> float:
    """The one-sided level of the next comparison.

    Args:
        alpha: the accepted probability of any false promotion while the rows are in use.
    """
    return math.exp(_log_level(alpha, spent))


def _log_level(alpha: float, spent: Spent) -> float:
    before, promoted = math.ceil(spent.comparisons - 1e-9), math.ceil(spent.promotions - 1e-9)
    promoted = min(promoted, before)
    sequences = float(gammaln(before + 1) - gammaln(promoted + 1) - gammaln(before - promoted + 1))
    return math.log(alpha) - 2 * math.log(before + 1) - math.log((promoted + 1) * (promoted + 2)) - sequences


def effort(alpha: float, spent: Spent) -> float:
    """How many times as large as on fresh rows a gain must be to be found with the same probability; at least 1."""
    to_power = float(ndtri(POWER))
    return (to_power - float(ndtri_exp(_log_level(alpha, spent)))) / (
        to_power - float(ndtri_exp(_log_level(alpha, NOTHING)))
    )


def used_up(alpha: float, spent: Spent) -> bool:
    """Whether the rows decide nothing more."""
    return effort(alpha, spent) > MOST_EFFORT


def comparisons_left(alpha: float, spent: Spent) -> int:
    """How many more comparisons the rows can decide if none of these promotes; at most a million."""
    low, high = 0, 1_000_000
    while low < high:
        middle = (low + high + 1) // 2
        if used_up(alpha, Spent(spent.comparisons + middle - 1, spent.promotions)):
            high = middle - 1
        else:
            low = middle
    return low
