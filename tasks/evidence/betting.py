"""Whether a mean gain is above a bound, by bets: a test that may be looked at at any time, any number of times.

Someone bets on each row that the challenger gains more than `bound`. If it does not, the capital is expected to shrink,
so the probability that it ever grows to 1/α is at most α (Ville 1939), whoever looks, as often as they like, and stops
when they like. Every test of a bounded mean that keeps this promise is of this form (Waudby-Smith and Ramdas 2024,
"Estimating means of bounded random variables by betting"; Clerico 2024). The capital is the mean over a fixed grid of
bets, so it depends on sums over the rows alone: neither on their order nor on the nights that they came in.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Shares of the largest bet, which could lose the whole capital on one row. A bet of a sixteenth has a quarter of the
# weight: small advantages are found late anyway, and large ones must not wait for the sake of small ones.
_STEPS = np.arange(96)
_SHARES = 0.999999 * 2.0 ** (-_STEPS / 4)
_LOG_WEIGHTS = math.log1p(-(2.0 ** (-1 / 8))) - _STEPS / 8 * math.log(2)
# What a bet costs for each squared gain (Fan, Grama and Liu 2015).
_COSTS = -np.log1p(-_SHARES) - _SHARES


def log_capital_of_counts(won: ArrayLike, lost: ArrayLike, tied: ArrayLike, bound: float) -> NDArray[np.float64]:
    """The logarithm of the capital, which began with 1, of bets on models that are right or wrong on each row.

    It is exact. With a bound of 0, tied rows change nothing, as in McNemar's test, and this is a mixture of coins
    (Robbins 1970).

    Args:
        won, lost, tied: (...) rows on which only the challenger is right, only the champion, and both or neither.
        bound: of the gain; above -1 and below 1.
    """
    # A bet of `share / (1 + bound)` multiplies the capital by 1 + bet * (gain of the row - bound).
    bets = _SHARES / (1 + bound)
    return _mixed([won, lost, tied], np.log1p(np.stack([bets * (1 - bound), -_SHARES, -bets * bound])))


def log_capital_of_sums(total: ArrayLike, squares: ArrayLike) -> NDArray[np.float64]:
    """A lower bound of the same for gains that are any numbers, but not below -1.

    log(1 + bet * gain) >= bet * gain - cost of the bet * gain**2 (Fan, Grama and Liu 2015, lemma 4.1), so two sums are
    enough. It is close to equality where gains are small, as they mostly are.

    Args:
        total, squares: (...) sums of the gains beyond the bound, and of their squares.
    """
    return _mixed([total, squares], np.stack([_SHARES, -_COSTS]))


def counts_show(won: float, lost: float, tied: float, bound: float, alpha: float) -> bool:
    """Whether the true gain is shown to be above `bound`; it is ever false with a probability of at most `alpha`."""
    if bound >= 1:
        return False
    if bound <= -1:
        # With a gain of -1 the champion alone is right on every row; a lower one does not exist.
        return won + tied > 0 or (bound < -1 and lost > 0)
    return bool(log_capital_of_counts(won, lost, tied, bound) >= -math.log(alpha))


def sums_show(total: float, squares: float, alpha: float) -> bool:
    """The same for gains beyond the bound that are not below -1."""
    return bool(log_capital_of_sums(total, squares) >= -math.log(alpha))


def _mixed(sums: list[ArrayLike], of_bets: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean capital over all bets; `of_bets` is (sums, bets)."""
    grown = np.stack(np.broadcast_arrays(*sums), axis=-1).astype(np.float64) @ of_bets + _LOG_WEIGHTS
    most = grown.max(axis=-1)
    return np.asarray(most + np.log(np.exp(grown - most[..., np.newaxis]).sum(axis=-1)))
