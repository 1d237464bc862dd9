"""Better, worse, or not enough evidence: what paired scores say about a gain that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.evidence.intervals import Interval
from tasks.evidence.levels import level
from tasks.evidence.paired_counts import PairedCounts
from tasks.evidence.paired_values import PairedValues

Verdict = Literal["better", "worse", "insufficient"]


@dataclass(frozen=True)
class Decision:
    """A verdict and what it rests on.

    Attributes:
        p_value: how likely a gain at least this large is if the true gain is not above what was asked for.
        level: how small the p-value had to be.
        rows_needed: how many rows would decide, if the gain stays as it is; None unless the evidence is insufficient
            and the gain lies above what was asked for.
    """

    verdict: Verdict
    gain: float
    interval: Interval
    p_value: float
    level: float
    rows_needed: int | None


def decide(
    paired: PairedCounts | PairedValues, bound: float, confidence: float, before: float = 0, promoted: float = 0
) -> Decision:
    """Decide whether the true gain is above `bound`.

    Args:
        bound: the gain asked for; negative if a loss of that size is allowed.
        confidence: 1 minus the chance of any false promotion while these rows are in use.
        before, promoted: comparisons on these rows so far, and how many of them promoted.
    """
    asked = level(1 - confidence, before, promoted)
    p_value, interval = paired.p_value(bound), paired.interval(confidence)
    verdict: Verdict = "better" if p_value <= asked else "worse" if interval.high < bound else "insufficient"
    needed = paired.rows_needed(bound, asked) if verdict == "insufficient" else None
    return Decision(verdict, paired.gain, interval, p_value, asked, needed)
