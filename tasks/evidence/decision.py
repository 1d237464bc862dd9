"""Better, worse, or not enough evidence: what scores show about a required gain, and the level that they must reach.

The promise is to hold for all comparisons on the same rows. The probability that *any* worse model is promoted while a
test set is in use is to be at most α, whoever chooses the candidates, as long as they are chosen by nothing of these
rows but the verdicts. A chooser who has seen k - 1 verdicts, j of them "better", can have seen C(k - 1, j) different
sequences, and may have a candidate ready for each. So each gets the level

    α / (k² (j + 1) (j + 2) C(k - 1, j))

which adds up to α over all sequences: a union bound over the tree of verdicts. It is the Ladder's argument (Blum and
Hardt 2015) with a test in place of its fixed step. ADR 0040 compares it with an always-valid confidence sequence and
with the Ladder itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scipy.special import gammaln, ndtri, ndtri_exp

from data_contracts.profile.drift import holm
from data_contracts.records import GateVerdict, Interval

# How likely a gain should be found, where a number of rows is recommended.
POWER = 0.8
# Rows are used up once they can only show gains so many times as large as fresh rows could.
MOST_EFFORT = 3.0


@dataclass(frozen=True)
class Spent:
    """What rows have decided before.

    Attributes:
        comparisons: on these rows; a part of one if it shared a part of the rows.
        promotions: those of them that found the candidate better.
    """

    comparisons: float = 0.0
    promotions: float = 0.0


NOTHING = Spent()


def level(alpha: float, spent: Spent = NOTHING) -> float:
    """The one-sided level of the next comparison.

    Args:
        alpha: the accepted probability of any false promotion while the rows are in use.
    """
    return math.exp(_log_level(alpha, spent))


def _log_level(alpha: float, spent: Spent) -> float:
    before, promoted = math.ceil(spent.comparisons - 1e-9), math.ceil(spent.promotions - 1e-9)
    promoted = min(promoted, before)
    sequences = float(gammaln(before + 1) - gammaln(promoted + 1) - gammaln(before - promoted + 1))
    return math.log(alpha) - 2 * math.log(before + 1) - math.log((promoted + 1) * (promoted + 2)) - sequences


def effort(alpha: float, spent: Spent) -> float:
    """How many times as large as on fresh rows a gain must be to be found with the same probability; at least 1."""
    to_power = float(ndtri(POWER))
    return (to_power - float(ndtri_exp(_log_level(alpha, spent)))) / (
        to_power - float(ndtri_exp(_log_level(alpha, NOTHING)))
    )


def used_up(alpha: float, spent: Spent) -> bool:
    """Whether the rows decide nothing more."""
    return effort(alpha, spent) > MOST_EFFORT


def comparisons_left(alpha: float, spent: Spent) -> int:
    """How many more comparisons the rows can decide if none of these promotes; at most a million."""
    return bisect_left(
        range(1_000_000), True, key=lambda more: used_up(alpha, Spent(spent.comparisons + more, spent.promotions))
    )


class Measured(Protocol):
    """Scores on the rows that a gate is about: of two models, or of one against a bound."""

    @property
    def gain(self) -> float:
        """By how much the candidate is better; of one model, its value, negated if a smaller one is required."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    def p_value(self, bound: float = 0.0) -> float:
        """How likely a gain at least this large is, if the true one is not above `bound`."""

    def interval(self, confidence: float) -> Interval:
        """The confidence interval of the gain."""

    def rows_needed(self, bound: float, level: float, power: float = 0.8) -> int | None:
        """How many rows would decide, if the gain stays as it is; None if it is not above `bound`."""


@dataclass(frozen=True)
class GateQuestion:
    """One gate's question: is the true gain above `bound`?

    Attributes:
        measured: the required gain; reverse: the same with the other sign.
        confidence: 1 minus the accepted probability of any false promotion while the rows are in use.
        spent: what the rows have decided before.
    """

    measured: Measured
    reverse: Measured
    bound: float
    confidence: float
    spent: Spent = NOTHING


@dataclass(frozen=True)
class Decision:
    """A verdict and what it rests on; see `data_contracts.records.Evidence`."""

    verdict: GateVerdict
    gain: float
    interval: Interval
    p_value: float
    level: float
    rows_needed: int | None


def decide(questions: Sequence[GateQuestion]) -> list[Decision]:
    """Answer the questions of one comparison, in order.

    All gates must be met for a promotion. So a promotion is false only if some gate is met falsely, which each gate's
    own level prevents: "better" needs no correction for several gates. "worse" is said of any of them, so its p-values
    are corrected by Holm's method.
    """
    worse = holm([one.reverse.p_value(-one.bound) for one in questions])
    return [_decision(one, p_worse) for one, p_worse in zip(questions, worse, strict=True)]


def _decision(question: GateQuestion, p_worse: float) -> Decision:
    measured = question.measured
    threshold, p_value = level(1 - question.confidence, question.spent), measured.p_value(question.bound)
    verdict: GateVerdict = "insufficient"
    if p_value <= threshold and threshold > 0:
        verdict = "better"
    elif p_worse <= (1 - question.confidence) / 2:
        verdict = "worse"
    needed = measured.rows_needed(question.bound, level(1 - question.confidence)) if verdict == "insufficient" else None
    return Decision(verdict, measured.gain, measured.interval(question.confidence), p_value, threshold, needed)
