"""The errors with which a budget refuses a run: it has too little left, or the run's use cannot be counted in it."""

from __future__ import annotations

from collections.abc import Iterable

from data_contracts.errors import OverBudget, UsageError
from data_contracts.resolved import Price
from data_contracts.rules import Balance, shown
from infra.prices import THIS_MACHINE
from tasks.budgets.amounts import BudgetPeriod, price_fault

_UNCOUNTED = (
    f"Add it to a price book, or name this machine in {THIS_MACHINE} (docs/cost.md); or give the budget in hours."
)
_GAME_DAY_REMEDY = "Give it less time with --at-most, or raise the budget with `trainwright budget apply FILE`."
_REMEDY = "Raise it with `trainwright budget apply FILE`, then `trainwright resume {run}`."


def nothing_left(budget_period: BudgetPeriod, balance: Balance, run_id: str) -> OverBudget:
    """The error of a run for which a budget has too little left.

    Args:
        balance: of the budget; what the run holds itself is told apart from what others hold.
    """
    own = sum(hold.amount for hold in balance.holds.values() if hold.run_id == run_id)
    others = sum(hold.amount for hold in balance.holds.values() if hold.run_id != run_id)
    parts = [f"{shown(own)} used or reserved by this run"] if own else []
    return _too_little(budget_period, balance, "this run", parts, others, _REMEDY.format(run=run_id))


def too_little_for_game_day(budget_period: BudgetPeriod, balance: Balance, most: float) -> OverBudget:
    """The error of a game day for which a budget has too little left.

    Args:
        most: what the game day may use of the budget, in its unit.
    """
    limit = budget_period.budget.limit
    wanted = f"this game day, which may use {shown(most)} {limit.unit}"
    return _too_little(budget_period, balance, wanted, [], balance.reserved, _GAME_DAY_REMEDY)


def _too_little(
    budget_period: BudgetPeriod, balance: Balance, wanted: str, own: list[str], others: float, remedy: str
) -> OverBudget:
    limit = budget_period.budget.limit
    parts = [f"{shown(balance.spent)} of {shown(limit.value)} {limit.unit} are spent", *own]
    parts += [f"{shown(others)} used or reserved by other runs"] if others else []
    return OverBudget(
        f"The budget {budget_period.name} ({budget_period.budget.runs}, {budget_period.period}) has too little left "
        f"for {wanted}: {_joined(parts)}.",
        remedy=remedy,
        details={
            "budget": budget_period.name,
            "period": budget_period.period,
            "spent": balance.spent,
            "reserved": balance.reserved,
            "limit": limit.value,
            "unit": limit.unit,
        },
    )


def refuse_uncounted(budget_period: BudgetPeriod, prices: Iterable[Price]) -> None:
    """UsageError if what a run uses at these prices cannot be counted in a budget."""
    if fault := price_fault(budget_period, prices):
        raise UsageError(fault, remedy=_UNCOUNTED)


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
