"""What the conductor notes of a generation: the time that steps waited for checkpoints, as the ranks counted it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.costs import Resources
from data_contracts.messages.gang import Heartbeat, RankAnswer, RankReport
from infra.gang.members import Activity


def report(step: int, stalls: int, stalled_s: float, rank: int = 0, *, saving: bool = False) -> RankReport:
    return RankReport(rank=rank, step=step, stalls=stalls, stalled_s=stalled_s, saving=saving)


def test_only_the_time_that_steps_waited_is_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    launch: Any = SimpleNamespace(training="trainings/a-0", generation=0, resume=None, begin=None)
    node: Any = SimpleNamespace(started=990.0, released=1100.0, joined_at=995.0, exit=None)
    activity = Activity(launch, [node], SimpleNamespace(checkpoint_step=4))  # type: ignore[arg-type]
    beats = [
        [report(0, 0, 0.0), report(0, 0, 0.0, 1)],
        [report(2, 0, 0.0), report(2, 0, 0.0, 1)],
        [report(4, 1, 0.5), report(4, 1, 0.75, 1)],  # the slower rank made the other wait
        [report(9, 1, 0.5, saving=True), report(9, 1, 0.75, 1, saving=True)],  # in the background
        [report(12, 2, 1.5), report(12, 2, 1.25, 1)],
        [report(12, 2, 1.0), report(12, 2, 1.0, 1)],  # a report that was overtaken
    ]
    for number, reports in enumerate(beats):
        now += 1
        activity.take_in(0, Heartbeat(ranks=reports, used=Resources(put_requests=number)))
    usage = activity.usage(local=False)
    [used] = usage.nodes
    assert (usage.saves, used.saved_s, used.waited_s) == (2, 1.5, 0.0)
    assert (usage.last_step, usage.kept_step) == (12, 4)
    for said, kept in [
        (2.5, 2.5),
        ("2", 0.0),
        (-1, 0.0),
        (float("nan"), 0.0),
        (1e300, 0.0),
    ]:  # a rank's answer is the user's code's
        measured = Activity(launch, [node], SimpleNamespace(checkpoint_step=4))  # type: ignore[arg-type]
        measured.note_done(RankAnswer(plan={"steps_per_epoch": 3, "stepping_s": said}))
        assert (measured.usage(local=False).stepping_s, measured.usage(local=False).steps_per_epoch) == (kept, 3)
    assert used.used == Resources(put_requests=5), "each heartbeat has the sum so far"
