"""Settles executions: what they used, by their records, takes the place of what they held.

A process that needs part of a budget settles the ended executions of others, so the hold of a killed process is neither
lost nor charged in addition to its use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, UsageError
from data_contracts.executions import ExecutionUsage
from data_contracts.rules import Budgets
from infra.budgets import Executed, Ledger
from infra.processes.processes import has_ended
from infra.store import Store, layout
from infra.store.lease import held_lease, process_of
from infra.store.store import write_several
from infra.usage import executions_of
from tasks.budgets.amounts import BudgetPeriod, budget_periods, span_of, uncounted_s

log = logging.getLogger("trainwright")


def is_carried_out(store: Store, run_id: str) -> bool:
    """Whether a process holds the run's lease, as far as this machine can tell."""
    held = held_lease(store, layout.lease(layout.run(run_id)))
    if held is None:
        return False
    process = process_of(held.value["holder"])
    return process is None or not has_ended(process)


def settle_run(store: Store, run_id: str, budgets: Budgets, *, ended: bool = False) -> list[ExecutionUsage]:
    """Settle the executions of a run that are over, in every budget that they used; returns them.

    Args:
        ended: whether executions without an end are over, too, because no process carries the run out.
    """
    over = _over(store, run_id, ended=ended)
    for budget_period, who, amount in _amounts(over, budgets):
        budget_period.ledger(store).settle({who: amount})
    return over


def settle_others(store: Store, budget_period: BudgetPeriod, ledger: Ledger, mine: Executed | None = None) -> bool:
    """Settle the holders of a budget that no process carries out any more; returns whether there were any."""
    settled = False
    for hold in ledger.balance().holds.values():
        who = Executed(hold.run_id, hold.execution)
        try:
            if who == mine or is_carried_out(store, who.run_id):
                continue
            known = next((one for one in _over(store, who.run_id, ended=True) if one.execution == who.execution), None)
        except (CorruptError, UsageError) as error:  # the hold of another run with damaged records stays
            log.warning("budget %s: %s is not settled: %s", budget_period.name, who.run_id, error.message)
            continue
        # Without a record of its use, which gc deletes with the run, what it held is all that is known.
        ledger.settle({who: hold.amount if known is None else budget_period.used(known)})
        settled = True
    return settled


def settle_all(store: Store, budgets: Budgets) -> list[str]:
    """Settle every execution that is over in every budget that it used, also those that began before the budget.

    Returns:
        A sentence for each budget and month in which runs used something that cannot be counted.
    """
    unknown: dict[tuple[str, str, str], dict[str, float]] = {}
    used: dict[tuple[str, str], tuple[Ledger, dict[Executed, float]]] = {}
    for run_id in filter(is_name, store.list(layout.runs())):
        try:
            over = _over(store, run_id, ended=not is_carried_out(store, run_id))
            for budget_period, who, amount in list(_amounts(over, budgets)):
                place = budget_period.name, budget_period.period
                used.setdefault(place, (budget_period.ledger(store), {}))[1][who] = amount
            for budget_period, seconds in _uncounted(over, budgets):
                runs = unknown.setdefault(
                    (budget_period.name, budget_period.period, budget_period.budget.limit.unit), {}
                )
                runs[run_id] = runs.get(run_id, 0.0) + seconds
        except (CorruptError, UsageError) as error:
            log.warning("%s is not counted: %s", run_id, error.message)
    write_several(_settle, list(used.values()))
    return [
        f"The budget {name} ({period}) counts {len(runs)} earlier run{'s' * (len(runs) > 1)} only in part: "
        f"what {sum(runs.values()) / 3600:.2f} of their node-hours come to in {unit} is unknown."
        for (name, period, unit), runs in sorted(unknown.items())
    ]


def _amounts(executions: Iterable[ExecutionUsage], budgets: Budgets) -> Iterator[tuple[BudgetPeriod, Executed, float]]:
    """The amounts that executions used of each budget."""
    for one in executions:
        for budget_period in budget_periods(budgets, one.pipeline, one.tags, one.run_id, span_of(one)):
            yield budget_period, Executed(one.run_id, one.execution), budget_period.used(one)


def _settle(item: tuple[Ledger, Mapping[Executed, float]]) -> None:
    """Settle executions in a ledger, all at once; one by one if a record of one of them is damaged."""
    ledger, used = item
    try:
        ledger.settle(used)
    except CorruptError:
        for who, amount in used.items():
            try:
                ledger.settle({who: amount})
            except (CorruptError, UsageError) as error:
                log.warning("%s is not counted: %s", who.run_id, error.message)


def _uncounted(executions: Iterable[ExecutionUsage], budgets: Budgets) -> Iterator[tuple[BudgetPeriod, float]]:
    """The budgets by month in which executions used something that cannot be counted, with its node-seconds."""
    for one in executions:
        for budget_period in budget_periods(budgets, one.pipeline, one.tags, one.run_id, span_of(one)):
            seconds = (
                uncounted_s(budget_period.budget.limit, one, budget_period.bounds)
                if budget_period.budget.per == "month"
                else 0.0
            )
            if seconds:
                yield budget_period, seconds


def _over(store: Store, run_id: str, *, ended: bool) -> list[ExecutionUsage]:
    """A run's executions that are over: with a record of their end, or all."""
    found = executions_of(store, run_id)[0]
    return [one for one in found if ended or store.exists(layout.usage(run_id, one.execution, "ended"))]
