"""A new conductor adopts the checkpoints that a dead one's generation sealed, and keeps its retry budgets."""

from __future__ import annotations

from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Retries
from infra.gang.ledger import Ledger
from infra.store import Store, layout
from tests.support.scripted_nodes import TRAINING, seal
from tests.unit.infra.gang.test_ledger import kept, ledger_of, spoil


def sealed(store: Store, *steps: int, generation: int = 0) -> list[Checkpoint]:
    return [seal(store, step, generation) for step in steps]


def test_checkpoints_of_a_dead_conductors_generation_are_adopted_once(store: Store) -> None:
    ledger_of(store, 5, 10)
    ledger = Ledger(store, TRAINING, 1)
    assert ledger.settled is None
    assert [one.step for one in ledger.adopt(0, sealed(store, 5, 15, 20))] == [15, 20], "those that are newer"
    later = Ledger(store, TRAINING, 2)
    assert ([one.step for one in later.checkpoints], later.settled) == ([5, 10, 15, 20], 0)
    assert later.adopt(0, later.checkpoints) == []


def test_checkpoints_that_were_set_aside_are_not_adopted(store: Store) -> None:
    ledger = ledger_of(store, 5, 10, 15)
    aside = ledger.checkpoints[1:]
    ledger.go_back(5, by="test")
    assert ledger.adopt(0, aside) == []
    assert kept(store) == [5]


def test_an_adopted_checkpoint_that_is_damaged_is_quarantined(store: Store) -> None:
    ledger_of(store, 5)
    ledger = Ledger(store, TRAINING, 1)
    [broken] = ledger.adopt(0, sealed(store, 10))
    spoil(store, broken)
    assert ledger.resume_from().step == 5
    assert store.exists(layout.quarantined(broken.ref.uri))


def test_what_failures_used_up_outlives_the_conductor(store: Store) -> None:
    retries = Retries(used={"hung": 2}, failures={"b": 1}, left_out=["c"], micro_batch=4, happened=["c is left out"])
    ledger_of(store, 5).record_recovery([], retries)
    later = Ledger(store, TRAINING, 1)
    assert later.retries == retries
    later.record_recovery([], Retries())
    assert "retries" not in store.pointer(layout.latest(TRAINING)).read().value, "earlier versions read it as before"
