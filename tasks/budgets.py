"""The use of budgets by runs: counted by the same charges as `trainwright cost`, and reserved beforehand.

A run reserves `every_s` seconds of all its nodes at their prices, and renews that in a thread. If it cannot reserve
further, it ends while half of that is still reserved, so that its last checkpoint is paid from the reservation.

At its end it is settled: what it used, by its records, takes the place of what it held. A process that needs part of a
budget settles the ended executions of others, so the hold of a killed process is neither lost nor charged in addition
to its use.

Balances show what is spent, reserved and left of each budget, in a month, for a spec, and before new limits hold.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from humanize import natural_list

from data_contracts import canonical
from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, OverBudget, StorageUnavailable, TrainwrightError, UsageError
from data_contracts.executions import HERE, ExecutionUsage, GangUsage
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.resolved import Price
from data_contracts.rules import EVERY_S, Balance, Budget, Budgets, BudgetWarning, Limit, shown
from data_contracts.run_report import RunReport
from data_contracts.searches import TAG, SearchRecord
from infra.audit import now
from infra.budgets import Executed, Ledger, current_budgets
from infra.gang.recovery import UNLIMITED, BudgetGuard
from infra.orchestrator.events import announce_budget
from infra.prices import THIS_MACHINE, prices
from infra.processes.processes import has_ended, uninterrupted
from infra.processes.this_process import now_s
from infra.store import Store, layout
from infra.store.lease import held_lease, process_of
from infra.store.store import numbers, write_several
from infra.usage import executions_of
from tasks.costs.charges import Charge
from tasks.costs.sums import charged
from tasks.run.run import Run

log = logging.getLogger("trainwright")
_REMEDY = "Raise it with `trainwright budget apply FILE`, then `trainwright resume {run}`."
# Before and after all moments that a record may have.
ALWAYS = (-6e10, 2e11)
# The only period of a budget that holds for ever.
ALL = "all"
HOUR_S = 3600.0
# An execution of more months is a damaged record, and each month of it would get a ledger.
MOST_MONTHS = 120


def within_budgets(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap the function that carries a metered run out: at its end, what it used of its budgets is settled."""

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        spending = Spending(run)
        run.live.budget = spending
        try:
            return work(run)
        finally:
            run.live.budget = None
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
    if run.live.budget is not None:
        run.live.budget.admit()


def refuse_over(run: Run) -> None:
    """OverBudget if a budget of the run was used up meanwhile."""
    if run.live.budget is not None and (error := run.live.budget.over()) is not None:
        raise error


def budgets_for(store: Store, tags: Mapping[str, str]) -> Budgets | None:
    """The budgets that hold for runs with these tags: those of the store, and of the search of which they are trials.

    Raises:
        CorruptError: a record of them is damaged.
        UsageError: a budget of the store has the name of one of the search.
    """
    budgets, name = current_budgets(store), tags.get(TAG, "")
    search = newest_record(store, name) if is_name(name) else None
    own = {} if search is None else budgets_of_search(search)
    if budgets is None:
        return Budgets(version=1, budgets=own) if own else None
    if taken := own.keys() & budgets.budgets.keys():
        raise UsageError(
            f"The search {name} needs a budget of the name {min(taken)}, and the store has one.",
            remedy="Rename the store's with `trainwright budget apply FILE`, or give the search another name.",
        )
    return budgets.model_copy(update={"budgets": {**budgets.budgets, **own}})


def newest_record(store: Store, search: str) -> SearchRecord | None:
    """How a search is carried out now; None if there is none of the name."""
    known = numbers(store, layout.search_records(search))
    return store.read_as(layout.search_record(search, max(known)), SearchRecord.from_json) if known else None


def budgets_of_search(search: SearchRecord) -> dict[str, Budget]:
    """The budgets that all trials of a search share, by name."""
    most = search.spec.budget
    limits: dict[str, Limit] = {}
    if most.amount is not None:
        limits["money"] = Limit(amount=most.amount, currency=most.currency)
    if most.hours is not None:
        limits["hours"] = Limit(hours=most.hours)
    # A long name is cut: the tag keeps the ledgers of two searches apart.
    return {
        f"search-{unit}-{search.name}"[:63]: Budget(
            where={TAG: search.name}, pipeline=search.pipeline, per="all", limit=limit
        )
        for unit, limit in limits.items()
    }


def budget_guard(run: Run, section: str, *, local: bool) -> BudgetGuard:
    """What a gang that works for a section may use; `local`: its nodes are processes on this machine."""
    return UNLIMITED if run.live.budget is None else run.live.budget.budget_guard(section, local=local)


@dataclass(frozen=True)
class _SectionGuard:
    """The budget guard of one section's gang."""

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
        if not run.recorded or run.live.meter is None:
            return
        budgets = budgets_for(run.store, run.spec.tags)
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
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._keep,), name="budgets", daemon=True
        )
        self._thread.start()

    def budget_guard(self, section: str, *, local: bool) -> BudgetGuard:
        """What a gang that works for a section may use."""
        return _SectionGuard(self, section, local)

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
            if (budgets := budgets_for(self._run.store, self._run.spec.tags)) is not None:
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
            budgets = budgets or budgets_for(self._run.store, self._run.spec.tags)
            self._every_s = EVERY_S if budgets is None else budgets.every_s
            execution = self._execution()
            for budget_period in self._budget_periods(budgets, execution):
                assert budgets is not None
                self._tell_uncounted(budget_period)
                warnings += self._reserve(budget_period, execution, budgets.every_s)
        for warning in warnings:
            log.warning("%s", warning.sentence)
            self.sentences.append(warning.sentence)
            announce_budget(warning, self._run.spec.name)

    def _reserve(self, budget_period: BudgetPeriod, execution: ExecutionUsage, every_s: float) -> list[BudgetWarning]:
        """Reserve in one budget; returns the warnings that are due."""
        run, limit, ledger = self._run, budget_period.budget.limit, budget_period.ledger(self._run.store)
        who, stops = Executed(run.run_id, execution.execution), budget_period.budget.at_limit == "stop"
        is_now = budget_period.budget.per != "month" or budget_period.period == month_of(now_s())
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

    @property
    def _so_far(self) -> ExecutionUsage:
        assert self._run.live.meter is not None
        return self._run.live.meter.so_far

    def _execution(self) -> ExecutionUsage:
        """What this process has used so far, with the gang that works now."""
        so_far, live = self._so_far, self.live
        return so_far if live is None else so_far.model_copy(update={"gangs": [*so_far.gangs, live()]})

    def _budget_periods(self, budgets: Budgets | None, execution: ExecutionUsage) -> list[BudgetPeriod]:
        if budgets is None:
            return []
        run, span = self._run, (execution.began, now_s())
        return list(budget_periods(budgets, run.spec.name, run.spec.tags, run.run_id, span))

    def _per_second(self, budget_period: BudgetPeriod) -> float:
        """How much of a budget the run uses in a second now."""
        limit, here = budget_period.budget.limit, self._so_far.price_of(HERE)
        if self._nodes is None:
            return per_second(limit, here)
        section, nodes, local = self._nodes
        # This machine is not charged beside nodes that are its own processes.
        return nodes * per_second(limit, self._so_far.price_of(section)) + (0.0 if local else per_second(limit, here))

    def _prices(self) -> Sequence[Price]:
        """The prices of all places where the run may work."""
        return [self._so_far.price_of(one) for one in (HERE, "train", "verify", "evaluate")]


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
    consumer = f"this game day, which may use {shown(most)} {budget_period.budget.limit.unit}"
    remedy = "Give it less time with --at-most, or raise the budget with `trainwright budget apply FILE`."
    return _too_little(budget_period, balance, consumer, [], balance.reserved, remedy)


def _too_little(
    budget_period: BudgetPeriod, balance: Balance, consumer: str, own: list[str], others: float, remedy: str
) -> OverBudget:
    limit = budget_period.budget.limit
    parts = [f"{shown(balance.spent)} of {shown(limit.value)} {limit.unit} are spent", *own]
    parts += [f"{shown(others)} used or reserved by other runs"] if others else []
    return OverBudget(
        f"The budget {budget_period.name} ({budget_period.budget.runs}, {budget_period.period}) has too little left "
        f"for {consumer}: {natural_list(parts)}.",
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
        raise UsageError(
            fault,
            remedy=f"Add it to a price book, or name this machine in {THIS_MACHINE} (docs/cost.md); or give the budget "
            "in hours.",
        )


def is_carried_out(store: Store, run_id: str) -> bool:
    """Whether a process holds the run's lease, as far as this machine can tell."""
    held = held_lease(store, layout.lease(layout.run(run_id)))
    if held is None:
        return False
    process = process_of(held.value["holder"])
    return process is None or not has_ended(process)


def settle_run(store: Store, run_id: str, budgets: Budgets) -> None:
    """Settle the executions of a run that have a record of their end, in every budget that they used."""
    for budget_period, who, amount in _amounts(_over(store, run_id, ended=False), budgets):
        budget_period.ledger(store).settle({who: amount})


def settle_others(store: Store, budget_period: BudgetPeriod, ledger: Ledger, own: Executed | None = None) -> bool:
    """Settle the holders of a budget that no process carries out any more; returns whether there were any."""
    settled = False
    for hold in ledger.balance().holds.values():
        who = Executed(hold.run_id, hold.execution)
        try:
            if who == own or is_carried_out(store, who.run_id):
                continue
            usage = next((one for one in _over(store, who.run_id, ended=True) if one.execution == who.execution), None)
        except (CorruptError, UsageError) as error:  # the hold of another run with damaged records stays
            log.warning("budget %s: %s is not settled: %s", budget_period.name, who.run_id, error.message)
            continue
        # Without a record of its use, which gc deletes with the run, what it held is all that is known.
        ledger.settle({who: hold.amount if usage is None else budget_period.used(usage)})
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
    """The shared budgets in which executions used something that cannot be counted, with its node-seconds."""
    for one in executions:
        for budget_period in budget_periods(budgets, one.pipeline, one.tags, one.run_id, span_of(one)):
            seconds = (
                uncounted_s(budget_period.budget.limit, one, budget_period.bounds)
                if budget_period.budget.per != "run"
                else 0.0
            )
            if seconds:
                yield budget_period, seconds


def _over(store: Store, run_id: str, *, ended: bool) -> list[ExecutionUsage]:
    """A run's executions that are over: with a record of their end, or all."""
    executions, _ = executions_of(store, run_id)
    return [one for one in executions if ended or store.exists(layout.usage(run_id, one.execution, "ended"))]


@dataclass(frozen=True)
class BudgetBalance:
    """A budget in one period; `period` is a month, a run's id, `each run` or `all`."""

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

    def to_json(self) -> dict[str, object]:
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
    return [
        BudgetBalance(name, budget, "each run", 0.0, 0.0)
        if budget.per == "run"
        else _balance(store, BudgetPeriod(name, budget, _shared_period(budget, month_of(time.time()))))
        for name, budget in ({} if budgets is None else budgets.budgets).items()
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
        periods = [_shared_period(budget, month)]
        if budget.per == "run":
            periods = sorted(_runs_of(store, name, budget, month), reverse=True)
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
        if budget.per != "run":
            now = _balance(store, BudgetPeriod(name, budget, _shared_period(budget, month_of(time.time()))))
            if now.spent > budget.limit.value:
                limit = budget.limit
                raise UsageError(
                    f"budgets.{name}.limit: {shown(limit.value)} {limit.unit} is below the {shown(now.spent)} "
                    f"{limit.unit} that are spent {'' if budget.per == 'all' else f'in {now.period} '}already.",
                    remedy="Give a limit above it; `trainwright budget` shows what is spent.",
                )
    return unknown


def _runs_of(store: Store, name: str, budget: Budget, month: str) -> Iterable[str]:
    """The runs that were started in a month, by their ids, and used a budget."""
    of_month = month.replace("-", "")
    return (one for one in store.list(layout.periods(name, budget.scope)) if is_name(one) and one.startswith(of_month))


def _balance(store: Store, budget_period: BudgetPeriod) -> BudgetBalance:
    balance = budget_period.ledger(store).balance()
    return BudgetBalance(
        budget_period.name, budget_period.budget, budget_period.period, balance.spent, balance.reserved
    )


@dataclass(frozen=True)
class BudgetPeriod:
    """A budget in one of its periods."""

    name: str
    budget: Budget
    period: str

    @property
    def bounds(self) -> tuple[float, float]:
        """Start and end of the period, in seconds since the epoch."""
        return month_bounds(self.period) if self.budget.per == "month" else ALWAYS

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
    start, end = canonical.month_of(datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC))
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
            periods = {"run": [run_id], "all": [ALL]}.get(budget.per) or months(*span)
            yield from (BudgetPeriod(name, budget, period) for period in periods)


def _shared_period(budget: Budget, month: str) -> str:
    """The period of a budget that runs share, in a month."""
    return ALL if budget.per == "all" else month


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
