"""Student's t test of a mean, corrected for skewness, which matters far out in the tail (Hall 1992)."""

from __future__ import annotations

import math

from scipy.special import stdtr


def p_value(units: int, distance: float, skewness: float) -> float:
    """How likely a mean at least this far above the bound is, if the true mean is not above it.

    Args:
        units: independent values that the mean is of.
        distance: of the mean from the bound, in standard deviations of a value.
        skewness: of the values.
    """
    corrected = distance + skewness * distance**2 / 3 + skewness**2 * distance**3 / 27 + skewness / (6 * units)
    return max(least(units), float(stdtr(units - 1, -math.sqrt(units) * corrected)))


def least(units: int) -> float:
    """The smallest p-value that so many values can give: as if each could have fallen on either side."""
    return 0.5**units
