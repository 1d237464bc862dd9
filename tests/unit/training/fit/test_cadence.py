"""When a checkpoint is due, and which of them train may hand over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from training.fit.cadence import Cadence


def cadence(every_steps: int | None = None, select: tuple[str, str] | None = None) -> Cadence:
    chosen = SimpleNamespace(metric=select[0], mode=select[1]) if select else None
    train: Any = SimpleNamespace(checkpoint=SimpleNamespace(every_steps=every_steps), select=chosen)
    return Cadence(train)


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


@pytest.mark.parametrize(("mode", "chosen"), [("min", [True, False, True, True]), ("max", [True, True, False, False])])
def test_the_best_so_far_may_be_chosen(mode: str, chosen: list[bool]) -> None:
    kept = cadence(select=("loss", mode))
    assert [kept.may_be_chosen({"loss": loss}, last=False) for loss in (2.0, 3.0, 2.0, 1.0)] == chosen
    assert kept.may_be_chosen({"loss": 2.5}, last=True)


def test_without_a_metric_the_last_one_is_chosen() -> None:
    for kept in (cadence(), cadence(select=("loss", "min"))):
        assert [kept.may_be_chosen({"other": 1.0}, last=last) for last in (False, True)] == [False, True]
