"""Balances of budgets: what is spent, reserved and left of each, in a month, for a spec, and before new limits hold."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from data_contracts.canonical import is_name
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.rules import Budget, Budgets, shown
from infra.budgets import current_budgets
from infra.prices import prices
from infra.store import Store, layout
from tasks.budgets.amounts import BudgetPeriod, month_of
from tasks.budgets.settling import settle_all, settle_others


@dataclass(frozen=True)
class BudgetBalance:
    """A budget in one period; `period` is a month, a run's id, or `each run`."""

    name: str
    budget: Budget
    period: str
    spent: float
    reserved: float

    @property
    def left(self) -> float:
        """What may still be reserved."""
        return max(self.budget.limit.value - self.spent - self.reserved, 0.0)

    @property
    def sentence(self) -> str:
        """One line for a person."""
        limit = self.budget.limit
        return f"{self.name}: {shown(self.left)} of {shown(limit.value)} {limit.unit} left ({self.period})"

    def to_json(self) -> dict[str, Any]:
        """The balance for a program."""
        return {
            "budget": self.name,
            "runs": self.budget.runs,
            "per": self.budget.per,
            "period": self.period,
            "spent": self.spent,
            "reserved": self.reserved,
            "left": self.left,
            "limit": self.budget.limit.value,
            "unit": self.budget.limit.unit,
            "at_limit": self.budget.at_limit,
        }


def balances_of_spec(store: Store, spec: PipelineSpec) -> list[BudgetBalance]:
    """The budgets that a run of a spec would use now, and what is left of each; nothing is written."""
    budgets = current_budgets(store)
    found = {} if budgets is None else budgets.budgets
    return [
        _balance(store, BudgetPeriod(name, budget, month_of(time.time())))
        if budget.per == "month"
        else BudgetBalance(name, budget, "each run", 0.0, 0.0)
        for name, budget in found.items()
        if budget.is_for(spec.name, spec.tags)
    ]


def balances_of_month(
    store: Store, month: str, most: int | None = None, *, settle: bool = True
) -> tuple[list[BudgetBalance], dict[str, int]]:
    """Every budget in a month; of a budget per run, the runs that were started in it.

    Args:
        most: how many runs of a budget, the newest; None: all.
        settle: count what ended executions used in place of what they held; otherwise nothing is written.

    Returns:
        The balances, and how many more runs there are, by the budget's name.
    """
    budgets = current_budgets(store)
    found: list[BudgetBalance] = []
    more: dict[str, int] = {}
    for name, budget in ({} if budgets is None else budgets.budgets).items():
        periods = [month] if budget.per == "month" else sorted(_runs_of(store, name, budget, month), reverse=True)
        if most is not None and len(periods) > most:
            more[name] = len(periods) - most
            periods = periods[:most]
        for period in periods:
            budget_period = BudgetPeriod(name, budget, period)
            if settle:
                settle_others(store, budget_period, budget_period.ledger(store))
            found.append(_balance(store, budget_period))
        if not periods:
            found.append(BudgetBalance(name, budget, "each run", 0.0, 0.0))
    return found, more


def settle_and_check(store: Store, budgets: Budgets) -> list[str]:
    """Count what was used so far of new budgets; UsageError if one could not hold.

    A limit below what is spent in this month is refused, and a currency in which no price is.

    Returns:
        Sentences about what earlier runs used and nobody can count.
    """
    currencies = {price.currency for machine in prices().machines.values() for price in machine.prices}
    for name, budget in budgets.budgets.items():
        wanted = budget.limit.currency
        if wanted is not None and wanted not in currencies:
            raise UsageError(
                f"budgets.{name}.limit.currency: no price of the price book is in {wanted}; it has "
                f"{', '.join(sorted(currencies)) or 'no price'}.",
                remedy="Add prices in this currency (docs/cost.md), or give the budget in hours.",
            )
    unknown = settle_all(store, budgets)
    for name, budget in budgets.budgets.items():
        if budget.per == "month":
            now = _balance(store, BudgetPeriod(name, budget, month_of(time.time())))
            if now.spent > budget.limit.value:
                limit = budget.limit
                raise UsageError(
                    f"budgets.{name}.limit: {shown(limit.value)} {limit.unit} is below the {shown(now.spent)} "
                    f"{limit.unit} that are spent in {now.period} already.",
                    remedy="Give a limit above it; `trainwright budget` shows what is spent.",
                )
    return unknown


def _runs_of(store: Store, name: str, budget: Budget, month: str) -> Iterable[str]:
    """The runs that were started in a month, by their ids, and used a budget."""
    of_month = month.replace("-", "")
    names = store.list(layout.periods(name, budget.scope))
    return (one for one in names if is_name(one) and one.startswith(of_month))


def _balance(store: Store, budget_period: BudgetPeriod) -> BudgetBalance:
    balance = budget_period.ledger(store).balance()
    return BudgetBalance(
        budget_period.name, budget_period.budget, budget_period.period, balance.spent, balance.reserved
    )
