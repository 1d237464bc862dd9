"""A run and its budgets: refused before anything is booked, warned once, ended in time, settled from its records."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from data_contracts.errors import CorruptError, OverBudget, StorageUnavailable, UsageError
from data_contracts.executions import ExecutionUsage, GangUsage, NodeUsage
from data_contracts.resolved import Price
from data_contracts.rules import Budgets, BudgetWarning
from infra.budgets import Executed, apply_rules
from infra.store import Store, layout
from tasks import budgets
from tasks.budgets import BudgetPeriod, month_bounds, month_of, nothing_left, settle_all, settle_others
from tasks.run.meter import metered, usage_of, used_by_gang
from tasks.run.run import Run
from tests.support.runs import make_run
from tests.unit.tasks.run.test_meter import killed as killed_after

# A node for a dollar a second.
DEAR = Price(machine="gpu", per_hour=3600.0, price_date="2026-01-01", devices=4)
FREE = Price(machine="cpu", per_hour=0.0, price_date="2026-01-01")


def this_month() -> str:
    """The month of a test, which is not always that in which the tests were collected."""
    return month_of(time.time())


def limited(store: Store, limit: dict[str, Any], **more: Any) -> BudgetPeriod:
    content = {"version": 1, "budgets": {"all": {"per": "month", "limit": limit, **more}}}
    apply_rules(store, "budgets", content)
    budget = Budgets.model_validate(content).budgets["all"]
    return BudgetPeriod("all", budget, this_month() if budget.per == "month" else "r1")


@pytest.fixture
def budget_period(store: Store) -> BudgetPeriod:
    """This month's part of a budget of 100 USD."""
    return limited(store, {"amount": 100.0, "currency": "USD"})


def run_in(store: Store, run_id: str = "r1", here: Price = FREE) -> Run:
    spec = {"name": "p", "tags": {"team": "a"}, "train": {"launcher": "work-pool", "pool": "gpu"}}
    return make_run(store, run_id=run_id, spec=spec, price=DEAR, prices={"here": here})


def gang(began: float, seconds: float, generation: int = 0) -> GangUsage:
    about = {"stage": "train", "where": "trainings/k-0", "generation": generation, "local": False}
    return GangUsage(nodes=[NodeUsage(number=0, started=began, released=began + seconds)], ended="", **about)


def carry_out(run: Run, work: Callable[[Any], Any]) -> Any:
    return budgets.within_budgets(metered(work))(run)


def training(run: Run, seconds: float, nodes: int = 1) -> None:
    """Train for `seconds` that are counted, not waited for."""
    budgets.admit(run)
    allowed = budgets.budget_guard(run, "train", local=False)
    allowed.admit(nodes)
    began = time.time()
    allowed.launched(lambda: gang(began, seconds))
    run.live.budget._renew()
    used_by_gang(run, "train", gang(began, seconds))
    allowed.released()


def test_without_budgets_nothing_is_written(store: Store) -> None:
    carry_out(run_in(store), lambda run: training(run, 10))
    assert store.list("budgets") == []


def test_what_a_run_used_is_settled_and_is_what_the_charges_say(store: Store) -> None:
    budget_period = limited(store, {"amount": 500.0, "currency": "USD"})
    carry_out(run_in(store), lambda run: training(run, 10))
    balance = budget_period.ledger(store).balance()
    assert (balance.holds, balance.spent) == ({}, pytest.approx(10))
    [execution] = usage_of(store, "r1").executions
    assert balance.spent == pytest.approx(budget_period.used(execution), abs=1e-9)


def test_a_run_is_refused_before_anything_is_booked(budget_period: BudgetPeriod, store: Store) -> None:
    budget_period.ledger(store).settle({Executed("r0", "1-a"): 100})
    with pytest.raises(OverBudget) as caught:
        carry_out(run_in(store), budgets.admit)
    assert str(caught.value) == (
        f"The budget all (all runs, {this_month()}) has too little left for this run: 100.00 of 100.00 USD are spent. "
        "Raise it with `trainwright budget apply FILE`, then `trainwright resume r1`."
    )
    limited(store, {"amount": 200.0, "currency": "USD"})
    carry_out(run_in(store), lambda run: training(run, 10))
    assert budget_period.ledger(store).balance().spent == pytest.approx(110)


def test_nodes_that_cannot_be_paid_for_half_an_interval_are_not_launched(store: Store) -> None:
    limited(store, {"amount": 50.0, "currency": "USD"})
    carry_out(run_in(store), lambda run: training(run, 1))
    with pytest.raises(OverBudget, match="has too little left"):
        carry_out(run_in(store, "r2"), lambda run: training(run, 1, nodes=2))


def test_a_training_ends_while_half_an_interval_is_reserved(budget_period: BudgetPeriod, store: Store) -> None:
    run = run_in(store)

    def work(run: Run) -> Any:
        training(run, 60)
        assert run.live.budget.over() is None
        budgets.refuse_over(run)
        allowed, began = budgets.budget_guard(run, "train", local=False), time.time()
        allowed.admit(1)
        allowed.launched(lambda: gang(began, 15, generation=1))
        run.live.budget._renew()
        assert isinstance(allowed.over(), OverBudget), "25 are left of 100, less than half of 60"
        budgets.refuse_over(run)

    with pytest.raises(OverBudget):
        carry_out(run, work)


@pytest.mark.parametrize(("at_limit", "begins"), [("stop", False), ("refuse", False), ("warn", True)])
def test_what_happens_at_the_limit(at_limit: str, begins: bool, store: Store) -> None:
    limited(store, {"amount": 50.0, "currency": "USD"}, at_limit=at_limit)
    with pytest.raises(OverBudget) if at_limit == "stop" else nullcontext():
        carry_out(run_in(store, "r0"), lambda run: (training(run, 60), budgets.refuse_over(run)))
    with nullcontext() if begins else pytest.raises(OverBudget):
        carry_out(run_in(store), budgets.admit)


def test_a_budget_for_each_run_is_for_all_its_executions(store: Store) -> None:
    limited(store, {"gpu_hours": 100 * 4 / 3600}, per="run")
    carry_out(run_in(store), lambda run: training(run, 90))
    carry_out(run_in(store, "r2"), lambda run: training(run, 1))
    with pytest.raises(OverBudget):
        carry_out(run_in(store), lambda run: training(run, 1))


def test_shares_are_warned_of_once_in_a_period(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, str, BudgetWarning]] = []
    monkeypatch.setattr(
        "tasks.budgets.announce_budget", lambda warning, pipeline: told.append(("event", pipeline, warning))
    )
    limited(store, {"amount": 100.0, "currency": "USD"}, warn_at=[0.2, 0.9], at_limit="warn")
    seen: list[str] = []

    def work(run: Run) -> None:
        training(run, 1)
        seen.extend(run.live.budget.sentences)

    for run_id in ("r1", "r2"):
        carry_out(run_in(store, run_id), work)
    assert seen == [
        f"The budget all ({this_month()}) has reached 20% of its limit: 60.00 of 100.00 USD are used or reserved."
    ]
    assert [(pipeline, warning.share) for _, pipeline, warning in told] == [("p", 0.2)]
    assert caplog.text.count("The budget all") == 1


def test_an_unknown_price_is_told_and_not_counted_as_nothing(budget_period: BudgetPeriod, store: Store) -> None:
    with pytest.raises(UsageError, match="a price is unknown: of an unknown machine. Add it"):
        carry_out(run_in(store, here=Price(machine="", per_hour=None, price_date="")), budgets.admit)


def killed(store: Store, run_id: str, seconds: float) -> None:
    """A run whose process was killed: it reserved, and its last record is missing."""
    run = run_in(store, run_id)
    run.live.budget = budgets.Spending(run)
    killed_after(run, lambda: training(run, seconds))
    run.live.budget._closed.set()


def test_a_killed_run_is_settled_from_its_records_by_whoever_needs_the_room(
    budget_period: BudgetPeriod, store: Store
) -> None:
    killed(store, "r0", seconds=10)
    ledger = budget_period.ledger(store)
    assert ledger.balance().reserved == pytest.approx(70, abs=1)
    carry_out(run_in(store), lambda run: training(run, 20))
    assert (ledger.balance().spent, ledger.balance().holds) == (pytest.approx(30), {})
    settle_others(store, budget_period, ledger)
    settle_all(store, Budgets.model_validate({"version": 1, "budgets": {"all": budget_period.budget.model_dump()}}))
    assert ledger.balance().spent == pytest.approx(30), "once"


def test_nodes_that_outlive_their_process_count_in_the_month_in_which_they_work(store: Store) -> None:
    budget_period = limited(store, {"hours": 100.0})
    november = month_bounds("2025-11")[0]
    node = NodeUsage(number=0, started=november - 7200, released=november + 1800)
    lost = GangUsage(stage="train", where="w", generation=0, local=False, nodes=[node], ended="node_lost")
    used = ExecutionUsage(
        run_id="r0", execution="1-a", pipeline="p", model="p", tags={}, prices={}, began=november - 7200,
        ended=november - 1800, gangs=[lost],
    )  # fmt: skip
    store.create_once(layout.usage("r0", "1-a", "ended"), used.to_json())
    settle_all(store, Budgets.model_validate({"version": 1, "budgets": {"all": budget_period.budget.model_dump()}}))
    spent = {
        month: replace(budget_period, period=month).ledger(store).balance().spent for month in ("2025-10", "2025-11")
    }
    assert spent == {"2025-10": pytest.approx(2 + 1.5), "2025-11": pytest.approx(0.5)}


def test_what_a_dead_run_holds_warns_of_no_share(store: Store) -> None:
    limited(store, {"amount": 200.0, "currency": "USD"}, warn_at=[0.5])
    killed(store, "r0", seconds=10)  # and it holds 60 more

    def work(run: Run) -> Any:
        training(run, 1)
        assert run.live.budget.sentences == [], "10 are used, and 61 held by this run"

    carry_out(run_in(store), work)


def test_a_refused_run_is_told_its_own_part(budget_period: BudgetPeriod, store: Store) -> None:
    ledger = budget_period.ledger(store)
    ledger.settle({Executed("r0", "1-a"): 40})
    ledger.reserve(Executed("r1", "1-b"), 30, 0, None)
    ledger.reserve(Executed("r2", "1-c"), 30, 0, None)
    assert nothing_left(budget_period, ledger.balance(), "r1").message.endswith(
        "40.00 of 100.00 USD are spent, 30.00 used or reserved by this run and 30.00 used or reserved by other runs."
    )
    assert "by this run" not in nothing_left(budget_period, ledger.balance(), "r9").message


def test_who_holds_and_has_no_records_any_more_used_what_was_held(store: Store) -> None:
    budget_period = limited(store, {"hours": 1.0})
    ledger = budget_period.ledger(store)
    ledger.reserve(Executed("gone", "1-a"), 0.25, 0, 1)
    assert settle_others(store, budget_period, ledger)
    assert (ledger.balance().spent, ledger.balance().holds) == (0.25, {})


def test_a_run_that_is_carried_out_is_not_settled(store: Store) -> None:
    from infra.store import Lease
    from infra.store.lease import with_process

    budget_period = limited(store, {"hours": 1.0})
    ledger = budget_period.ledger(store)
    ledger.reserve(Executed("r0", "1-a"), 0.25, 0, 1)
    Lease.take(store, layout.lease(layout.run("r0")), with_process("r0"))
    assert not settle_others(store, budget_period, ledger)
    assert ledger.balance().reserved == 0.25


def test_a_store_that_is_away_ends_no_run_and_a_damaged_ledger_does(
    budget_period: BudgetPeriod, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = budgets.Spending(run_in(store))
    for error, ends in ((StorageUnavailable("away"), False), (CorruptError("damaged"), True)):
        calls: list[float] = []

        def fails(error: Exception = error, calls: list[float] = calls) -> None:
            calls.append(1)
            if len(calls) > 1:
                mine._closed.set()
            raise error

        monkeypatch.setattr(mine, "_renew", fails)
        mine._closed.clear()
        mine._every_s = 0.001
        mine._keep()
        assert (mine.over() is error) == ends


def test_a_budget_that_is_applied_while_a_run_works_holds_for_it(store: Store) -> None:
    def work(run: Run) -> Any:
        budgets.admit(run)
        limited(store, {"amount": 10.0, "currency": "USD"})
        with pytest.raises(OverBudget):
            budgets.budget_guard(run, "train", local=False).admit(1)

    carry_out(run_in(store), work)


def test_a_shorter_interval_that_is_applied_while_a_run_works_is_renewed_as_often(store: Store) -> None:
    def work(run: Run) -> Any:
        budgets.admit(run)
        content = {"all": {"per": "month", "limit": {"hours": 1.0}}}
        apply_rules(store, "budgets", {"version": 1, "every_s": 0.2, "budgets": content})
        renewed: list[float] = []
        mine = run.live.budget
        run.live.budget._renew()
        mine._renew = lambda: renewed.append(mine._every_s) or mine._closed.set()
        mine._keep()
        assert renewed == [0.2]

    carry_out(run_in(store), work)


def test_a_run_at_an_unknown_price_is_told_of_a_budget_that_is_applied_later(store: Store) -> None:
    def work(run: Run) -> Any:
        budgets.admit(run)
        limited(store, {"amount": 10.0, "currency": "USD"})
        for _ in range(2):
            run.live.budget._renew()
        assert run.live.budget.sentences == [
            "The budget all is in USD, and a price is unknown: of an unknown machine. What this run uses there does "
            "not count."
        ]

    carry_out(run_in(store, here=Price(machine="", per_hour=None, price_date="")), work)


def test_a_run_that_is_refused_while_it_reserves_holds_nothing_afterwards(store: Store) -> None:
    budget_period = limited(store, {"amount": 20.0, "currency": "USD"})
    with pytest.raises(OverBudget):
        carry_out(run_in(store, here=DEAR), budgets.admit)
    assert budget_period.ledger(store).balance().holds == {}
