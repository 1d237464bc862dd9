"""Better, worse, or not decided yet: what two models' scores on more and more fresh rows say about a gain.

    total = total + Accumulator.of(champion, challenger, larger_is_better=True)  each night, on rows not observed before
    decide(total, bound=0.0, confidence=0.95).verdict                            better, worse or open

It may be asked after each night, for as long as it takes: the probability that a challenger whose true gain is not
above `bound` is ever called better is at most 1 - confidence, and so is that of calling one worse whose true gain is
not below it. Both tests are bets, and depend on the total alone. For 0/1 scores they are exact. For other scores, and
for units of several rows, they are so if the range of the scores that were seen is the range of all scores; losses that
are larger than any score that was seen, and come once in hundreds of rows, remain unprotected.

Someone bets on each row that the challenger gains more than `bound`. If it does not, the capital is expected to shrink,
so the probability that it ever grows to 1/α is at most α (Ville 1939), whoever looks, as often as they like, and stops
when they like. Every test of a bounded mean that keeps this promise is of this form (Waudby-Smith and Ramdas 2024,
"Estimating means of bounded random variables by betting"; Clerico 2024). The capital is the mean over a fixed grid of
bets, so it depends on sums over the rows alone: neither on their order nor on the nights that they came in.

A sum of floating-point numbers depends on their order, so what a night adds would depend on the nights before it. Every
double is an integer times a power of two, so sums are kept as fractions: adding is exact, and two totals of the same
rows are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_contracts.records import Interval

Values = NDArray[np.float64]

# Scores are not larger, and smaller differences are none, so that quotients, squares and their sums are doubles.
LARGEST, SMALLEST = 1e60, 1e-60
MOST_ROWS = 10**15
# The values that are added at once; more would not fit the integers in `exact_sum`.
_CHUNK = 2**24
_FRACTION = re.compile(r"-?[0-9]{1,600}(/[1-9][0-9]{0,600})?", re.ASCII)
_COUNTS = ("units", "rows", "most_rows")
_SUMS = ("gains", "squares", "products", "squared_rows")
_EXTREMES = ("lowest", "highest")
METHOD = "always-valid, by betting"
# Scores other than 0 and 1 may have any size, and the rows say how large they are. What happens once in 100 rows is
# missing from so many with a probability of 5 %; fewer decide nothing.
FIRST_UNITS = 300
# No estimate of the rows to go goes beyond so many times the rows that were observed.
_MOST_TIMES = 2**20
# Shares of the largest bet, which could lose the whole capital on one row. A bet of a sixteenth has a quarter of the
# weight: small advantages are found late anyway, and large ones must not wait for the sake of small ones.
_STEPS = np.arange(96)
_SHARES = 0.999999 * 2.0 ** (-_STEPS / 4)
_LOG_WEIGHTS = math.log1p(-(2.0 ** (-1 / 8))) - _STEPS / 8 * math.log(2)
# What a bet costs for each squared gain (Fan, Grama and Liu 2015).
_COSTS = -np.log1p(-_SHARES) - _SHARES


@dataclass(frozen=True)
class Sums:
    """Sums over units of rows, of which each may be one row.

    Attributes:
        units, rows, most_rows: how many there are; the rows of the largest unit.
        gains, squares: of the units' gains, and of their squares.
        products, squared_rows: of each unit's gain times its rows, and of its squared number of rows.
        lowest, highest: of both models' scores of a unit; 0 without units.
    """

    units: int = 0
    rows: int = 0
    most_rows: int = 0
    gains: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)
    products: Fraction = Fraction(0)
    squared_rows: Fraction = Fraction(0)
    lowest: float = 0.0
    highest: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        if not (self.units and other.units):
            return self if self.units else other
        return Sums(
            self.units + other.units,
            self.rows + other.rows,
            max(self.most_rows, other.most_rows),
            self.gains + other.gains,
            self.squares + other.squares,
            self.products + other.products,
            self.squared_rows + other.squared_rows,
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
        )

    @classmethod
    def of(cls, champion: Values, challenger: Values, sizes: Values, sign: int = 1) -> Sums:
        """The sums over units.

        Args:
            champion, challenger: (units,) the scores, added up over each unit's rows.
            sizes: (units,) number of rows.
            sign: -1 if a smaller score is better.
        """
        if not len(sizes):
            return cls()
        gains = sign * (challenger - champion)
        gains = np.where(np.abs(gains) < SMALLEST, 0.0, gains)
        return cls(
            len(gains),
            int(exact_sum(sizes)),
            int(sizes.max()),
            exact_sum(gains),
            exact_sum(gains**2),
            exact_sum(gains * sizes),
            exact_sum(sizes**2),
            float(min(champion.min(), challenger.min())) + 0.0,  # -0.0 is 0.0
            float(max(champion.max(), challenger.max())) + 0.0,
        )

    @classmethod
    def of_counts(cls, won: int, lost: int, tied: int) -> Sums:
        """The sums over rows of which each gained 1, -1 or 0."""
        rows, gains = won + lost + tied, Fraction(won - lost)
        return cls(rows, rows, 1, gains, Fraction(won + lost), gains, Fraction(rows), 0.0, 1.0) if rows else cls()

    def beyond(self, bound: float, sign: int = 1) -> tuple[float, float] | None:
        """The sums of (a unit's gain - `bound` times its rows), and of its squares; None if their size is not known.

        They are divided by the largest loss that is expected with what was seen of the scores, so none is below -1.

        Args:
            sign: -1 for the same with the models exchanged.
        """
        exact = Fraction(bound)
        more = max(sign * exact * self.most_rows, Fraction(0))
        reach = Fraction(self.highest) - Fraction(self.lowest) + more
        if reach < SMALLEST:
            return None
        total = sign * (self.gains - exact * self.rows) / reach
        squares = (self.squares - 2 * exact * self.products + exact**2 * self.squared_rows) / reach**2
        return float(total), max(float(squares), 0.0)

    def to_json(self) -> dict[str, object]:
        """JSON that `from_json` reads; fractions are text, which no reader rounds."""
        fields = {name: getattr(self, name) for name in _COUNTS + _EXTREMES}
        return fields | {name: str(getattr(self, name)) for name in _SUMS}

    @classmethod
    def from_json(cls, value: object) -> Sums:
        """The sums that `to_json` wrote.

        Raises:
            ValueError: no rows have such sums; the message says why.
        """
        if not isinstance(value, Mapping) or set(value) != {*_COUNTS, *_SUMS, *_EXTREMES}:
            raise ValueError("a sum is missing or unknown")
        units, rows, most_rows = (counted(value[name], name) for name in _COUNTS)
        gains, squares, products, squared_rows = (_fraction(value[name], name) for name in _SUMS)
        lowest, highest = (_score(value[name], name) for name in _EXTREMES)
        found = cls(units, rows, most_rows, gains, squares, products, squared_rows, lowest, highest)
        if not found._can_be():
            raise ValueError("no rows have such sums")
        return found

    def _can_be(self) -> bool:
        """Whether some units can have these sums, but for the rounding of squares and products."""
        if not self.units:
            return self == Sums()
        more, units, most = 1 + Fraction(1, 10**9), self.units, self.most_rows
        reach = Fraction(self.highest) - Fraction(self.lowest)
        return (
            most >= 1
            and units + most - 1 <= self.rows <= min(units * most, MOST_ROWS)
            and self.rows**2 <= units * self.squared_rows * more
            and self.squared_rows <= self.rows * most * more
            and reach >= 0
            and self.gains**2 <= units * self.squares * more
            and self.squares <= units * (reach * more) ** 2
            and self.products**2 <= self.squares * self.squared_rows * more**2
        )


def exact_sum(values: Values) -> Fraction:
    """The sum of finite doubles, (n,), without any rounding."""
    total = Fraction(0)
    for start in range(0, len(values), _CHUNK):
        mantissas, exponents = np.frexp(values[start : start + _CHUNK])
        different, which = np.unique(exponents, return_inverse=True)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        # Two halves of 26 and 27 bits, whose sums over 2**24 rows are integers that a double holds.
        high, low = np.bincount(which, whole >> 27), np.bincount(which, whole & (2**27 - 1))
        for exponent, upper, lower in zip(different.tolist(), high.tolist(), low.tolist(), strict=True):
            total += Fraction((int(upper) << 27) + int(lower)) * Fraction(2) ** (exponent - 53)
    return total


def counted(value: object, name: str) -> int:
    """A count that was read from JSON; ValueError if it is not a whole number from 0 to 10**15."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_ROWS:
        raise ValueError(f"{name} is not a whole number from 0 to 10**15")
    return value


def _score(value: object, name: str) -> float:
    # A unit's score is a sum over its rows.
    if isinstance(value, bool) or not isinstance(value, float | int) or not abs(value) <= LARGEST:
        raise ValueError(f"{name} is not a number that a score can be")
    return float(value)


def _fraction(value: object, name: str) -> Fraction:
    if not isinstance(value, str) or not _FRACTION.fullmatch(value):
        raise ValueError(f"{name} is not a fraction")
    found = Fraction(value)
    if found.denominator & (found.denominator - 1) or str(found) != value:
        raise ValueError(f"{name} is not a fraction in lowest terms with a power of two below")
    return found


SequentialVerdict = Literal["better", "worse", "open"]


@dataclass(frozen=True)
class Accumulator:
    """The scores of two models on fresh rows, as counts and sums. Different rows add up; `Accumulator()` has none.

    Adding is exact, so neither the order of the rows nor their nights change a decision.

    Attributes:
        won, lost, tied: rows with 0/1 scores on which only the challenger is right, only the champion, both or neither.
        sums: over rows with other scores, or over units of several rows.
    """

    won: int = 0
    lost: int = 0
    tied: int = 0
    sums: Sums = field(default_factory=Sums)

    @classmethod
    def of(
        cls,
        champion: NDArray[Any],
        challenger: NDArray[Any],
        *,
        larger_is_better: bool,
        sizes: NDArray[Any] | None = None,
    ) -> Accumulator:
        """The accumulator of one night's rows, or units of rows.

        Scores that are all 0 or 1 are counted; anything else is summed. Accumulators of both kinds add up, too.

        Args:
            champion, challenger: (n,) the scores of the same rows, or of units: the sum over each unit's rows.
            larger_is_better: whether a larger score is better.
            sizes: (n,) number of each unit's rows; None if each is one row.

        Raises:
            ValueError: a score is not finite or is larger than 1e60, or the models were scored on different rows.
        """
        first, second = _scores(champion, "champion"), _scores(challenger, "challenger")
        if len(first) != len(second):
            raise ValueError(f"the champion has {len(first):,} scores and the challenger {len(second):,}")
        rows = np.ones(len(first)) if sizes is None else np.asarray(sizes, np.float64)
        if rows.shape != first.shape or not np.all((rows >= 1) & (rows <= MOST_ROWS) & (rows == np.floor(rows))):
            raise ValueError("the sizes of the units are not their numbers of rows")
        if np.all(rows == 1) and _are_flags(first) and _are_flags(second):
            larger, smaller = int(np.count_nonzero(second > first)), int(np.count_nonzero(second < first))
            won, lost = (larger, smaller) if larger_is_better else (smaller, larger)
            return cls(won, lost, len(first) - won - lost)
        return cls(sums=Sums.of(first, second, rows, 1 if larger_is_better else -1))

    def __add__(self, other: Accumulator) -> Accumulator:
        return Accumulator(self.won + other.won, self.lost + other.lost, self.tied + other.tied, self.sums + other.sums)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.won + self.lost + self.tied + self.sums.rows

    def to_json(self) -> dict[str, object]:
        """JSON that `from_json` reads."""
        return {"won": self.won, "lost": self.lost, "tied": self.tied, "sums": self.sums.to_json()}

    @classmethod
    def from_json(cls, value: object) -> Accumulator:
        """The accumulator that `to_json` wrote.

        Raises:
            ValueError: no rows have such an accumulator; the message is one sentence.
        """
        wanted = {"won", "lost", "tied", "sums"}
        try:
            if not isinstance(value, Mapping) or set(value) != wanted:
                raise ValueError("it has not exactly the fields " + ", ".join(sorted(wanted)))
            won, lost, tied = (counted(value[name], name) for name in ("won", "lost", "tied"))
            return cls(won, lost, tied, Sums.from_json(value["sums"]))
        except ValueError as error:
            raise ValueError(f"the tally cannot be read: {error}") from error


@dataclass(frozen=True)
class SequentialDecision:
    """What the rows say until now.

    Attributes:
        verdict: `better` if the true gain is shown to be above the bound, `worse` if it is shown to be below.
        gain: the mean gain of a row, positive where the challenger is better; None without rows.
        interval: of the true gain. Each end holds at all times at once with the confidence that was asked for, so the
            verdict is `better` if it lies above the bound. None as long as no gain is ruled out.
        rows: that were observed.
        rows_to_go: about how many more rows decide if the gain stays as it is; 0 if it is decided; None if they do not.
    """

    verdict: SequentialVerdict
    gain: float | None
    interval: Interval | None
    rows: int
    rows_to_go: int | None


def decide(total: Accumulator, *, bound: float = 0.0, confidence: float) -> SequentialDecision:
    """Say whether the challenger's true gain is above or below `bound`, as far as the rows show it.

    Args:
        bound: `min_gain`, or minus `margin`.
        confidence: 1 minus the accepted probability of a false "better" in the challenger's whole life, and of a false
            "worse"; above 0.5 and below 1.

    Raises:
        ValueError: `bound` or `confidence` is not such a number.
    """
    if not math.isfinite(bound) or abs(bound) > LARGEST:
        raise ValueError(f"the bound {bound} is not a number that a gain can have")
    if not 0.5 < confidence < 1:
        raise ValueError(f"the confidence {confidence} is not above 0.5 and below 1")
    test = _Test.of(total, 1 - confidence)
    verdict = test.verdict(bound)
    return SequentialDecision(
        verdict, test.gain, test.interval(bound, verdict), total.rows, _rows_to_go(test, bound, total.rows, verdict)
    )


@dataclass(frozen=True)
class _Test:
    """The two one-sided tests of a total.

    Attributes:
        above, below: whether the true gain is shown to be above, or below, a bound by so many times the rows.
        reach: no gain is further from 0.
    """

    gain: float | None
    reach: float
    alpha: float
    above: Callable[[float, float], bool]
    below: Callable[[float, float], bool]

    @classmethod
    def of(cls, total: Accumulator, alpha: float) -> _Test:
        if total.sums.units:
            return cls._of_sums(total.sums + Sums.of_counts(total.won, total.lost, total.tied), alpha)
        won, lost, tied = total.won, total.lost, total.tied

        def above(bound: float, times: float) -> bool:
            return counts_show(won * times, lost * times, tied * times, bound, alpha)

        def below(bound: float, times: float) -> bool:
            return counts_show(lost * times, won * times, tied * times, -bound, alpha)

        return cls((won - lost) / total.rows if total.rows else None, 1.0, alpha, above, below)

    @classmethod
    def _of_sums(cls, sums: Sums, alpha: float) -> _Test:
        def shown(bound: float, times: float, sign: int) -> bool:
            beyond = sums.beyond(bound, sign)
            # Divided and multiplied, a number of units may be rounded.
            if beyond is None or sums.units * times < FIRST_UNITS - 0.001:
                return False
            return sums_show(beyond[0] * times, beyond[1] * times, alpha)

        gain = float(sums.gains / sums.rows)
        return cls(
            gain, 2 * LARGEST, alpha, lambda at, times: shown(at, times, 1), lambda at, times: shown(at, times, -1)
        )

    def verdict(self, bound: float, times: float = 1.0) -> SequentialVerdict:
        """What the rows would show if there were so many times as many, with the same gains."""
        if self.above(bound, times):
            return "better"
        return "worse" if self.below(bound, times) else "open"

    def interval(self, bound: float, verdict: SequentialVerdict) -> Interval | None:
        """The gains that neither test rules out; it agrees with the verdict to the last bit."""
        if self.gain is None:
            return None
        low = _last(lambda at: self.above(at, 1.0), self.gain, -self.reach)
        high = _last(lambda at: self.below(at, 1.0), self.gain, self.reach)
        if low is None and high is None:
            return None
        low, high = -self.reach if low is None else low, self.reach if high is None else high
        # Both ends were found by bisection.
        low = max(low, bound) if verdict == "better" else min(low, bound) if bound < self.gain else low
        high = min(high, bound) if verdict == "worse" else max(high, bound) if bound > self.gain else high
        return Interval(low, high, round(1 - 2 * self.alpha, 12), METHOD)


def _last(shown: Callable[[float], bool], gain: float, end: float) -> float | None:
    """The bound nearest to the gain that is shown; None if not even one that is as far away as `end` is."""
    far, step = gain, max(abs(gain), 1e-6) / 64
    while not shown(far):
        if far == end:
            return None
        far = gain + math.copysign(step, end - gain)
        far = min(far, end) if end > gain else max(far, end)
        step *= 4
    near = gain
    for _ in range(100):
        middle = (near + far) / 2
        if middle in (near, far) or abs(near - far) <= 1e-9 * max(abs(near), abs(far), abs(gain)):
            break
        near, far = (near, middle) if shown(middle) else (middle, far)
    return far


def _rows_to_go(test: _Test, bound: float, rows: int, verdict: SequentialVerdict) -> int | None:
    if verdict != "open":
        return 0
    if not rows:
        return None
    low, high = rows, 2 * rows
    while test.verdict(bound, high / rows) == "open":
        low, high = high, 2 * high
        if high > _MOST_TIMES * rows:
            return None
    while high - low > 1 + low // 1_000:
        middle = (low + high) // 2
        low, high = (middle, high) if test.verdict(bound, middle / rows) == "open" else (low, middle)
    return high - rows


def _scores(values: NDArray[Any], whose: str) -> NDArray[np.float64]:
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1:
        raise ValueError(f"the {whose} does not have one score for each row")
    bad = np.flatnonzero(~(np.abs(scores) <= LARGEST))
    if len(bad):
        raise ValueError(f"the {whose}'s score of row {bad[0]} is {scores[bad[0]]}, so it cannot be compared")
    return scores


def _are_flags(scores: NDArray[np.float64]) -> bool:
    return bool(np.all((scores == 0) | (scores == 1)))


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
