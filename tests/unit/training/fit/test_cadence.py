"""When a checkpoint is due, and which of them train may hand over."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clocks import Clock
from training.fit.supervisor import Cadence


def cadence(
    every_steps: int | None = None,
    select: tuple[str, str] | None = None,
    every_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Cadence:
    chosen = SimpleNamespace(metric=select[0], mode=select[1]) if select else None
    checkpoint = SimpleNamespace(every_steps=every_steps, every_s=every_s)
    train: Any = SimpleNamespace(checkpoint=checkpoint, select=chosen)
    return Cadence(train, clock)


@pytest.mark.parametrize(
    ("every", "step", "last", "epoch_begins", "due"),
    [
        (None, 7, 3, True, True),
        (None, 7, 3, False, False),
        (None, 7, 7, True, False),
        (5, 10, 5, False, True),
        (5, 9, 5, True, False),
        (5, 12, 9, False, True),  # the multiple was passed while another save was on its way
        (5, 5, 5, False, False),
        (1, 1, 0, False, True),
    ],
)
def test_a_checkpoint_is_due(every: int | None, step: int, last: int, epoch_begins: bool, due: bool) -> None:
    assert cadence(every).is_due(step, last, epoch_begins=epoch_begins) is due


def test_a_checkpoint_by_the_clock_is_due_after_the_seconds_since_the_last() -> None:
    clock = Clock()
    kept = cadence(every_s=10, clock=clock)
    asked = []
    for step in range(1, 9):
        clock.now += 4
        asked.append(kept.is_time(step, step - 1))
        if asked[-1]:
            kept.begin()
    assert asked == [False, False, True, False, False, True, False, False]
    clock.now += 100
    assert not kept.is_time(8, 8), "the newest checkpoint is of this very step"
    assert not cadence(every_steps=5, clock=clock).is_time(9, 8)


@pytest.mark.parametrize(
    ("every_steps", "select", "due"),
    [
        (None, None, False),  # the clock alone
        (None, ("loss", "min"), True),  # the end of an epoch may be chosen, so the clock adds to it
        (5, None, True),
        (20, None, False),
    ],
)
def test_the_clock_takes_the_place_of_epochs(every_steps: int | None, select: Any, due: bool) -> None:
    assert cadence(every_steps, select, every_s=10).is_due(10, 3, epoch_begins=True) is due


def test_a_checkpoint_that_only_the_clock_asked_for_is_not_chosen() -> None:
    assert cadence(select=("loss", "min"), every_s=1).unchosen({"loss": 1.0, "other": 2.0}) == {"other": 2.0}
    assert cadence(every_s=1).unchosen({"loss": 1.0}) == {"loss": 1.0}


@pytest.mark.parametrize(("mode", "chosen"), [("min", [True, False, True, True]), ("max", [True, True, False, False])])
def test_the_best_so_far_may_be_chosen(mode: str, chosen: list[bool]) -> None:
    kept = cadence(select=("loss", mode))
    assert [kept.may_be_chosen({"loss": loss}, last=False) for loss in (2.0, 3.0, 2.0, 1.0)] == chosen
    assert kept.may_be_chosen({"loss": 2.5}, last=True)


def test_without_a_metric_the_last_one_is_chosen() -> None:
    for kept in (cadence(), cadence(select=("loss", "min"))):
        assert [kept.may_be_chosen({"other": 1.0}, last=last) for last in (False, True)] == [False, True]
