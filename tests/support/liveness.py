"""What ranks report to a generation's liveness, in the tests of both its verdicts and its limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from data_contracts.messages.gang import RankReport
from infra.gang.members import Liveness


def report(rank: int, step: int, place: str = "forward", **more: Any) -> RankReport:
    """A rank's report in which it moved with each step."""
    return RankReport(**{"rank": rank, "step": step, "steps": step, "moves": step, "place": place, **more})


def train(
    liveness: Liveness, clock: SimpleNamespace, upto: int, each_s: float = 1.0, place: str = "forward", **more: Any
) -> None:
    """Both ranks take `upto` steps."""
    for step in range(1, upto + 1):
        clock.now += each_s
        liveness.hear(report(0, step, place, **more), "node 0 (a)")
        liveness.hear(report(1, step, place, **more), "node 1 (b)")
