"""How much of a step is a rank's own work, and that waiting for others is none of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist

from tests.support.clocks import Clock
from training.fit.reports import RankActivity, watch_collectives


@pytest.fixture
def clock() -> Clock:
    return Clock()


def spend(where: RankActivity, clock: Clock, *path: tuple[str, float]) -> None:
    for place, seconds in path:
        where.enter(place)
        clock.now += seconds
    where.enter("between")


def test_own_work_is_fetching_forward_and_stepping(clock: Clock) -> None:
    where = RankActivity(clock)
    clock.now += 50
    activity = where.read()
    assert (activity.place, activity.place_s) == ("starting", 50)
    spend(where, clock, ("fetching", 1), ("forward", 2), ("backward", 30), ("stepping", 4), ("checkpoint", 99))
    spend(where, clock, ("validation", 60), ("hooks", 9), ("collective", 70))
    assert where.read().own_s == 7
    where.moved()
    where.stepped()
    assert (where.moves, where.steps) == (2, 1)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(dist.Work, "wait", lambda work: seen.append(work.where.place) or clock_of(work))
    return seen


def clock_of(work: Any) -> None:
    work.clock.now += 10


def test_waiting_inside_a_collective_is_no_own_work(clock: Clock, waits: list[str]) -> None:
    where = RankActivity(clock)
    watch_collectives(where)

    class Work:
        pass

    work: Any = Work()
    work.where, work.clock = where, clock
    where.enter("forward")
    clock.now += 1
    dist.Work.wait(work)
    assert (waits, where.place, where.read().own_s) == (["collective"], "forward", 1)
    clock.now += 1
    where.enter("between")
    assert where.read().own_s == 2
    # The thread that saves checkpoints waits for others, too.
    thread = threading.Thread(target=dist.Work.wait, args=(work,))
    thread.start()
    thread.join()
    assert waits == ["collective", "between"]
