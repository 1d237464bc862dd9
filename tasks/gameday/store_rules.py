"""Whether the store of a pipeline allows a game day: by its policy on tags, and by what its budgets have left."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from data_contracts.executions import HERE
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.rules import Balance
from infra.budgets import current_budgets, refuse_by_policy
from infra.processes.this_process import now_s
from infra.store import Store, is_store, open_store
from tasks.budgets import (
    BudgetPeriod,
    budget_periods,
    per_second,
    refuse_uncounted,
    settle_others,
    too_little_for_game_day,
)
from tasks.run.resolve import run_prices

# The name by which budgets for each run know a game day, which has no run in the store.
GAME_DAY = "game-day"


def refuse_by_store(
    uri: str, pointers: str | None, name: str, game_day: PipelineSpec, path: Path, at_most_s: float
) -> None:
    """Refuse a game day that the pipeline's store forbids; a store that is not there yet forbids nothing.

    Args:
        uri, pointers: of the store, as `open_store` takes them.
        name: of the pipeline; game_day: its spec in the file `path`, with the changes that a game day makes.
        at_most_s: for how long the game day may use its nodes.

    Raises:
        SpecError: the policy demands another tag.
        OverBudget: a budget that stops or refuses runs has too little left.
        UsageError: the price of its nodes cannot be counted in a budget, or the store cannot be opened.
    """
    options = game_day.store.storage_options
    if not is_store(uri, options):
        return
    store = open_store(uri, options, create=False, pointers=pointers)
    refuse_by_policy(game_day, path, store)
    _refuse_over_budget(name, game_day, store, at_most_s)


def _refuse_over_budget(name: str, game_day: PipelineSpec, store: Store, at_most_s: float) -> None:
    """Refuse a game day of the pipeline `name` for which a budget has too little left; raises as `refuse_by_store`.

    A run that reaches a budget with `stop` ends. A game day is not counted while it works, so all that it may use must
    be left before it begins.
    """
    budgets = current_budgets(store)
    if budgets is None:
        return
    began, train = now_s(), game_day.train
    priced = run_prices(game_day, f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d}")
    nodes, here = priced["price"], priced["prices"][HERE]
    for budget_period in budget_periods(budgets, name, game_day.tags, GAME_DAY, (began, began + at_most_s)):
        refuse_uncounted(budget_period, (nodes, here))
        limit = budget_period.budget.limit
        rate = train.nodes * per_second(limit, nodes) + (per_second(limit, here) if train.pool else 0.0)
        if budget_period.budget.at_limit == "warn" or not rate:
            continue
        most = at_most_s * rate
        needed = most if budget_period.budget.at_limit == "stop" else 0.0
        if _left(budget_period, balance := budget_period.ledger(store).balance(), needed):
            continue
        if settle_others(store, budget_period, budget_period.ledger(store)):
            balance = budget_period.ledger(store).balance()
        if not _left(budget_period, balance, needed):
            raise too_little_for_game_day(budget_period, balance, most)


def _left(budget_period: BudgetPeriod, balance: Balance, needed: float) -> bool:
    """Whether a budget has something left, and at least `needed`."""
    left = budget_period.budget.limit.value - balance.spent - balance.reserved
    return left > 0 and left >= needed
