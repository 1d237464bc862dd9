"""The loops of the bootstrap, compiled by Numba on their first call; the machine code is cached.

Rows are drawn in two steps: how many fall into each block of 4,096 rows is given, and which rows of the block is drawn
here. So the values that a draw may need lie in the processor's first cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

BITS = 12
BLOCK = 1 << BITS
_LOW = np.uint64(BLOCK - 1)
_PER_DRAW = 64 // BITS
_STEP = np.uint64(0x9E3779B97F4A7C15)

Function = TypeVar("Function", bound=Callable)


def _compiled(function: Function) -> Function:
    try:
        made = njit(nogil=True, cache=True, fastmath=False)(function)
    except RuntimeError:  # the compiled code cannot be cached, as on a read-only disk
        made = njit(nogil=True)(function)
    return cast(Function, made)


@_compiled
def _mixed(state: np.uint64) -> np.uint64:
    """64 random bits for each state of a counter (SplitMix64, Steele et al. 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@_compiled
def _start(seed: int, resample: int) -> np.uint64:
    return _mixed(_mixed(np.uint64(seed) + _STEP) + np.uint64(resample) * np.uint64(0xD1342543DE82EF95))


@_compiled
def sums(
    values: NDArray[np.float64],
    shares: NDArray[np.int64],
    seed: int,
    first: int,
    last: int,
    into: NDArray[np.float64],
) -> None:
    """For resamples first … last: the sum of the drawn `values` (rows,), written to `into` (resamples,).

    Args:
        shares: (resamples, blocks) draws from each block.
    """
    for resample in range(first, last):
        state = _start(seed, resample)
        total = 0.0
        for at in range(shares.shape[1]):
            block = values[at * BLOCK : (at + 1) * BLOCK]
            draws = shares[resample, at]
            part = 0.0
            if len(block) == BLOCK:
                for _ in range(draws // _PER_DRAW):
                    state += _STEP
                    bits = _mixed(state)
                    # Two additions at a time do not wait for each other.
                    part += (
                        (block[bits & _LOW] + block[(bits >> np.uint64(12)) & _LOW])
                        + (block[(bits >> np.uint64(24)) & _LOW] + block[(bits >> np.uint64(36)) & _LOW])
                        + block[(bits >> np.uint64(48)) & _LOW]
                    )
                draws %= _PER_DRAW
            for _ in range(draws):
                state += _STEP
                part += block[((_mixed(state) >> np.uint64(32)) * np.uint64(len(block))) >> np.uint64(32)]
            total += part
        into[resample] = total


@_compiled
def _draw(shares: NDArray[np.int64], resample: int, seed: int, weights: NDArray[np.uint8]) -> None:
    """How often each row is drawn: `weights` (rows,). Nobody sees one of many rows drawn 256 times."""
    weights[:] = 0
    state = _start(seed, resample)
    for at in range(shares.shape[1]):
        block = weights[at * BLOCK : (at + 1) * BLOCK]
        draws = shares[resample, at]
        if len(block) == BLOCK:
            for _ in range(draws // _PER_DRAW):
                state += _STEP
                bits = _mixed(state)
                for _ in range(_PER_DRAW):
                    block[bits & _LOW] += np.uint8(1)
                    bits >>= np.uint64(BITS)
            draws %= _PER_DRAW
        for _ in range(draws):
            state += _STEP
            block[((_mixed(state) >> np.uint64(32)) * np.uint64(len(block))) >> np.uint64(32)] += np.uint8(1)


@_compiled
def areas(
    orders: NDArray[np.int32],
    last_of_equals: NDArray[np.bool_],
    truths: NDArray[np.bool_],
    shares: NDArray[np.int64],
    seed: int,
    resamples: tuple[int, int],
    into: NDArray[np.float64],
) -> None:
    """The area under the ROC curve of each model, for resamples from the first up to the last.

    Args:
        orders: (models, rows) rows by ascending score.
        last_of_equals: (models, rows) whether the next row in that order has another score.
        truths: (models, rows) whether each row is true, in that order.
        shares: (resamples, blocks) draws from each block.
        into: (resamples, models) gets the areas.
    """
    weights = np.zeros(orders.shape[1], np.uint8)
    for resample in range(resamples[0], resamples[1]):
        _draw(shares, resample, seed, weights)
        for model in range(len(orders)):
            wins, positives, negatives = 0.0, np.int64(0), np.int64(0)
            true_here, false_here = np.int64(0), np.int64(0)
            for at in range(orders.shape[1]):
                drawn = np.int64(weights[orders[model, at]])
                true_drawn = drawn * np.int64(truths[model, at])
                true_here += true_drawn
                false_here += drawn - true_drawn
                if last_of_equals[model, at]:
                    wins += true_here * (negatives + 0.5 * false_here)
                    positives += true_here
                    negatives += false_here
                    true_here = false_here = np.int64(0)
            into[resample, model] = wins / (positives * negatives) if positives * negatives else np.nan
