"""Whether a benchmark's figures can be trusted: how far its pairs lie apart, and what else the machine did meanwhile.

Only the standard library is imported here: `common.py`, which a peer's environment runs too, imports this module.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

# A median is too uncertain when the bounds around it lie further apart than this share of it.
WIDEST = 0.3
# A machine is busy above this load average per core at the start, or when others take this share of its processor time.
MOST_LOAD, MOST_OTHERS = 0.5, 0.1


class Median(float):
    """The median of what each pair of turns gave, rounded, which keeps the pairs' own values.

    Attributes:
        pairs: the values, in ascending order.
    """

    pairs: tuple[float, ...]

    def __new__(cls, pairs: Sequence[float], digits: int = 2) -> Self:
        """Take the median of the pairs and round it."""
        median = super().__new__(cls, round(statistics.median(pairs), digits))
        median.pairs = tuple(sorted(pairs))
        return median

    @property
    def bounds(self) -> tuple[float, float]:
        """The two pairs between which the true median lies with 95% confidence; the outermost if there are few.

        By order statistics: with k pairs left out on each side, it lies outside with probability
        2 × (C(n, 0) + ... + C(n, k)) / 2^n.
        """
        count = len(self.pairs)
        outside = [2 * sum(math.comb(count, at) for at in range(left + 1)) / 2**count for left in range(count)]
        left_out = max(sum(share <= 0.05 for share in outside) - 1, 0)
        return self.pairs[left_out], self.pairs[-1 - left_out]

    @property
    def width(self) -> float:
        """How far the bounds lie apart, as a share of the median."""
        least, most = self.bounds
        return (most - least) / abs(self) if self else float(most > least)

    @property
    def wide(self) -> bool:
        """Whether the bounds lie too far apart to tell."""
        return self.width > WIDEST


@dataclass(frozen=True)
class Load:
    """What the machine did during a run.

    Attributes:
        before, after: load averages of the minute before the start and before the end; `after` holds our own work.
        cores: processors of the machine.
        others: share of all cores' time that other processes took during the run; None where that is not known.
    """

    before: float
    after: float
    cores: int
    others: float | None = None

    def reasons(self) -> list[str]:
        """Why the machine was too busy to measure, if it was."""
        found = []
        if self.before > MOST_LOAD * self.cores:
            found.append(f"the load was {self.before:.1f} on {self.cores} cores")
        if self.others is not None and self.others > MOST_OTHERS:
            found.append(f"other processes took {self.others:.0%} of the processor time")
        return found

    def __str__(self) -> str:
        others = "" if self.others is None else f"; other processes took {self.others:.0%} of the processor time"
        return f"load average {self.before:.1f} before and {self.after:.1f} after, on {self.cores} cores{others}"


class Watch:
    """Takes the machine's load from its making to `end`."""

    def __init__(self) -> None:
        self._before, self._started = os.getloadavg()[0], time.perf_counter()
        self._busy, self._ours = _busy_s(), _ours_s()

    def end(self, *, all_reaped: bool = True) -> Load:
        """The load since then.

        Args:
            all_reaped: every process of ours has ended as a child that was waited for. Otherwise (a server stays, a
                training was killed) our processor time is not known, and so that of others is not either.
        """
        cores, busy = os.cpu_count() or 1, _busy_s()
        others = None
        if all_reaped and busy is not None and self._busy is not None:
            elapsed = cores * (time.perf_counter() - self._started)
            others = round(max(0.0, busy - self._busy - (_ours_s() - self._ours)) / elapsed, 3)
        return Load(round(self._before, 2), round(os.getloadavg()[0], 2), cores, others)


def busy_ticks(stat: str) -> int:
    """Clock ticks that the processors of a `/proc/stat` did not idle; what a hypervisor took away counts as busy."""
    user, nice, system, _idle, _waiting, *more = map(int, stat.splitlines()[0].split()[1:9])
    return user + nice + system + sum(more)


def doubts(figures: Mapping[str, float], load: Load) -> list[str]:
    """Why the figures cannot be trusted, a clause per reason; empty if they can.

    Args:
        figures: those that are a `Median` are judged by their pairs; one pair is never enough.
    """
    medians = {name: value for name, value in figures.items() if isinstance(value, Median)}
    single = [name for name, value in medians.items() if len(value.pairs) < 2]
    wide = [name for name, value in medians.items() if value.wide]
    found = []
    if single:
        found.append(f"{single[0]} was measured only once" + _more(single))
    if wide:
        name = max(wide, key=lambda name: medians[name].width)
        least, most = medians[name].pairs[0], medians[name].pairs[-1]
        found.append(
            f"{name} is {medians[name]:g}, but single pairs range from {least:.3g} to {most:.3g}" + _more(wide)
        )
    return found + load.reasons()


def verdict(reasons: Sequence[str], *, quick: bool) -> str:
    """One sentence on what `doubts` found, and what to do."""
    if not reasons:
        return "The pairs agree and the machine was quiet."
    long_form = ", or run the long form" if quick else ""
    return f"Too noisy to tell: {', and '.join(reasons)}. Repeat on a quiet machine{long_form}."


def table(figures: Mapping[str, float]) -> str:
    """Each figure beside the least and the most of its pairs; empty if none has pairs."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, Median):
            count, mark = len(value.pairs), "  too wide to tell" if value.wide else ""
            lines.append(f"{name:34}{value:12.3f}{value.pairs[0]:12.3f}{value.pairs[-1]:12.3f}{count:8}{mark}")
    title = f"{'pair by pair':34}{'median':>12}{'least':>12}{'most':>12}{'pairs':>8}"
    return "\n".join([title, *lines] if lines else [])


def record(figures: Mapping[str, float], load: Load) -> dict[str, Any]:
    """A benchmark's last line: the figures, then `spread` (least and most of the pairs), `load` and `reliable`."""
    spread = {
        name: [round(value.pairs[0], 3), round(value.pairs[-1], 3)]
        for name, value in figures.items()
        if isinstance(value, Median)
    }
    return {**figures, "spread": spread, "load": asdict(load), "reliable": not doubts(figures, load)}


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more like it)" if len(names) > 1 else ""


def _busy_s() -> float | None:
    path = Path("/proc/stat")
    return busy_ticks(path.read_text()) / os.sysconf("SC_CLK_TCK") if path.exists() else None


def _ours_s() -> float:
    return sum(os.times()[:4])
