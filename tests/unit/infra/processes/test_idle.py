"""When a child is hung, to the second."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from data_contracts.messages.children import Advanced
from infra.processes.environment import IdleLimit, IdleWatch


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=0.0)


def test_limits_are_kept_to_the_second(clock: SimpleNamespace) -> None:
    watch = IdleWatch(IdleLimit(45), lambda: clock.now)
    clock.now = 1800
    assert watch.overdue_s() == 0
    clock.now = 1801
    assert watch.overdue_s() == 1801
    watch.hear(Advanced(done=1))
    clock.now += 45
    assert watch.overdue_s() == 0
    clock.now += 1
    assert watch.overdue_s() == 46
    watch.hear(Advanced(done=2))
    clock.now += 460
    assert watch.overdue_s() == 0, "ten times the slowest piece of work"
    clock.now += 1
    assert watch.overdue_s() == 461
    watch.hear(Advanced(done=3, long=True))
    clock.now += 1800
    assert watch.overdue_s() == 0


def test_time_without_the_store_does_not_count(clock: SimpleNamespace) -> None:
    clock.away = True
    watch = IdleWatch(IdleLimit(45, excused=lambda: clock.away), lambda: clock.now)
    watch.hear(Advanced(done=1))
    clock.now += 100
    assert watch.overdue_s() == 0
    clock.away = False
    clock.now += 45
    assert watch.overdue_s() == 0
    clock.now += 1
    assert watch.overdue_s() == 46
