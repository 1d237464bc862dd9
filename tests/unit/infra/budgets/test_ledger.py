"""The ledger of a budget: what is reserved is never more than the limit, and what was used counts once."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError
from data_contracts.rules import BudgetWarning
from infra.budgets import Executed, Ledger
from infra.store import Store, layout

BALANCE = layout.balance("sales", "s", "2026-11")
A, B = Executed("run-a", "1-a"), Executed("run-b", "1-b")


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store, "sales", "s", "2026-11", "USD")


def test_two_executions_share_what_is_left(ledger: Ledger) -> None:
    assert ledger.reserve(A, used=0, ahead=6, limit=10)[0] == 6
    assert ledger.reserve(B, used=0, ahead=6, limit=10)[0] == 4
    held, balance = ledger.reserve(A, used=5, ahead=6, limit=10)
    assert (held, balance.reserved) == (1, 10), "what it used stays, and no more than the limit is held"


def test_an_execution_is_settled_once(ledger: Ledger) -> None:
    ledger.reserve(A, used=1, ahead=6, limit=10)
    for amount in (3, 4):  # the first that settles it decides
        ledger.settle({A: amount})
    assert (ledger.balance().spent, ledger.balance().holds) == (3, {})
    assert [one.amount for one in ledger.entries()] == [3]
    assert ledger.reserve(A, used=3, ahead=6, limit=10)[0] == 0, "it is over"


def test_a_process_that_dies_between_entry_and_balance_is_finished_by_the_next(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.reserve(A, used=1, ahead=6, limit=10)
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_fold", lambda who: None)
        ledger.settle({A: 3})
    assert (ledger.balance().spent, ledger.balance().reserved) == (0, 7)
    ledger.settle({A: 99})
    assert (ledger.balance().spent, ledger.balance().holds) == (3, {})


MANY = {Executed(f"run-{number:03d}", "1-a"): float(number) for number in range(60)}


def test_many_executions_are_settled_with_two_changes_of_the_balance(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, held = Executed("run-005", "1-a"), Executed("run-006", "1-a")
    ledger.settle({done: 1000})
    ledger.reserve(held, used=2000, ahead=0, limit=None)
    swaps: list[Any] = []
    swap = ledger._swap
    monkeypatch.setattr(ledger, "_swap", lambda *change: swaps.append(change) or swap(*change))
    for _ in range(2):
        ledger.settle(MANY)
    assert len(swaps) == 2
    assert (ledger.balance().spent, ledger.balance().holds) == (sum(range(60)) - 5 + 1000, {})
    assert len(ledger.entries()) == 60


def test_two_processes_that_settle_the_same_count_it_once(ledger: Ledger, store: Store) -> None:
    ledgers = [Ledger(store, "sales", "s", "2026-11", "USD") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: one.settle(MANY), ledgers))
    assert (ledger.balance().spent, ledger.balance().holds) == (sum(range(60)), {})


def test_a_balance_that_was_deleted_is_made_of_the_entries_and_a_damaged_one_is_named(
    store: Store, ledger: Ledger
) -> None:
    ledger.settle({A: 2})
    assert (ledger.balance().spent, ledger.balance().holds) == (2, {}), "an execution that reserved nothing counts, too"
    store.forget(BALANCE)
    assert ledger.balance().spent == 2
    store.forget(BALANCE)
    store.pointer(BALANCE).create({"spent": -1, "holds": {}})
    with pytest.raises(CorruptError, match="balance"):
        ledger.balance()


def test_a_hold_under_a_key_that_is_not_its_own_does_not_count(store: Store, ledger: Ledger) -> None:
    hold = {"run_id": "run-a", "execution": "1-a", "amount": 9}
    store.pointer(BALANCE).create(
        {"spent": 1, "holds": {"planted": hold, "run-b.1-b": {**hold, "run_id": "run-b", "execution": "1-b"}}}
    )
    assert (ledger.balance().reserved, list(ledger.balance().holds)) == (9, [B.key])
    ledger.settle({B: 2})
    assert (ledger.balance().spent, ledger.balance().holds) == (3, {})


def test_a_share_is_reached_once_and_a_raised_limit_has_shares_of_its_own(ledger: Ledger) -> None:
    def warning(limit: float) -> BudgetWarning:
        about: dict[str, Any] = {"budget": "sales", "period": "2026-11", "share": 0.8, "used": 8, "unit": "USD"}
        return BudgetWarning(limit=limit, run_id="run-a", at="2026-11-25T10:00:00+00:00", **about)

    assert [ledger.warn_once(warning(limit)) for limit in (10, 10, 20)] == [True, False, True]
    expected = "The budget sales (2026-11) has reached 80% of its limit: 8.00 of 10.00 USD are used or reserved."
    assert warning(10).sentence == expected
    whole = warning(8).model_copy(update={"share": 1.0})
    assert whole.sentence.startswith("The budget sales (2026-11) has reached its limit: 8.00 of 8.00 USD")


@pytest.mark.parametrize(
    ("kills", "seed"), [(8, 1), *(pytest.param(40, seed, marks=pytest.mark.sweep) for seed in range(2, 12))]
)
def test_eight_runs_that_are_killed_never_use_more_than_an_interval_and_a_checkpoint_too_much(
    kills: int, seed: int, tmp_path: Path, repository: Path
) -> None:
    command = [sys.executable, "-m", "tests.support.budget_spenders", str(tmp_path / "s"), str(kills), str(seed)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    from tests.support.budget_spenders import CHECKPOINT_S, EVERY_S, LIMIT_H

    assert (found["killed"], found["failed"]) == (kills, 0), done.stderr
    assert found["charged"] <= LIMIT_H + (EVERY_S + CHECKPOINT_S) / 3600
    assert found["charged"] > LIMIT_H - 8 * EVERY_S / 3600, "nor is the budget left unused"
    assert found["spent"] == pytest.approx(found["charged"]), "the ledger says what the charges say"
    assert found["entries"] == pytest.approx(found["charged"])
    assert found["held"] == 0
