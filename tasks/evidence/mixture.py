"""Two models with a number for each row: a test of the mean difference that may be looked at at any time.

After n units the statistic must exceed a limit that a Brownian motion crosses at any time with a probability of at most
α (Robbins 1970; the one-sided normal mixture of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform
central limit theory and asymptotic confidence sequences"). It is the nominal probability only in large samples. So the
statistic is that of `student`: corrected for skewness, with as many degrees of freedom as the kurtosis leaves to the
variance. And the limit is high for the first units, of which any single one could decide.
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr

from tasks.evidence import student

# The limit is lowest, compared with the statistic's growth, at about so many units.
_BEST_AT = 2_000
# Powers of the differences were rounded: a smaller deviation, relative to the values, is none.
NO_SPREAD = 1e-6


def limit(units: int, alpha: float) -> float:
    """How many standard errors the mean must lie above the bound after so many units."""
    # Their equation for the best mixture, with the level of a two-sided test.
    wanted = -2 * math.log(2 * alpha)
    scaled = units * (wanted + math.log1p(wanted)) / _BEST_AT
    return math.sqrt((1 + 1 / scaled) * 2 * math.log1p(math.sqrt(scaled + 1) / (2 * alpha)))


def shown_above(units: int, distance: float, skewness: float, kurtosis: float, alpha: float) -> bool:
    """Whether a true mean is shown to be above a bound; it is ever false with a probability of at most about `alpha`.

    Args:
        units: independent values that the mean is of.
        distance: of the mean from the bound, in standard deviations of a value.
        skewness, kurtosis: of the values.
    """
    if units < 2 or distance <= 0:
        return False
    p_value = student.p_value(units, distance, skewness, kurtosis)
    return p_value <= 0 or math.log(p_value) <= log_ndtr(-limit(units, alpha))
