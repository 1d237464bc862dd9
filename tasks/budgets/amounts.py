"""How much of a budget an execution used, in which period, and how fast nodes use it up: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from data_contracts import times
from data_contracts.errors import CorruptError
from data_contracts.executions import ExecutionUsage
from data_contracts.resolved import Price
from data_contracts.rules import Budget, Budgets, Limit
from infra.budgets import Ledger
from infra.store import Store
from tasks.costs.charges import Charge
from tasks.costs.sums import charged

# Before and after all moments that a record may have.
ALWAYS = (-6e10, 2e11)
HOUR_S = 3600.0
# An execution of more months is a damaged record, and each month of it would get a ledger.
MOST_MONTHS = 120


@dataclass(frozen=True)
class BudgetPeriod:
    """A budget in one of its periods."""

    name: str
    budget: Budget
    period: str

    @property
    def bounds(self) -> tuple[float, float]:
        """Start and end of the period, in seconds since the epoch."""
        return ALWAYS if self.budget.per == "run" else month_bounds(self.period)

    def ledger(self, store: Store) -> Ledger:
        """Its ledger in a store."""
        return Ledger(store, self.name, self.budget.scope, self.period, self.budget.limit.unit)

    def used(self, execution: ExecutionUsage) -> float:
        """How much an execution used of it."""
        return used(self.budget.limit, execution, self.bounds)


def month_of(moment: float) -> str:
    """The calendar month (UTC) of a time in seconds since the epoch, such as `2026-11`."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m}"


def month_bounds(month: str) -> tuple[float, float]:
    """Its start, and the start of the next month, in seconds since the epoch."""
    start, end = times.month_of(datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC))
    return start.timestamp(), end.timestamp()


def months(began: float, ended: float) -> list[str]:
    """Every month of a span of time, in order; of an empty one the month of its start.

    CorruptError for one that begins before 1970, or has more than MOST_MONTHS.
    """
    if began < 0:
        raise CorruptError("A record of use begins before 1970.")
    found = [month_of(began)]
    while (following := month_bounds(found[-1])[1]) < ended:
        if len(found) == MOST_MONTHS:
            raise CorruptError(f"A record of use spans more than {MOST_MONTHS} months, from {found[0]}.")
        found.append(month_of(following))
    return found


def span_of(execution: ExecutionUsage) -> tuple[float, float]:
    """From the first to the last that an execution used: nodes may outlive the process that launched them."""
    nodes = [node for gang in execution.gangs for node in gang.nodes]
    ended = execution.began if execution.ended is None else execution.ended
    first = min([execution.began, *(node.started for node in nodes)])
    return first, max([ended, *(node.released for node in nodes)])


def budget_periods(
    budgets: Budgets, pipeline: str, tags: Mapping[str, str], run_id: str, span: tuple[float, float]
) -> Iterator[BudgetPeriod]:
    """The budgets of which a run uses something in a span of time, in each period that the span touches."""
    for name, budget in budgets.budgets.items():
        if budget.is_for(pipeline, tags):
            periods = [run_id] if budget.per == "run" else months(*span)
            yield from (BudgetPeriod(name, budget, period) for period in periods)


def used(limit: Limit, execution: ExecutionUsage, bounds: tuple[float, float] = ALWAYS) -> float:
    """What an execution used between two times, in the limit's unit: the sum of its charges.

    Charges that cannot be counted, see `uncounted_s`, count as nothing: `price_fault` refuses them beforehand.
    """
    return sum(_counted(limit, charge) or 0.0 for _, charge in charged([execution], *bounds))


def uncounted_s(limit: Limit, execution: ExecutionUsage, bounds: tuple[float, float] = ALWAYS) -> float:
    """Node-seconds whose part in a limit is unknown: the price is, or is in another currency, or the GPUs are."""
    return sum(charge.node_seconds for _, charge in charged([execution], *bounds) if _counted(limit, charge) is None)


def _counted(limit: Limit, charge: Charge) -> float | None:
    """What a charge uses of a limit, in its unit; None if that is unknown."""
    if limit.currency is not None:
        return charge.amount if charge.price.currency == limit.currency else None
    seconds = charge.node_seconds if limit.hours is not None else charge.gpu_seconds
    return None if seconds is None else seconds / HOUR_S


def per_second(limit: Limit, price: Price) -> float:
    """How much of a limit a node with this price uses in a second."""
    if limit.currency is not None:
        return (price.per_hour or 0.0) / HOUR_S
    return (1.0 if limit.hours is not None else price.devices) / HOUR_S


def price_fault(budget_period: BudgetPeriod, prices: Iterable[Price]) -> str:
    """Why a budget cannot be counted at these prices, as a sentence; "" if it can."""
    currency = budget_period.budget.limit.currency
    if budget_period.budget.limit.gpu_hours is not None:
        for price in prices:
            if not price.knows_devices:  # they would count as none
                return f"The budget {budget_period.name} is in GPU-hours, and nobody knows the GPUs of {price.place}."
    if currency is None:
        return ""
    for price in prices:
        if price.per_hour is None:
            return f"The budget {budget_period.name} is in {currency}, and a price is unknown: of {price.place}."
        if price.currency != currency:
            theirs = f"the price of {price.place} is in {price.currency}"
            return f"The budget {budget_period.name} is in {currency}, and {theirs}."
    return ""
