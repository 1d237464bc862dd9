"""Confidence intervals from resamples (Efron and Tibshirani 1993, chapters 13 and 14)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval.

    Attributes:
        confidence: between 0 and 1.
        method: how it was computed, in words.
    """

    low: float
    high: float
    confidence: float
    method: str


def percentile(resampled: NDArray[np.float64], confidence: float) -> Interval:
    """Between the quantiles of the resampled statistic, (resamples,); resamples without a value are left out."""
    kept = resampled[np.isfinite(resampled)]
    if not len(kept):
        raise ValueError("no resample has a value")
    low, high = np.quantile(kept, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high), confidence, "percentile bootstrap")


def bca(resampled: NDArray[np.float64], estimate: float, influence: NDArray[np.float64], confidence: float) -> Interval:
    """The percentile interval corrected for bias and skewness (BCa).

    Args:
        resampled: (resamples,) the statistic on each resample.
        estimate: the statistic on the rows themselves.
        influence: (rows,) how much each row moves the statistic, up to a factor: their skewness is the acceleration.
            So it costs as much as reading the rows once, where a jackknife would compute the statistic once per row.
    """
    kept = resampled[np.isfinite(resampled)]
    if not len(kept):
        raise ValueError("no resample has a value")
    below = (np.count_nonzero(kept < estimate) + 0.5 * np.count_nonzero(kept == estimate)) / len(kept)
    if below in (0.0, 1.0):  # all on one side, or all equal: there is no correction
        return percentile(kept, confidence)
    centred = influence - influence.mean()
    spread = float(np.sum(centred**2))
    acceleration = float(np.sum(centred**3)) / (6 * spread**1.5) if spread > 0 else 0.0
    bias = float(ndtri(below))
    shifted = bias + ndtri(np.array([(1 - confidence) / 2, (1 + confidence) / 2]))
    low, high = np.quantile(kept, ndtr(bias + shifted / (1 - acceleration * shifted)))
    return Interval(float(low), float(high), confidence, "BCa bootstrap")
