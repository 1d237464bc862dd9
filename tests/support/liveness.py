"""What ranks report to a generation's liveness, in the tests of both its verdicts and its limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from data_contracts.messages.gang import RankReport
from infra.gang.members import Liveness


def report(rank: int, step: int, place: str = "forward", **more: Any) -> RankReport:
    """A rank's report in which it moved with each step."""
    return RankReport(**{"rank": rank, "step": step, "steps": step, "moves": step, "place": place, **more})


def hear(liveness: Liveness, *reports: RankReport) -> None:
    """Hear each rank on a node of its own."""
    for heard in reports:
        liveness.hear(heard, f"node {heard.rank} ({'ab'[heard.rank]})")


def train(
    liveness: Liveness, clock: SimpleNamespace, upto: int, each_s: float = 1.0, place: str = "forward", **more: Any
) -> None:
    """Both ranks take `upto` steps."""
    for step in range(1, upto + 1):
        clock.now += each_s
        hear(liveness, *(report(rank, step, place, **more) for rank in (0, 1)))
