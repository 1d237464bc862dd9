"""The paired bootstrap: statistics of rows drawn with replacement, many times over.

Both models are scored on each drawn row, so that what is hard for both cancels out. A statistic that depends on counts
of a few kinds of rows is drawn as one multinomial per resample; a mean as the sum of as many drawn values as there are
rows; an area under the ROC curve is computed again from how often each row was drawn.

The results depend on the seed alone, and not on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from tasks.evidence import kernels

RESAMPLES = 10_000


def resampled_means(values: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Means (resamples,) of `values` (rows,), of which as many as there are rows are drawn."""
    if not len(values):
        raise ValueError("no rows")
    values = np.ascontiguousarray(values, np.float64)
    shares = _blocks(len(values), resamples, seed)
    sums = np.empty(resamples)
    _by_threads(resamples, lambda first, last: kernels.sums(values, shares, seed, first, last, sums))
    return sums / len(values)


def resampled_ratios(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Means over rows (resamples,) where whole units of rows are drawn.

    Args:
        sums, sizes: (units,) sum of the values of each unit's rows, and the number of its rows.
    """
    sums, sizes = np.ascontiguousarray(sums, np.float64), np.ascontiguousarray(sizes, np.float64)
    shares = _blocks(len(sums), resamples, seed)
    tops, bottoms = np.empty(resamples), np.empty(resamples)

    def some(first: int, last: int) -> None:
        # The same seed draws the same units.
        kernels.sums(sums, shares, seed, first, last, tops)
        kernels.sums(sizes, shares, seed, first, last, bottoms)

    _by_threads(resamples, some)
    return tops / bottoms


def resampled_auc(
    scores: NDArray[np.float64], truth: NDArray[np.bool_], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Areas under the ROC curve, (resamples, models), on the same drawn rows for all models.

    A resample in which one class was not drawn has no area: NaN.

    Args:
        scores: (models, rows), higher for rows that are more likely true. Equal scores count half.
        truth: (rows,).
    """
    orders = np.argsort(scores, axis=1, kind="stable")
    ordered = np.take_along_axis(scores, orders, axis=1)
    last_of_equals = np.ones(ordered.shape, np.bool_)
    last_of_equals[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    truths = truth[orders]
    places = orders.astype(np.int32)
    shares = _blocks(truth.size, resamples, seed)
    areas = np.empty((resamples, len(scores)))
    _by_threads(
        resamples,
        lambda first, last: kernels.areas(places, last_of_equals, truths, shares, seed, (first, last), areas),
    )
    return areas


def _blocks(rows: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """How many draws fall into each block of rows: (resamples, blocks)."""
    sizes = np.full(-(-rows // kernels.BLOCK), kernels.BLOCK)
    sizes[-1] = rows - kernels.BLOCK * (len(sizes) - 1)
    return np.random.default_rng(seed).multinomial(rows, sizes / rows, size=resamples)


def _by_threads(resamples: int, work: Callable[[int, int], None]) -> None:
    """Call `work` for ranges of resamples, on all processors that the process may use."""
    threads = len(os.sched_getaffinity(0))
    cuts = np.linspace(0, resamples, 4 * threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, cuts[:-1], cuts[1:]))
