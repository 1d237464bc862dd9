"""The errors with which a budget refuses a run: it has too little left, or the run's use cannot be counted in it."""

from __future__ import annotations

from collections.abc import Iterable

from data_contracts.budgets import Balance, shown
from data_contracts.errors import OverBudget, UsageError
from data_contracts.resolved import Price
from infra.machine.machines import THIS_MACHINE
from tasks.budgets.amounts import Share, price_fault

_UNCOUNTED = (
    f"Add it to a price book, or name this machine in {THIS_MACHINE} (docs/cost.md); or give the budget in hours."
)
_REMEDY = "Raise it with `trainwright budget apply FILE`, then `trainwright resume {run}`."


def nothing_left(share: Share, balance: Balance, run_id: str) -> OverBudget:
    """The error of a run for which a budget has too little left.

    Args:
        balance: of the budget; what the run holds itself is told apart from what others hold.
    """
    limit = share.budget.limit
    own = sum(hold.amount for hold in balance.holds.values() if hold.run_id == run_id)
    others = sum(hold.amount for hold in balance.holds.values() if hold.run_id != run_id)
    parts = [f"{shown(balance.spent)} of {shown(limit.value)} {limit.unit} are spent"]
    parts += [f"{shown(own)} used or reserved by this run"] if own else []
    parts += [f"{shown(others)} used or reserved by other runs"] if others else []
    return OverBudget(
        f"The budget {share.name} ({share.budget.runs}, {share.period}) has too little left for this run: "
        f"{_joined(parts)}.",
        remedy=_REMEDY.format(run=run_id),
        details={
            "budget": share.name,
            "period": share.period,
            "spent": balance.spent,
            "reserved": balance.held,
            "limit": limit.value,
            "unit": limit.unit,
        },
    )


def refuse_uncounted(share: Share, prices: Iterable[Price]) -> None:
    """UsageError if what a run uses at these prices cannot be counted in a budget."""
    if fault := price_fault(share, prices):
        raise UsageError(fault, remedy=_UNCOUNTED)


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
