"""What counts as going wrong, and which samples may have done it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from training.fit.guards import BAD_LOSS, BAD_WEIGHT, FINE, ROSE, SETTLED_STEPS, LossWatch, check_resumed

BATCH = 10
# What a step of training meets, and how it is found; samples consumed when losses and weights were last seen fine.
SPANS = [(BAD_LOSS, 50, 60, [40, 60]), (BAD_WEIGHT, 50, 60, [50, 60]), (ROSE, 50, 60, [50, 60])]


@pytest.mark.parametrize(("finding", "seen", "now", "span"), SPANS)
def test_the_samples_in_question_are_few(finding: int, seen: int, now: int, span: list[int]) -> None:
    watch = LossWatch(BATCH, None)
    watch.fine(20, weights=True)
    watch.take(torch.tensor(1.0))
    watch.fine(seen, weights=False)
    assert [watch.since(finding, now), now] == span


@pytest.mark.parametrize("finding", [BAD_LOSS, BAD_WEIGHT])
def test_nothing_that_a_checkpoint_holds_is_blamed(finding: int) -> None:
    watch = LossWatch(BATCH, None)
    watch.fine(60, weights=True)
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


CHECKPOINT = Checkpoint.from_json(
    {
        "ref": {"uri": "trainings/k-0/checkpoints/3-g0", "id": "a", "seal": "b"}, "key": "k", "step": 3, "epoch": 0,
        "training": "trainings/k-0", "generation": 0, "world_size": 1,
    }
)  # fmt: skip


def resumed(change: Callable[[torch.nn.Module, torch.optim.Optimizer], object], step: int = 3) -> None:
    """What a rank restored: two layers, a mask, and Adam after a step, changed."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    module.register_buffer("mask", torch.full((2,), float("-inf")))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    module(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        change(module, optimizer)
    check_resumed(SimpleNamespace(lightning_module=module, optimizers=[optimizer], global_step=step), CHECKPOINT)


def _moment(name: str, value: float) -> Callable[[torch.nn.Module, torch.optim.Optimizer], object]:
    return lambda module, optimizer: optimizer.state[module[1].bias][name].fill_(value)


RESTORED = {
    "as it was": (lambda module, optimizer: None, None),
    "an infinite square": (_moment("exp_avg_sq", float("inf")), None),
    "large weights": (lambda module, optimizer: module[0].weight.fill_(3e38), None),
    "one weight": (lambda module, optimizer: module[1].weight[0, 1:].fill_(float("nan")), "weights"),
    "an infinite weight": (lambda module, optimizer: module[0].bias[:1].fill_(float("inf")), "weights"),
    "a moment": (_moment("exp_avg", float("nan")), "an optimizer's state"),
    "a rate": (lambda module, optimizer: optimizer.param_groups[0].update(lr=float("nan")), "a learning rate"),
}


@pytest.mark.parametrize(("change", "what"), RESTORED.values(), ids=RESTORED)
def test_what_no_training_commits_is_not_resumed_from(change: Any, what: str | None) -> None:
    if what is None:
        resumed(change)
        return
    with pytest.raises(CorruptError) as raised:
        resumed(change)
    uri = CHECKPOINT.ref.uri
    assert raised.value.message == f"The checkpoint {uri} holds numbers that are not finite, in {what}."
    assert raised.value.details == {"checkpoint": uri}


def test_a_checkpoint_with_another_number_of_steps_is_refused() -> None:
    with pytest.raises(CorruptError, match=r"checkpoints/3-g0 counts -5 steps, not 3\."):
        resumed(lambda module, optimizer: None, step=-5)
