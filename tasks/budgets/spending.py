"""What a run uses of its budgets while it is carried out: reserved ahead, renewed in a thread, settled at the end.

The run reserves `every_s` seconds of all its nodes at their prices. If it cannot reserve further, it ends while half of
that is still reserved, so that its last checkpoint is paid from the reservation.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_contracts.errors import StorageUnavailable, TrainwrightError
from data_contracts.executions import HERE, ExecutionUsage, GangUsage
from data_contracts.resolved import Price
from data_contracts.rules import EVERY_S, Balance, Budgets, BudgetWarning
from data_contracts.run_report import RunReport
from infra.audit import now
from infra.budgets import Executed, current_budgets
from infra.gang.recovery import UNLIMITED, Allowance
from infra.processes.processes import uninterrupted
from infra.processes.this_process import now_s
from tasks.budgets.amounts import BudgetPeriod, budget_periods, month_of, per_second, price_fault
from tasks.budgets.refusals import nothing_left, refuse_uncounted
from tasks.budgets.settling import settle_others, settle_run
from tasks.run.run import Run

log = logging.getLogger("trainwright")


def within_budgets(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap the function that carries a metered run out: at its end, what it used of its budgets is settled."""

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        spending = Spending(run)
        run.budgets.append(spending)
        try:
            return work(run)
        finally:
            run.budgets.remove(spending)
            with uninterrupted():
                spending.close()

    return carry_out


def admit(run: Run) -> None:
    """Begin to reserve for a run, before anything of it is booked.

    Raises:
        OverBudget: a budget of the run has nothing left for it.
        UsageError: a budget cannot be counted at the prices of the run.
        CorruptError: a record of a budget is damaged.
    """
    for spending in run.budgets:
        spending.admit()


def refuse_over(run: Run) -> None:
    """OverBudget if a budget of the run was used up meanwhile."""
    for spending in run.budgets:
        if (error := spending.over()) is not None:
            raise error


def allowance(run: Run, section: str, *, local: bool) -> Allowance:
    """What a gang that works for a section may use; `local`: its nodes are processes on this machine."""
    return _SectionAllowance(run.budgets[0], section, local) if run.budgets else UNLIMITED


@dataclass(frozen=True)
class _SectionAllowance:
    """The allowance of one section's gang."""

    spending: Spending
    section: str
    local: bool

    def admit(self, nodes: int) -> None:
        self.spending.begin(self.section, nodes, local=self.local)

    def launched(self, usage: Callable[[], GangUsage]) -> None:
        self.spending.live = lambda: usage().model_copy(update={"stage": self.section, "local": self.local})

    def released(self) -> None:
        self.spending.released()

    def over(self) -> TrainwrightError | None:
        return self.spending.over()


class Spending:
    """What one execution of a run uses of its budgets.

    Attributes:
        live: the usage so far of the gang that works now; None if there is none.
        sentences: of the warnings that this execution was the first to give.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.live: Callable[[], GangUsage] | None = None
        self.sentences: list[str] = []
        # The section and the number of the nodes that use something now, beside this machine.
        self._nodes: tuple[str, int, bool] | None = None
        self._over: TrainwrightError | None = None
        self._reserving = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._every_s = EVERY_S
        self._reserved = False
        self._warned: set[tuple[str, str, float, float]] = set()

    def admit(self) -> None:
        """See the function `admit`."""
        run = self._run
        if not run.recorded or not run.meters:
            return
        budgets = current_budgets(run.store)
        mine = self._budget_periods(budgets, self._execution())
        for budget_period in mine:
            refuse_uncounted(budget_period, self._prices())
        if budgets is not None:
            settle_run(run.store, run.run_id, budgets)
        for budget_period in mine:
            self._refuse_empty(budget_period)
        self._reserved = True
        self._renew(budgets)
        if self._over is not None:
            raise self._over
        # The thread also finds budgets that are applied later.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._keep,), name="budgets", daemon=True)
        self._thread.start()

    def begin(self, section: str, nodes: int, *, local: bool) -> None:
        """Reserve for nodes that are about to be launched; OverBudget if they cannot be paid."""
        if self._thread is None:
            return
        self._nodes = (section, nodes, local)
        self._renew()
        if self._over is not None:
            raise self._over

    def released(self) -> None:
        """Note that no nodes work now."""
        self.live = self._nodes = None

    def over(self) -> TrainwrightError | None:
        """Why the run must end now; None if it may continue."""
        return self._over

    def close(self) -> None:
        """Stop renewing, and replace the held amount by the used amount."""
        if not self._reserved:
            return
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if (budgets := current_budgets(self._run.store)) is not None:
                settle_run(self._run.store, self._run.run_id, budgets)
        except TrainwrightError as error:
            log.warning("what the run used of its budgets is settled later: %s", error.message)

    def _keep(self) -> None:
        while not self._closed.wait(self._every_s / 4) and self._over is None:
            try:
                self._renew()
            except StorageUnavailable as error:  # nobody else can reserve meanwhile, either
                log.debug("budgets are not renewed: %s", error.message)
            except TrainwrightError as error:
                self._over = error
            except Exception as error:
                self._over = TrainwrightError(f"Internal error: budgets: {type(error).__name__}: {error}.")

    def _renew(self, budgets: Budgets | None = None) -> None:
        """Reserve ahead in every budget; `_over` says why the run must end."""
        warnings: list[BudgetWarning] = []
        with self._reserving:
            budgets = budgets or current_budgets(self._run.store)
            self._every_s = EVERY_S if budgets is None else budgets.every_s
            execution = self._execution()
            for budget_period in self._budget_periods(budgets, execution):
                assert budgets is not None
                self._tell_uncounted(budget_period)
                warnings += self._reserve(budget_period, execution, budgets.every_s)
        for warning in warnings:
            self._tell(warning)

    def _reserve(self, budget_period: BudgetPeriod, execution: ExecutionUsage, every_s: float) -> list[BudgetWarning]:
        """Reserve in one budget; returns the warnings that are due."""
        run, limit, ledger = self._run, budget_period.budget.limit, budget_period.ledger(self._run.store)
        who, stops = Executed(run.run_id, execution.execution), budget_period.budget.at_limit == "stop"
        is_now = budget_period.budget.per == "run" or budget_period.period == month_of(now_s())
        ahead = self._per_second(budget_period) * every_s if is_now else 0.0
        used, cap = budget_period.used(execution), limit.value if stops else None
        held, balance = ledger.reserve(who, used, ahead, cap)
        if held < ahead and settle_others(run.store, budget_period, ledger, who):
            held, balance = ledger.reserve(who, used, ahead, cap)
        due = self._due(budget_period, balance)
        # What a dead execution holds may be more than it used.
        if due and settle_others(run.store, budget_period, ledger, who):
            balance = ledger.balance()
            due = self._due(budget_period, balance)
        if stops and ahead and held < ahead / 2:
            self._over = self._over or nothing_left(budget_period, balance, run.run_id)
            due = self._due(budget_period, balance, is_over=True)
        about = {"budget": budget_period.name, "period": budget_period.period, "limit": limit.value, "unit": limit.unit}
        used = balance.spent + balance.reserved
        new = [BudgetWarning(share=one, used=used, run_id=run.run_id, at=now(), **about) for one in due]
        self._warned |= {(one.budget, one.period, one.share, one.limit) for one in new}
        return [one for one in new if ledger.warn_once(one)]

    def _due(self, budget_period: BudgetPeriod, balance: Balance, *, is_over: bool = False) -> list[float]:
        """The shares of a budget that are reached, and of which this execution has not warned.

        Args:
            is_over: whether the limit counts as reached, because nothing is left to reserve.
        """
        limit, used = budget_period.budget.limit.value, balance.spent + balance.reserved
        reached = [one for one in budget_period.budget.warn_at if one < 1 and used >= one * limit]
        reached += [1.0] if is_over or used >= limit else []
        return [one for one in reached if (budget_period.name, budget_period.period, one, limit) not in self._warned]

    def _refuse_empty(self, budget_period: BudgetPeriod) -> None:
        """OverBudget if a budget that refuses runs is used up, and this run could use anything of it."""
        if budget_period.budget.at_limit == "warn" or not any(
            per_second(budget_period.budget.limit, one) for one in self._prices()
        ):
            return
        ledger = budget_period.ledger(self._run.store)
        for _ in range(2):
            balance = ledger.balance()
            if balance.spent + balance.reserved < budget_period.budget.limit.value:
                return
            settle_others(self._run.store, budget_period, ledger)
        raise nothing_left(budget_period, balance, self._run.run_id)

    def _tell_uncounted(self, budget_period: BudgetPeriod) -> None:
        """Warn, once, of a budget that was applied after the run began, and in which it cannot be counted."""
        fault = price_fault(budget_period, self._prices())
        sentence = f"{fault} What this run uses there does not count."
        if fault and sentence not in self.sentences:
            log.warning("%s", sentence)
            self.sentences.append(sentence)

    def _tell(self, warning: BudgetWarning) -> None:
        log.warning("%s", warning.sentence)
        self.sentences.append(warning.sentence)
        # Prefect is imported only where a run has a warning.
        from infra.orchestrator.events.budget_events import announce_budget

        announce_budget(warning, self._run.spec.name)

    def _execution(self) -> ExecutionUsage:
        """What this process has used so far, with the gang that works now."""
        so_far: ExecutionUsage = self._run.meters[-1].so_far
        live = self.live
        return so_far if live is None else so_far.model_copy(update={"gangs": [*so_far.gangs, live()]})

    def _budget_periods(self, budgets: Budgets | None, execution: ExecutionUsage) -> list[BudgetPeriod]:
        if budgets is None:
            return []
        run, span = self._run, (execution.began, now_s())
        return list(budget_periods(budgets, run.spec.name, run.spec.tags, run.run_id, span))

    def _per_second(self, budget_period: BudgetPeriod) -> float:
        """How much of a budget the run uses in a second now."""
        limit, here = budget_period.budget.limit, self._price(HERE)
        if self._nodes is None:
            return per_second(limit, here)
        section, nodes, local = self._nodes
        # This machine is not charged beside nodes that are its own processes.
        return nodes * per_second(limit, self._price(section)) + (0.0 if local else per_second(limit, here))

    def _price(self, section: str) -> Price:
        so_far: ExecutionUsage = self._run.meters[-1].so_far
        return so_far.price_of(section)

    def _prices(self) -> Sequence[Price]:
        """The prices of all places where the run may work."""
        return [self._price(one) for one in (HERE, "train", "verify", "evaluate")]
