"""The steps of a profile come in order, micro-batches make up steps, and validation is no part of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.messages.commands import ProfileRequest
from training.profile import Done, PhaseClock, ProfiledSteps

LOOP: Any = SimpleNamespace(trainer=SimpleNamespace(world_size=1))


class Training:
    """Takes micro-batches by a clock of its own: 1 s of data, 2 s of work; validation takes 50 s."""

    def __init__(self, *, warmup: int, steps: int, accumulate: int = 1) -> None:
        self._now = 0.0
        self._clock = PhaseClock(clock=lambda: self._now)
        facts = {"train": {}, "project": "", "dataset": None, "folder": ""}
        request = ProfileRequest(**facts, warmup=warmup, steps=steps)
        self.profiled = ProfiledSteps(request, self._clock, accumulate, traces=True)

    def batch(self, *, validates: bool = False) -> None:
        self.profiled.between_steps(LOOP, None)
        self.profiled.enter("fetching")
        self._now += 1
        self.profiled.enter("forward")
        self._now += 2
        if validates:
            self._clock.enter("validation")
            self._now += 50
            self._clock.leave()


def test_steps_after_the_warm_up_are_timed_and_the_training_is_left() -> None:
    training = Training(warmup=2, steps=3)
    for number in range(5):
        training.batch(validates=number in (0, 3))
    with pytest.raises(Done):
        training.batch()
    assert training.profiled.step_s == [3.0, 3.0, 3.0]
    assert training.profiled.phases == {"data": 3.0, "callbacks": 6.0}


def test_a_step_is_as_many_micro_batches_as_it_accumulates() -> None:
    training = Training(warmup=1, steps=2, accumulate=2)
    for _ in range(6):
        training.batch()
    with pytest.raises(Done):
        training.batch()
    assert training.profiled.step_s == [6.0, 6.0]


@pytest.mark.parametrize(("batches", "timed"), [(0, 0), (2, 0), (3, 1), (4, 2)])
def test_a_training_that_ends_early_has_the_steps_that_it_took(batches: int, timed: int) -> None:
    training = Training(warmup=2, steps=5)
    for _ in range(batches):
        training.batch()
    training.profiled.close(LOOP.trainer)
    assert training.profiled.step_s == [3.0] * timed
    assert sum(training.profiled.phases.values()) == 3.0 * timed
