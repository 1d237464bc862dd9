"""What counts as going wrong, and which samples may have done it."""

from __future__ import annotations

import math

import pytest
import torch

from training.divergence import BAD_LOSS, BAD_WEIGHT, FINE, ROSE, SETTLED_STEPS, LossWatch

BATCH = 10
# What a step of training meets, and how it is found; samples consumed when losses and weights were last seen fine.
SPANS = [(BAD_LOSS, 50, 60, [40, 60]), (BAD_WEIGHT, 50, 60, [50, 60]), (ROSE, 50, 60, [50, 60])]


@pytest.mark.parametrize(("finding", "seen", "now", "span"), SPANS)
def test_the_samples_in_question_are_few(finding: int, seen: int, now: int, span: list[int]) -> None:
    watch = LossWatch(BATCH, None)
    watch.begin(20)
    watch.take(torch.tensor(1.0))
    watch.fine(seen, weights=False)
    assert [watch.since(finding, now), now] == span


@pytest.mark.parametrize("finding", [BAD_LOSS, BAD_WEIGHT])
def test_nothing_that_a_checkpoint_holds_is_blamed(finding: int) -> None:
    watch = LossWatch(BATCH, None)
    watch.begin(60)
    watch.take(torch.tensor(math.nan))
    assert watch.since(finding, 70) == 60
    watch.fine(80, weights=True)
    assert watch.since(finding, 90) == 80


def follow(watch: LossWatch, losses: list[float]) -> int | None:
    """The first loss that is found to rise."""
    for at, loss in enumerate(losses):
        watch.take({"loss": torch.tensor(loss)})
        if watch.look(torch.nn.Linear(1, 1), weights=False) == ROSE:
            return at
    return None


CALM = [2.0 + 0.3 * math.sin(step) for step in range(100)]
# losses, factor, at which of them training has diverged
RISES = [
    (CALM, 3.0, None),
    ([*CALM, 9.0], 3.0, 100),
    ([*CALM, 9.0], None, None),
    ([*CALM, 5.0, 2.0], 3.0, None),
    ([9.0, 2.0, 9.0, *CALM], 3.0, None),
    ([100 / (1 + step) for step in range(200)], 2.0, None),
    ([-2.0] * 100 + [7.0], 3.0, 100),
]


@pytest.mark.parametrize(("losses", "factor", "at"), RISES)
def test_a_rise_is_measured_by_the_mean_of_the_steps_before(
    losses: list[float], factor: float | None, at: int | None
) -> None:
    assert SETTLED_STEPS < 100
    assert follow(LossWatch(BATCH, factor), losses) == at


def test_a_loss_that_is_no_number_is_worse_than_a_weight() -> None:
    watch, module = LossWatch(BATCH, None), torch.nn.Linear(1, 1)
    assert watch.look(module, weights=True) == FINE
    module.weight.data.fill_(math.inf)
    assert watch.look(module, weights=False) == FINE
    assert watch.look(module, weights=True) == BAD_WEIGHT
    watch.take(torch.tensor(math.nan))
    assert watch.look(module, weights=True) == BAD_LOSS
