"""Measures of how far two rows of counts are apart, and the groups of bins that they are computed on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

GROUPS = 20
# Fewer of the smaller side in a group would make the test inexact.
LEAST = 25


class Counts(NamedTuple):
    """Counts of the same groups then and now."""

    then: list[int]
    now: list[int]

    @property
    def sizes(self) -> tuple[int, int]:
        """Values then and now."""
        return sum(self.then), sum(self.now)


def grouped(counts: Counts) -> Counts:
    """Neighbouring bins in groups of about the same number of values, then and now together."""
    total, least = sum(counts.sizes), min(counts.sizes)
    wanted = total / max(2, min(GROUPS, least // LEAST))
    then, now = [0], [0]
    for one, two in zip(counts.then, counts.now, strict=True):
        if then[-1] + now[-1] and (then[-1] + now[-1] >= wanted or one + two >= wanted):
            then.append(0)
            now.append(0)
        then[-1] += one
        now[-1] += two
    if len(then) > 1 and then[-1] + now[-1] < wanted / 2:
        then[-2:], now[-2:] = [then[-2] + then[-1]], [now[-2] + now[-1]]
    return Counts(then, now)


def lumped(counts: Counts) -> Counts:
    """Categories, the rare ones together, so that each is expected LEAST times on the smaller side."""
    sizes = counts.sizes
    wanted = LEAST * sum(sizes) / max(min(sizes), 1)
    pairs = [(one, two) for one, two in zip(counts.then, counts.now, strict=True) if one + two >= wanted]
    rare = sizes[0] - sum(one for one, _ in pairs), sizes[1] - sum(two for _, two in pairs)
    if sum(rare) and sum(rare) < wanted and pairs:  # with the least frequent of the others
        pairs.sort(key=sum)
        rare, pairs = (rare[0] + pairs[0][0], rare[1] + pairs[0][1]), pairs[1:]
    pairs += [rare] if sum(rare) else []
    return Counts([one for one, _ in pairs], [two for _, two in pairs])


def _shares(counts: Counts, extra: float = 0.0) -> Iterator[tuple[float, float]]:
    sizes = counts.sizes
    cells = len(counts.then)
    for one, two in zip(counts.then, counts.now, strict=True):
        yield (one + extra) / (sizes[0] + extra * cells), (two + extra) / (sizes[1] + extra * cells)


def psi(counts: Counts) -> float:
    """The population stability index, less what two samples of one distribution have on average, and never below 0."""
    found = sum((now - then) * math.log(now / then) for then, now in _shares(counts, extra=0.5))
    by_chance = (len(counts.then) - 1) * sum(1 / size for size in counts.sizes)
    return max(found - by_chance, 0.0)


def jensen_shannon(counts: Counts) -> float:
    """The Jensen-Shannon divergence in bits."""
    total = 0.0
    for then, now in _shares(counts):
        middle = (then + now) / 2
        total += sum(share * math.log2(share / middle) / 2 for share in (then, now) if share)
    return max(total, 0.0)


def distance(counts: Counts) -> float:
    """The Kolmogorov-Smirnov distance of ordered bins."""
    largest = apart = 0.0
    for then, now in _shares(counts):
        apart += now - then
        largest = max(largest, abs(apart))
    return largest


def largest_change(counts: Counts) -> float:
    """The largest change of a share."""
    return max((abs(now - then) for then, now in _shares(counts)), default=0.0)
