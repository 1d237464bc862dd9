"""The errors with which a budget refuses a run: it has too little left, or the run's use cannot be counted in it."""

from __future__ import annotations

from collections.abc import Iterable

from data_contracts.budgets import Balance, shown
from data_contracts.errors import OverBudget, UsageError
from data_contracts.resolved import Price
from infra.machine.machines import THIS_MACHINE
from tasks.budgets.amounts import BudgetPeriod, price_fault

_UNCOUNTED = (
    f"Add it to a price book, or name this machine in {THIS_MACHINE} (docs/cost.md); or give the budget in hours."
)
_REMEDY = "Raise it with `trainwright budget apply FILE`, then `trainwright resume {run}`."


def nothing_left(budget_period: BudgetPeriod, balance: Balance, run_id: str) -> OverBudget:
    """The error of a run for which a budget has too little left.

    Args:
        balance: of the budget; what the run holds itself is told apart from what others hold.
    """
    limit = budget_period.budget.limit
    own = sum(hold.amount for hold in balance.holds.values() if hold.run_id == run_id)
    others = sum(hold.amount for hold in balance.holds.values() if hold.run_id != run_id)
    parts = [f"{shown(balance.spent)} of {shown(limit.value)} {limit.unit} are spent"]
    parts += [f"{shown(own)} used or reserved by this run"] if own else []
    parts += [f"{shown(others)} used or reserved by other runs"] if others else []
    return OverBudget(
        f"The budget {budget_period.name} ({budget_period.budget.runs}, {budget_period.period}) has too little left "
        f"for this run: {_joined(parts)}.",
        remedy=_REMEDY.format(run=run_id),
        details={
            "budget": budget_period.name,
            "period": budget_period.period,
            "spent": balance.spent,
            "reserved": balance.held,
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
