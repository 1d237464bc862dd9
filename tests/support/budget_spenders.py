"""Runs that use one budget at the same time, as processes that are killed at random and begin again.

`python -m tests.support.budget_spenders STORE KILLS SEED` applies a budget, lets 8 runs use it up while they are killed
KILLS times, and prints what was charged and what the ledger says. The processes and their races are real; the seconds
that they use are counted, not waited for.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

from data_contracts.errors import OverBudget
from data_contracts.resolved import Price
from data_contracts.rules import Budgets
from infra.budgets import apply_rules
from infra.store import Lease, Store, layout, open_store
from infra.store.lease import with_process
from infra.usage import executions_of
from tasks import budgets
from tasks.budgets import BudgetPeriod, settle_all
from tasks.run import meter
from tasks.run.run import Run
from tests.support.runs import make_run

RUNS, EVERY_S, CHECKPOINT_S, LIMIT_H = 8, 60.0, 25.0, 0.75
# 2026-03-02, so that all that is used is of one month.
MONTH, START = "2026-03", 1_772_409_600.0
BUDGETS = {
    "version": 1,
    "every_s": EVERY_S,
    "budgets": {"all": {"per": "month", "limit": {"hours": LIMIT_H}, "warn_at": [0.5]}},
}
FREE = Price(machine="m", per_hour=0.0, price_date="2026-01-01")


def use(store: Store, run_id: str, began: float) -> bool:
    """Carry a run out until its budget is used up; returns whether it was refused at once. Time is counted."""
    clock = SimpleNamespace(at=began)
    meter.now_s = budgets.now_s = lambda: clock.at  # type: ignore[assignment]
    budgets.announce_budget = lambda *_: None
    run = make_run(store, run_id=run_id, price=FREE, prices={"here": FREE})

    def work(run: Run) -> Any:
        mine = run.live.budget
        budgets.admit(run)
        while mine.over() is None:
            clock.at += EVERY_S / 4
            run.live.meter.note()  # the beat, up to which a killed process is charged
            mine._renew()
        clock.at += CHECKPOINT_S
        raise mine.over()

    lease = Lease.take(store, layout.lease(layout.run(run_id)), with_process(run_id))
    try:
        budgets.within_budgets(meter.metered(work))(run)
    except OverBudget:
        return clock.at == began
    finally:
        lease.release()
    raise AssertionError("the budget is never used up")


def start(store_uri: str, number: int, began: float, killing: tuple[int, int]) -> int:
    """A process that carries run `number` out, and ends once the other end of the pipe `killing` is closed."""
    if pid := os.fork():
        return pid
    try:
        os.close(killing[1])
        use(open_store(store_uri), f"run-{number}", began)
        os.read(killing[0], 1)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def spend(store_uri: str, kills: int, seed: int) -> dict[str, Any]:
    """Let the runs use the budget up, some of them killed in between; returns what was charged and counted."""
    store, draw, killing = open_store(store_uri), random.Random(seed), os.pipe()
    apply_rules(store, "budgets", BUDGETS)
    running = {start(store_uri, number, START, killing): number for number in range(RUNS)}
    killed = failed = 0
    while running:
        time.sleep(draw.uniform(0.001, 0.04))
        victim = draw.choice(sorted(running))
        if killed < kills:
            os.kill(victim, signal.SIGKILL)
        pid, status = os.waitpid(victim, 0 if killed < kills else os.WNOHANG)
        if not pid:
            continue
        number = running.pop(pid)
        if os.WIFSIGNALED(status):
            killed += 1
            # Each execution begins after all that the ones before have counted.
            running[start(store_uri, number, START + 20_000 * killed, killing)] = number
            if killed == kills:
                os.close(killing[1])
        failed += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
    budgets = Budgets.model_validate(BUDGETS)
    settle_all(store, budgets)
    budget_period = BudgetPeriod("all", budgets.budgets["all"], MONTH)
    found = [one for n in range(RUNS) for one in executions_of(store, f"run-{n}")[0]]
    balance = budget_period.ledger(store).balance()
    return {
        "charged": sum(budget_period.used(one) for one in found),
        "entries": sum(one.amount for one in budget_period.ledger(store).entries()),
        "spent": balance.spent,
        "held": balance.reserved,
        "executions": len(found),
        "killed": killed,
        "failed": failed,
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(json.dumps(spend(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
