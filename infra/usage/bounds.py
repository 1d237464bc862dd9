"""Bounds records of use by what is known of their run: nothing is charged before it began, or after it was last alive.

Whoever writes the store can write such a record. Clocks of machines differ, so an hour is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from data_contracts.costs.usage import ExecutionUsage, NodeUsage

CLOCKS_S = 3600.0
_STARTED = re.compile(r"[0-9]{8}-[0-9]{6}(?=-)")


def bounded(executions: Iterable[ExecutionUsage], now_s: float) -> tuple[list[ExecutionUsage], list[str]]:
    """The executions of a run within the times that they can have, and a sentence for each that lost something.

    An execution that began before its run, whose id has its start, or in the future is left out. The time of a node
    before its execution began, or after it was last alive, is left out.
    """
    kept: list[ExecutionUsage] = []
    sentences: list[str] = []
    for one in executions:
        started = _started(one.run_id)
        where = f"The record of use {one.execution} of the run {one.run_id}"
        if started is not None and one.began < started - CLOCKS_S:
            sentences.append(f"{where} begins before the run, and is left out.")
        elif one.began > now_s + CLOCKS_S:
            sentences.append(f"{where} begins in the future, and is left out.")
        else:
            within, lost = _within(one, now_s)
            kept.append(within)
            if lost:
                sentences.append(f"{where} has times {' and '.join(lost)}, which are left out.")
    return kept, sentences


def launched_once(executions: Sequence[ExecutionUsage]) -> list[ExecutionUsage]:
    """The executions of a run with each launch in one of them: where two recorded it, in the one that saw most of it.

    Two processes that carry a run out one after the other, or for a moment at once, may both have seen a generation.
    """
    most: dict[tuple[str, int], tuple[float, int]] = {}
    for number, one in enumerate(executions):
        for gang in one.gangs:
            seen = (sum(max(node.released - node.started, 0.0) for node in gang.nodes), -number)
            launch = (gang.where, gang.generation)
            most[launch] = max(most.get(launch, seen), seen)
    return [
        one.model_copy(
            update={"gangs": [gang for gang in one.gangs if most[gang.where, gang.generation][1] == -number]}
        )
        for number, one in enumerate(executions)
    ]


def _within(one: ExecutionUsage, now_s: float) -> tuple[ExecutionUsage, list[str]]:
    """An execution whose times are possible, and which of its times were not."""
    latest = now_s + CLOCKS_S
    ended = one.ended if one.ended is None or one.ended <= latest else max(now_s, one.began)
    lost = ["in the future"] if ended != one.ended else []
    first, last = one.began - CLOCKS_S, (latest if ended is None else min(ended + CLOCKS_S, latest))
    gangs = [gang.model_copy(update={"nodes": [_cut(node, first, last) for node in gang.nodes]}) for gang in one.gangs]
    if any(node.started < first for gang in one.gangs for node in gang.nodes):
        lost.append("before its start")
    if any(node.released > last for gang in one.gangs for node in gang.nodes):
        lost.append("after its end")
    if not lost:
        return one, []
    return one.model_copy(update={"ended": ended, "gangs": gangs}), lost


def _cut(node: NodeUsage, first: float, last: float) -> NodeUsage:
    """A node's record between two times."""
    names = ("started", "released", "joined", "working", "stopped")
    moments = {name: min(max(at, first), last) for name in names if (at := getattr(node, name)) is not None}
    return node.model_copy(update=moments)


def _started(run_id: str) -> float | None:
    """When a run was started (seconds since the epoch), by its id; None if that does not say."""
    found = _STARTED.match(run_id)
    if found is None:
        return None
    try:
        return datetime.strptime(found[0], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
