"""Who pays for requests, bytes and energy: each quantity goes to the charges of the time in which it was used.

Shares are by time, in whole numbers that add up exactly. A quantity without any time, such as that of a process that
was killed at once, stays with a charge of no length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from data_contracts.costs import NOTHING, Resources
from data_contracts.executions import ExecutionUsage

MICRO = 1_000_000
Span = tuple[int, int]


@dataclass(frozen=True)
class Place:
    """The stage and the time of a charge, in microseconds; `machine`: of the machine that carries the run out."""

    stage: str
    span: Span
    machine: bool


def spread(used: Resources | None, over: Sequence[Span]) -> list[Resources]:
    """Each time's share of what was used, by its length; the first has all of it if none has a length."""
    length = sum(ended - began for began, ended in over)
    if used is None or not over:
        return [NOTHING] * len(over)
    if not length:
        return [used, *[NOTHING] * (len(over) - 1)]
    at, shares = 0, []
    for began, ended in over:
        shares.append(used.part(at, at + ended - began, length))
        at += ended - began
    return shares


def of_process(execution: ExecutionUsage, places: Sequence[Place]) -> list[Resources]:
    """Each charge's share of what the run's process used: by stage, and the rest between the stages."""
    shares = [NOTHING] * len(places)
    for used, stage, span in _parts(execution):
        chosen = _places(places, stage, span)
        for number, share in zip(chosen, spread(used, [places[n].span for n in chosen]), strict=True):
            shares[number] += share
    return shares


def _places(places: Sequence[Place], stage: str, span: Span | None) -> list[int]:
    """The charges that pay for a stage: of the machine, else of its nodes, else any of the machine, else any."""
    during = [n for n, one in enumerate(places) if one.stage == stage and _meets(one.span, span)]
    machine = [n for n, one in enumerate(places) if one.machine]
    # A stage whose nodes are processes of this machine has no time of its own.
    return [n for n in during if places[n].machine] or during or machine or list(range(len(places)))


def _parts(execution: ExecutionUsage) -> Iterator[tuple[Resources, str, Span | None]]:
    whole = rest = execution.used or NOTHING
    for stage in execution.stages:
        if stage.used is not None:
            # A sign of life may be older than the last stage's record, which then says more.
            rest -= stage.used
            span = round(stage.began * MICRO), round(stage.ended * MICRO)
            yield stage.used.model_copy(update={"elsewhere": whole.elsewhere}), stage.name, span
    yield rest, "run", None


def _meets(one: Span, other: Span | None) -> bool:
    return other is None or (one[0] < other[1] and one[1] > other[0])


def may_be_estimated(used: Iterable[Resources | None]) -> bool:
    """Whether energy may be estimated: none of these measured it, or knows of another process that did."""
    return not any(one is not None and (one.millijoules is not None or one.elsewhere) for one in used)
