"""Each second belongs to the innermost part that runs, whatever ends it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from training.profile import BETWEEN, PhaseClock


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_part_within_a_part_is_not_counted_twice() -> None:
    hand = Hand()
    clock = PhaseClock(clock=hand)
    for entered, seconds in (
        ("data", 1.0),
        (None, 2.0),
        ("optimizer", 4.0),
        ("backward", 8.0),
        (None, 16.0),
        (None, 32.0),
    ):
        clock.enter(entered) if entered else clock.leave()
        hand.now += seconds
    assert clock.now() == 163.0
    assert clock.seconds == {BETWEEN: 34.0, "data": 1.0, "optimizer": 20.0, "backward": 8.0}
    clock.restart()
    hand.now += 1
    clock.now()
    assert clock.seconds == {BETWEEN: 1.0}


def test_a_part_that_raises_ends() -> None:
    hand = Hand()
    clock = PhaseClock(clock=hand)

    def fail() -> None:
        hand.now += 3
        raise ValueError("the step")

    with pytest.raises(ValueError, match="the step"):
        clock.timed("forward", fail)()
    hand.now += 1
    clock.now()
    assert clock.seconds == {BETWEEN: 1.0, "forward": 3.0}


def test_another_thread_is_not_counted_and_the_device_is_waited_for() -> None:
    settled: list[Any] = []
    clock = PhaseClock(settle=lambda: settled.append(1), clock=Hand())
    call = clock.timed("synchronisation", lambda: "done")
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert not settled
    assert "synchronisation" not in clock.seconds
    assert call() == "done"
    assert len(settled) == 2
