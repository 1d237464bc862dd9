"""Better, worse, or not decided yet: what two models' scores on more and more fresh rows say about a gain.

    tally = tally + Tally.of(champion, challenger, larger_is_better=True)     each night, on rows not tallied before
    decide(tally, bound=0.0, confidence=0.95).verdict                         better, worse or open

It may be asked after each night, for as long as it takes: the probability that a challenger whose true gain is not
above `bound` is ever called better is at most 1 - confidence, and so is that of calling one worse whose true gain is
not below it. Both tests are those of `betting`, and depend on the tally alone. For 0/1 scores they are exact. For other
scores, and for units of several rows, they are so if the range of the scores that were seen is the range of all scores;
losses that are larger than any score that was seen, and come once in hundreds of rows, remain unprotected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_contracts.records import Interval
from tasks.evidence import betting
from tasks.evidence.exact_sums import LARGEST, MOST_ROWS, Sums, counted

SequentialVerdict = Literal["better", "worse", "open"]
METHOD = "always-valid, by betting"
# Scores other than 0 and 1 may have any size, and the rows say how large they are. What happens once in 100 rows is
# missing from so many with a probability of 5 %; fewer decide nothing.
FIRST_UNITS = 300
# No estimate of the rows to go goes beyond so many times the rows that were tallied.
_MOST_TIMES = 2**20


@dataclass(frozen=True)
class Tally:
    """What is kept of two models' scores on fresh rows. Tallies of different rows are added; `Tally()` has none.

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
    ) -> Tally:
        """The tally of one night's rows, or units of rows.

        Scores that are all 0 or 1 are counted; anything else is summed. Tallies of both kinds add up, too.

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

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.won + other.won, self.lost + other.lost, self.tied + other.tied, self.sums + other.sums)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.won + self.lost + self.tied + self.sums.rows

    def to_json(self) -> dict[str, Any]:
        """JSON that `from_json` reads."""
        return {"won": self.won, "lost": self.lost, "tied": self.tied, "sums": self.sums.to_json()}

    @classmethod
    def from_json(cls, value: object) -> Tally:
        """The tally that `to_json` wrote.

        Raises:
            ValueError: no rows have such a tally; the message is one sentence.
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
        rows: that were tallied.
        rows_to_go: about how many more rows decide if the gain stays as it is; 0 if it is decided; None if they do not.
    """

    verdict: SequentialVerdict
    gain: float | None
    interval: Interval | None
    rows: int
    rows_to_go: int | None


def decide(tally: Tally, *, bound: float = 0.0, confidence: float) -> SequentialDecision:
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
    test = _Test.of(tally, 1 - confidence)
    verdict = test.verdict(bound)
    return SequentialDecision(
        verdict, test.gain, test.interval(bound, verdict), tally.rows, _rows_to_go(test, bound, tally.rows, verdict)
    )


@dataclass(frozen=True)
class _Test:
    """The two one-sided tests of a tally.

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
    def of(cls, tally: Tally, alpha: float) -> _Test:
        if tally.sums.units:
            return cls._of_sums(tally.sums + Sums.of_counts(tally.won, tally.lost, tally.tied), alpha)
        won, lost, tied = tally.won, tally.lost, tally.tied

        def above(bound: float, times: float) -> bool:
            return betting.counts_show(won * times, lost * times, tied * times, bound, alpha)

        def below(bound: float, times: float) -> bool:
            return betting.counts_show(lost * times, won * times, tied * times, -bound, alpha)

        return cls((won - lost) / tally.rows if tally.rows else None, 1.0, alpha, above, below)

    @classmethod
    def _of_sums(cls, sums: Sums, alpha: float) -> _Test:
        def shown(bound: float, times: float, sign: int) -> bool:
            beyond = sums.beyond(bound, sign)
            # Divided and multiplied, a number of units may be rounded.
            if beyond is None or sums.units * times < FIRST_UNITS - 0.001:
                return False
            return betting.sums_show(beyond[0] * times, beyond[1] * times, alpha)

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
