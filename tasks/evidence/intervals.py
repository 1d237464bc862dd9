"""A confidence interval, as gates, pages and records show it."""

from __future__ import annotations

from dataclasses import dataclass


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
