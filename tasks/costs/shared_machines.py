"""Divides a machine's time among the runs that were on it at once, so that together they pay for it once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tasks.costs.charges import Charge, Charged
from tasks.costs.resource_shares import Span


@dataclass(frozen=True)
class _Occupancy:
    """How many runs were on a machine: `counts[i]` from `moments[i]` to the next moment, in microseconds."""

    moments: list[int]
    counts: list[int]

    def parts(self, charge: Charge) -> Iterator[Charge]:
        """The charge, cut where the number of runs changes."""
        at = charge.began_us
        while at < charge.ended_us:
            index = bisect_right(self.moments, at)
            until = min(charge.ended_us, self.moments[index]) if index < len(self.moments) else charge.ended_us
            yield replace(charge.cut(at, until), runs=self.counts[index - 1])
            at = until


def shared(found: Sequence[Charged]) -> list[Charged]:
    """The charges of several runs; where k runs were on one machine at once, each has a k-th of that time.

    Nodes of a pool stay as they are, and so does what was used beside time. Nodes of one run on a machine count as one
    run. A machine whose record has no name is one run's alone.
    """
    spans: dict[str, dict[str, list[Span]]] = {}
    for _, charge in found:
        if charge.machine and charge.ended_us > charge.began_us:
            runs = spans.setdefault(charge.machine, {})
            runs.setdefault(charge.run_id, []).append((charge.began_us, charge.ended_us))
    busy = {machine: _occupancy(runs.values()) for machine, runs in spans.items() if len(runs) > 1}
    divided: list[Charged] = []
    for one, charge in found:
        if charge.machine in busy and charge.ended_us > charge.began_us:
            divided += [(one, part) for part in busy[charge.machine].parts(charge)]
        else:
            divided.append((one, charge))
    return divided


def _occupancy(runs: Iterable[list[Span]]) -> _Occupancy:
    changes: dict[int, int] = {}
    for spans in runs:
        for began, ended in _merged(spans):
            changes[began] = changes.get(began, 0) + 1
            changes[ended] = changes.get(ended, 0) - 1
    moments, counts, runs_now = [], [], 0
    for moment in sorted(changes):
        runs_now += changes[moment]
        if changes[moment]:
            moments.append(moment)
            counts.append(runs_now)
    return _Occupancy(moments, counts)


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """The times that the spans cover, without overlaps."""
    began = ended = None
    for start, end in sorted(spans):
        if began is None or ended is None:
            began, ended = start, end
        elif start > ended:
            yield began, ended
            began, ended = start, end
        else:
            ended = max(ended, end)
    if began is not None and ended is not None:
        yield began, ended
