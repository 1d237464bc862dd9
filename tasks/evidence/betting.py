"""Two models that are right or wrong on each row: an exact test of the difference that may be looked at at any time.

Someone bets on each row that the challenger gains more than `bound`. If it does not, the capital is expected to shrink,
so it ever grows to 1/α with a probability of at most α (Ville 1939): whoever looks, as often as they like, and stops
when they like, is misled as seldom. Tests of a mean are all of this form (Waudby-Smith and Ramdas 2024, "Estimating
means of bounded random variables by betting"; Clerico 2024). The capital is the mean over a fixed grid of bets, so it
depends on nothing but three counts: neither on the order of the rows nor on the nights that they came in. With a bound
of 0, rows on which both models are right or both wrong change nothing, as in McNemar's test, and this is Robbins'
(1970) mixture of coins.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp, xlog1py

# Shares of the largest bet that cannot lose more than the capital. A bet of a quarter has half the weight: small
# advantages are found late anyway, and large ones must not wait for the sake of small ones.
_STEPS = np.arange(96)
_SHARES = 2.0 ** (-_STEPS / 4)
_LOG_WEIGHTS = math.log1p(-(2.0 ** (-1 / 8))) - _STEPS / 8 * math.log(2)


def log_capital(won: float, lost: float, tied: float, bound: float) -> float:
    """The logarithm of the capital of bets that the true gain is above `bound`, which began with 1.

    Args:
        won, lost, tied: rows on which only the challenger is right, only the champion, and both or neither.
        bound: a gain; the capital never grows as it does.
    """
    if bound >= 1:
        return 0.0  # no gain is larger
    if bound <= -1:
        return math.inf if won or tied else 0.0
    # With a bet of `share / (1 + bound)` on each row the capital changes by 1 + bet * (gain - bound).
    bets = _SHARES / (1 + bound)
    grown = xlog1py(won, bets * (1 - bound)) + xlog1py(tied, -bets * bound) + xlog1py(lost, -_SHARES)
    return float(logsumexp(_LOG_WEIGHTS + grown))


def shown_above(won: float, lost: float, tied: float, bound: float, alpha: float) -> bool:
    """Whether the true gain is shown to be above `bound`, which is false with a probability of at most `alpha` ever."""
    return log_capital(won, lost, tied, bound) >= -math.log(alpha)


def last_shown(shown: Callable[[float], bool], low: float, high: float) -> float:
    """The largest bound, to a billionth of the way, that a gain is shown to be above.

    Args:
        low: below all that are not shown; high: above all that are.
    """
    for _ in range(60):
        middle = (low + high) / 2
        if shown(middle):
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * max(abs(low), abs(high)):
            break
    return low
