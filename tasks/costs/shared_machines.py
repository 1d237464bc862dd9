"""Divides a machine's time among the runs that were on it at once, so that together they pay for it once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from data_contracts.resolved import Price
from tasks.costs.charges import Charge, Charged, by_day
from tasks.costs.resource_shares import Span


@dataclass(frozen=True)
class _Occupancy:
    """Which part of its time on a machine a run pays for.

    Attributes:
        moments: at which the number of runs changes, in microseconds since the epoch, in order.
        paid_us: what one run that was there from the first moment on has paid for until each of them.
        together_us: for how long at least two runs had been there until each of them.
        counts: how many runs were there from each of them on.
    """

    moments: list[int]
    paid_us: list[float]
    together_us: list[int]
    counts: list[int]

    def share(self, charge: Charge) -> float:
        """The share of a charge that its run pays for; it lies within the moments, and has a length.

        Exactly 1 where its run was alone: that is decided in whole microseconds, not by rounded sums.
        """
        (paid, together), (paid_before, together_before) = self._until(charge.ended_us), self._until(charge.began_us)
        if together == together_before:
            return 1.0
        return min((paid - paid_before) / (charge.ended_us - charge.began_us), 1.0)

    def _until(self, moment: int) -> tuple[float, int]:
        index = bisect_right(self.moments, moment) - 1
        passed, count = moment - self.moments[index], self.counts[index]
        paid = self.paid_us[index] + (passed / count if passed else 0.0)
        return paid, self.together_us[index] + (passed if count > 1 else 0)


def shared(found: Sequence[Charged]) -> list[Charged]:
    """The charges of several runs, each with the share that it pays for, and cut at midnight where that is a part.

    While k runs are on one machine at one price, each pays for a k-th of that time; what was used beside time stays
    whole. Nodes of one run count as one run, nodes of a pool are not shared, and a machine without a name is one
    run's alone.
    """
    spans: dict[tuple[str, Price], dict[str, list[Span]]] = {}
    for _, charge in found:
        if key := _place(charge):
            runs = spans.setdefault(key, {})
            runs.setdefault(charge.run_id, []).append((charge.began_us, charge.ended_us))
    busy = {key: _occupancy(runs.values()) for key, runs in spans.items() if len(runs) > 1}
    divided: list[Charged] = []
    for one, charge in found:
        key = _place(charge)
        occupancy = busy.get(key) if key else None
        if occupancy is None or occupancy.share(charge) == 1:
            divided.append((one, charge))
        else:
            divided += [(one, replace(part, share=occupancy.share(part))) for part in by_day(charge)]
    return divided


def _place(charge: Charge) -> tuple[str, Price] | None:
    """The machine and its price: a record with another price must not take a share of what others pay."""
    if not charge.machine or charge.ended_us <= charge.began_us:
        return None
    return charge.machine, charge.price


def _occupancy(runs: Iterable[list[Span]]) -> _Occupancy:
    changes: dict[int, int] = {}
    for spans in runs:
        for began, ended in _merged(spans):
            changes[began] = changes.get(began, 0) + 1
            changes[ended] = changes.get(ended, 0) - 1
    moments = sorted(moment for moment, change in changes.items() if change)
    paid_us, together_us, counts = [], [], []
    paid, together, count = 0.0, 0, 0
    for index, moment in enumerate(moments):
        if count:
            passed = moment - moments[index - 1]
            paid += passed / count
            together += passed if count > 1 else 0
        count += changes[moment]
        paid_us.append(paid)
        together_us.append(together)
        counts.append(count)
    return _Occupancy(moments, paid_us, together_us, counts)


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
