"""A gang whose budget is used up ends with one checkpoint on all ranks, and continues from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from data_contracts.errors import Cancelled, Diverged, Fenced, NodeLost, OverBudget, Preempted, TrainwrightError
from data_contracts.executions import GangUsage
from infra.gang.ledger import committed
from infra.gang.recovery import raise_why_over
from infra.store import Store
from tests.support.conducting import TRAINING, run, steps
from tests.support.refusals import refusal


class Spent:
    """A guard of a budget that is used up once the nodes have worked until `until`."""

    def __init__(self, until: Callable[[], bool] = lambda: False, *, refuses: bool = False) -> None:
        self.until, self.refuses = until, refuses
        self.heard: list[object] = []
        self.usage: Callable[[], GangUsage] | None = None

    def admit(self, nodes: int) -> None:
        self.heard.append(("admit", nodes))
        if self.refuses:
            raise OverBudget("Nothing is left.")

    def launched(self, usage: Callable[[], GangUsage]) -> None:
        self.usage = usage
        self.heard.append("launched")

    def released(self) -> None:
        self.heard.append("released")

    def over(self) -> TrainwrightError | None:
        return OverBudget("Nothing is left.") if self.usage is not None and self.until() else None


@pytest.mark.warm
def test_it_ends_with_a_checkpoint_and_continues_from_it(store: Store) -> None:
    budget_guard = Spent(until=lambda: (0, 0) in steps(store))
    with pytest.raises(OverBudget) as caught:
        run(store, {"step_s": 0.05, "steps": 20_000, "every": 10_000}, nodes=2, devices=1, budget_guard=budget_guard)
    assert caught.value.details["node_seconds"] > 0
    assert budget_guard.heard == [("admit", 2), "launched", "released"], "no other generation was launched"
    [checkpoint] = committed(store, TRAINING)[0]
    assert 0 < checkpoint.step < 10_000, "not one that was due"
    outcome = run(store, {"step_s": 0, "steps": checkpoint.step + 1, "every": 100}, nodes=2, devices=1)
    assert outcome.checkpoint.step == checkpoint.step + 1
    assert steps(store)[1, 0] == [checkpoint.step + 1], "it began where it had ended"


def test_nodes_that_cannot_be_paid_are_not_launched(store: Store) -> None:
    with pytest.raises(OverBudget):
        run(store, {}, budget_guard=Spent(refuses=True))
    assert steps(store) == {}


@pytest.mark.parametrize(
    ("error", "is_over"),
    [
        (Preempted("A node was asked to stop."), True),
        (NodeLost("It is gone."), True),
        (Fenced("Another run owns it."), False),
        (Diverged("The loss is NaN."), False),
        (Cancelled("Ctrl-C."), False),
    ],
)
def test_what_follows_from_the_end_is_the_budget_and_nothing_else_is(error: TrainwrightError, is_over: bool) -> None:
    spent = Spent(until=lambda: True)
    spent.launched(lambda: None)  # type: ignore[arg-type, return-value]
    assert bool(refusal(OverBudget, raise_why_over, spent, error)) is is_over
    raise_why_over(Spent(), error)
