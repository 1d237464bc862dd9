"""Scales: from values to places, with round numbers as ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Values beyond this are no measurement, and their differences overflow.
_MOST = 1e300


def finite(values: Iterable[float]) -> list[float]:
    """The values that a chart can place."""
    return [float(value) for value in values if math.isfinite(value) and abs(value) < _MOST]


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` at places from `start` to `end`; `log` if equal ratios have equal distances."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; of a value beyond the scale, its nearer end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Round values inside the scale with their labels."""
        return _powers(self, most) if self.log else _round_values(self.low, self.high, most)


def scale_of(values: Sequence[float], start: float, end: float, *, pad: float = 0.06, log: bool = False) -> Scale:
    """A scale that holds all values, with some room beyond them; `log` counts only for positive values."""
    known = finite(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if log and low > 0 and high / low > 1.001:
        ratio = (high / low) ** pad
        return Scale(low / ratio, high * ratio, start, end, log=True)
    room = (high - low) * pad or abs(high) * 0.1 or 0.5
    return Scale(low - room, high + room, start, end)


def label(value: float, step: float | None = None) -> str:
    """A number for a person: with as many digits as steps of this size need, else four."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if step is None:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    digits = max(0, min(10, -math.floor(math.log10(abs(step)) + 1e-9)))
    return f"{value:,.{digits}f}"


def _round_values(low: float, high: float, most: int) -> list[tuple[float, str]]:
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    shown = step if step / power != 2.5 else power / 10 * 5  # 2.5 needs one digit more
    return [(number * step, label(number * step, shown)) for number in range(first, min(last, first + 50) + 1)]


def _powers(scale: Scale, most: int) -> list[tuple[float, str]]:
    first, last = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
    if last - first < 1:
        return _round_values(scale.low, scale.high, most)
    step = max(1, math.ceil((last - first + 1) / most))
    return [(10.0**power, label(10.0**power)) for power in range(first, last + 1, step)]
