"""Better, worse, or not enough evidence: what paired scores show about a required gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from data_contracts.records import GateVerdict, Interval
from tasks.evidence.levels import NOTHING, Spent, level


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
class Question:
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


def decide(questions: Sequence[Question]) -> list[Decision]:
    """Answer the questions of one comparison, in order.

    All gates must be met for a promotion. So a promotion is false only if some gate is met falsely, which each gate's
    own level prevents: "better" needs no correction for several gates. "worse" is said of any of them, so its p-values
    are corrected by Holm's method.
    """
    worse = holm([one.reverse.p_value(-one.bound) for one in questions])
    return [_decision(one, p_worse) for one, p_worse in zip(questions, worse, strict=True)]


def _decision(one: Question, p_worse: float) -> Decision:
    asked, p_value = level(1 - one.confidence, one.spent), one.measured.p_value(one.bound)
    verdict: GateVerdict = "insufficient"
    if p_value <= asked and asked > 0:
        verdict = "better"
    elif p_worse <= (1 - one.confidence) / 2:
        verdict = "worse"
    needed = one.measured.rows_needed(one.bound, level(1 - one.confidence)) if verdict == "insufficient" else None
    return Decision(verdict, one.measured.gain, one.measured.interval(one.confidence), p_value, asked, needed)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being several (Holm 1979): each is at most its α if it is rejected at α among all."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(p_values))
    corrected[order] = np.maximum.accumulate(np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1))
    return np.minimum(corrected, 1.0).tolist()
