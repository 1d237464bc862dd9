"""P-values of two samples' counts under one distribution; without SciPy, whose import takes longer than they do."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Below this expected count the normal approximation of a binomial tail is not used.
_MANY = 25.0
_SMALLEST = 1e-300


def chi_square_p(first: Sequence[int], second: Sequence[int]) -> float:
    """Pearson's test of two rows of counts; cells without counts do not count."""
    total_first, total_second = sum(first), sum(second)
    if not total_first or not total_second:
        return 1.0
    statistic, cells = 0.0, 0
    for one, two in zip(first, second, strict=True):
        both = one + two
        if both:
            cells += 1
            apart = one * total_second - two * total_first
            statistic += apart * (apart / (total_first * total_second)) / both
    return chi_square_tail(statistic, cells - 1)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(X >= statistic) of a chi-square distribution: the upper incomplete gamma function (DLMF 8.2)."""
    if degrees < 1 or statistic <= 0:
        return 1.0
    shape, value = degrees / 2, statistic / 2
    scale = math.exp(max(shape * math.log(value) - value - math.lgamma(shape), -700.0))
    if value < shape + 1:  # the series of the lower function
        term = total = 1 / shape
        step = shape
        while term > total * 1e-16:
            step += 1
            term *= value / step
            total += term
        return max(1 - total * scale, 0.0)
    b, c = value + 1 - shape, 1 / _SMALLEST  # the continued fraction, by Lentz
    d = 1 / b
    fraction = d
    for step in range(1, 10_000):
        a = -step * (step - shape)
        b += 2
        d = 1 / _away(a * d + b)
        c = _away(b + a / c)
        fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return min(scale * fraction, 1.0)


def _away(value: float) -> float:
    return value if abs(value) > _SMALLEST else _SMALLEST


def kolmogorov_p(distance: float, first: int, second: int) -> float:
    """P-value of a Kolmogorov-Smirnov distance between two samples; too large if values are tied, never too small."""
    if not first or not second:
        return 1.0
    size = math.sqrt(first * second / (first + second))
    at = (size + 0.12 + 0.11 / size) * distance  # Stephens (1970)
    if at < 0.3:
        return 1.0
    terms = ((-1) ** (k - 1) * math.exp(-2 * k * k * at * at) for k in range(1, 101))
    return min(max(2 * sum(terms), 0.0), 1.0)


def share_p(first: int, of_first: int, second: int, of_second: int) -> float:
    """Two-sided p-value that two samples have the same share: exact for rare cases, else by the normal distribution."""
    if not of_first or not of_second:
        return 1.0
    cases, total = first + second, of_first + of_second
    if 2 * cases > total:  # of the rarer side
        first, second = of_first - first, of_second - second
        cases = first + second
    expected = cases * of_second / total
    if min(expected, cases * of_first / total) < _MANY:
        return min(1.0, 2 * min(_up_to(second, cases, of_first, of_second), _from(second, cases, of_first, of_second)))
    variance = expected * (of_first / total) * (1 - cases / total)
    apart = max(abs(second - expected) - 0.5, 0.0)
    return math.erfc(apart / math.sqrt(2 * variance))


def _up_to(count: int, cases: int, of_first: int, of_second: int) -> float:
    return _tail(count, -1, cases, of_first, of_second)


def _from(count: int, cases: int, of_first: int, of_second: int) -> float:
    return _tail(count, 1, cases, of_first, of_second)


def _tail(count: int, step: int, cases: int, of_first: int, of_second: int) -> float:
    """The probability of `count` or more extreme cases in the second sample: the hypergeometric distribution's tail.

    Terms are added from `count` outwards until they no longer matter; each follows from the one before.
    """
    low, high = max(0, cases - of_first), min(cases, of_second)
    expected = cases * of_second / (of_first + of_second)
    if (step > 0 and count <= expected - 1) or (step < 0 and count >= expected + 1):
        return 1.0
    term = math.exp(_log_choose(of_second, count) + _log_choose(of_first, cases - count)
                    - _log_choose(of_first + of_second, cases))  # fmt: skip
    total = 0.0
    while low <= count <= high and term > total * 1e-16:
        total += term
        if step > 0:
            ratio = (of_second - count) * (cases - count) / ((count + 1) * (of_first - cases + count + 1))
        else:
            ratio = count * (of_first - cases + count) / ((of_second - count + 1) * (cases - count + 1))
        term *= ratio
        count += step
    return min(total, 1.0)


def _log_choose(of: int, count: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979), in the same order."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = largest
    return adjusted
