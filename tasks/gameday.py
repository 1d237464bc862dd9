"""A game day: faults injected into short trainings of a pipeline, and how the line recovers from each.

- The faults, what docs/recovery.md promises about each, and which a pipeline can try.
- Whether the store allows a game day: by its policy on tags, and by what its budgets have left.
- A short training, with a fault or without, in the store of a game day; it runs in a process of its own whose conductor
  can be killed. However it ends, no process of it is left.
- The timeline of a fault: when it was injected, noticed and recovered from. All times are those of the clock that dates
  the store's files, so the clocks of nodes need not agree.
- The verdict on each fault, whether every promise was kept, and the page with both. It loads nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from data_contracts.errors import CorruptError, TrainwrightError, UsageError, from_json
from data_contracts.executions import HERE
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import CancelMarker, FaultName, GameTraining, InjectedFault, PlannedFault, StepAfter
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.base import run_locally
from data_contracts.rules import Balance
from infra import scratch
from infra.budgets import current_budgets, refuse_by_policy
from infra.child import log_tail
from infra.gang.ledger import generations
from infra.orchestrator.resuming import end_dead_conductor
from infra.processes.processes import TiedProcess, kill_marked, new_mark, uninterrupted
from infra.processes.this_process import now_s
from infra.quantities import duration
from infra.store import Store, is_store, layout, open_store
from infra.store.layout import game_day_record
from tasks.budgets import (
    BudgetPeriod,
    budget_periods,
    per_second,
    refuse_uncounted,
    settle_others,
    too_little_for_game_day,
)
from tasks.pages.html import page
from tasks.run.resolve import RunOptions, run_prices
from tasks.run.run import open_run
from tasks.run.spec_check import LoadedSpec
from tasks.stages.shard import shard
from tasks.stages.train import run_training, train
from tasks.stages.validate import validate

# The training of a game day: its steps, and the steps between two checkpoints.
STEPS, EVERY_STEPS = 40, 10
# How long a fault waits for a checkpoint: less than a rank may stand still.
WAIT_S = 20.0
# How much later than `train.hang_timeout_s` a hung rank may be noticed.
HANG_MARGIN_S = 15.0
# What docs/recovery.md promises beyond these, and why a game day does not try it.
NOT_TRIED = {
    "link-cut": "needs root on both hosts, and cuts the link for everybody on them",
    "store-away": "the store may be shared; it cannot be refused to one training alone",
    "disk-full": "fills the disk for everybody who uses it",
    "server-away": "other flow runs need the Prefect server, too",
    "out-of-memory": "on a device, it takes the memory of whoever else is on it",
    "diverged": "needs a change to your module's loss",
}
# The name by which budgets for each run know a game day, which has no run in the store.
GAME_DAY = "game-day"
# What a pipeline's game day is called, in Prefect and in every manifest.
SUFFIX, TAG = "-gameday", "gameday"
# Fields of the Lightning trainer that say how long a training lasts.
_LENGTH = ("max_epochs", "max_steps", "min_epochs", "min_steps", "max_time")
POLL_S = 0.1
# A training that is interrupted ends its nodes, also on other machines.
END_S = 60.0
# In a measured time, until records are written and looked at.
MEASURING_S = 1.0
Verdict = Literal[
    "as promised", "slower than promised", "not as promised", "not recovered", "not injected", "not tried"
]
OUTCOME_COLUMNS = (
    "fault",
    "verdict",
    "noticed",
    "promised",
    "recovered",
    "lost steps",
    "lost node time",
    "weights",
    "why",
)
OUTCOME_NUMBERS = (2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Fault:
    """A fault and its promise.

    Attributes:
        what: what is done.
        causes: what the end of the generation must be called; empty if the process that names causes is what is struck.
        within_s: in which time it must be noticed; None: the promise has no number.
        retry: the budget in `retry:` that it uses; "": none.
        checkpoints: how many checkpoints must be committed before it.
    """

    name: FaultName
    what: str
    causes: tuple[str, ...]
    within_s: float | None = None
    retry: str = ""
    checkpoints: int = 1

    def planned(self, hang_timeout_s: float) -> PlannedFault:
        """What the ranks of the training need to know."""
        return PlannedFault(
            name=self.name,
            every_steps=EVERY_STEPS,
            checkpoints=self.checkpoints,
            wait_s=min(WAIT_S, hang_timeout_s / 3),
        )

    def limit_s(self, hang_timeout_s: float) -> float | None:
        """In which time it must be noticed with this `train.hang_timeout_s`."""
        return hang_timeout_s + HANG_MARGIN_S if self.name == "rank-hung" else self.within_s


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("rank-killed", "SIGKILL to a rank", ("node_lost",), 5.0, "node_lost"),
        Fault("rank-stopped", "SIGSTOP to a rank", ("hung",), 15.0, "hung"),
        Fault("rank-hung", "a rank takes no further step", ("hung",), None, "hung"),
        Fault("rank-asked-to-stop", "SIGTERM to a rank", ("preempted",), None, "preempted"),
        Fault("node-killed", "SIGKILL to the supervisor of a node", ("node_lost",), 15.0, "node_lost"),
        Fault("node-stopped", "SIGSTOP to the supervisor of a node", ("node_lost",), 15.0, "node_lost"),
        Fault("conductor-killed", "SIGKILL to the conductor, which is started again", ()),
        Fault(
            "checkpoint-damaged",
            "a bit of the newest checkpoint is flipped, and a rank killed",
            ("corrupt",),
            None,
            "node_lost",
            checkpoints=2,
        ),
    )
}


def chosen(names: list[str] | None) -> list[Fault]:
    """The faults with these names, in the order of the catalogue; all without names. UsageError for another name."""
    if not names:
        return list(FAULTS.values())
    if unknown := [name for name in names if name not in FAULTS]:
        why = f": {NOT_TRIED[unknown[0]]}" if unknown[0] in NOT_TRIED else ""
        raise UsageError(
            f"--only {unknown[0]}: a game day does not inject this fault{why}.",
            remedy=f"It injects {', '.join(FAULTS)}.",
        )
    return [fault for name, fault in FAULTS.items() if name in names]


def why_not(fault: Fault, spec: PipelineSpec, *, in_folder: bool) -> str:
    """Why this pipeline cannot try a fault; "" if it can.

    Args:
        in_folder: whether the store is a folder.
    """
    if fault.retry and getattr(spec.retry, fault.retry) == 0:
        return f"retry.{fault.retry} is 0, so it ends the training"
    if fault.name == "checkpoint-damaged" and not in_folder:
        return "the store is on S3, where a sealed file cannot be changed in place"
    return ""


def keeps_weights(spec: PipelineSpec) -> bool:
    """Whether a training that was struck must have the weights of one that was not, to the bit."""
    train = spec.train
    return spec.data != "external" and train.least_nodes == train.nodes


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


def own_overrides(name: str) -> list[str]:
    """The fields of the spec that a game day replaces, so that it is known for one and lasts minutes."""
    return [
        f"name={name[: 63 - len(SUFFIX)]}{SUFFIX}",
        f"tags.{TAG}='true'",
        f"train.checkpoint={{every_steps: {EVERY_STEPS}}}",
        "train.select=null",
    ]


def shortened(lightning: Mapping[str, Any]) -> dict[str, object]:
    """The Lightning config of a training of STEPS steps."""
    trainer = {field: value for field, value in (lightning.get("trainer") or {}).items() if field not in _LENGTH}
    return {**lightning, "trainer": {**trainer, "max_steps": STEPS, "max_epochs": -1}}


def train_once(request: GameTraining, loaded: LoadedSpec) -> Checkpoint:
    """Validate, shard and train in the store of a game day; nothing is verified, evaluated or promoted.

    Raises: what ended the training, once its retry budget is spent.
    """
    run = open_run(
        loaded,
        store_uri=request.store,
        options=RunOptions(window=request.window, fresh=request.fresh),
        recorded=False,
        remembered=False,
    )
    # The store of a game day may be a folder that only this machine sees, so no cluster reads the rows.
    changes = {"lightning": shortened(run.resolved.lightning), "spec": run_locally(run.resolved.spec)}
    run = replace(run, resolved=run.resolved.model_copy(update=changes))
    stage = replace(train, make=partial(run_training, fault=request.fault))
    return stage(run, shard(run, validate(run)))


class TimeUsed(Exception):
    """The time of the game day is used up."""


class ConductedTraining:
    """A training in the store of a game day.

    Args:
        module: what the process runs; it gets a `GameTraining` and prints its answer.
        pool: the work pool of its nodes; None: this machine.
        until: when the game day ends, on the monotonic clock.
    """

    def __init__(self, module: str, request: GameTraining, store: Store, pool: str | None, until: float) -> None:
        self._module, self._wanted, self._store = module, request, store
        self._pool, self._until = pool, until
        self._before = set(store.list(layout.trainings()))
        self._mark = new_mark()
        self._killed = False

    @property
    def uri(self) -> str:
        """The training's directory; "" before it began."""
        names = [name for name in self._store.list(layout.trainings()) if name not in self._before]
        return f"{layout.trainings()}/{names[0]}" if names else ""

    def run(self) -> Checkpoint:
        """Train to the end. Raises what ended it, and leaves no process."""
        with scratch.make("game-day", mark=self._mark) as folder:
            answer, printed = folder.path / "answer.txt", folder.path / "log.txt"
            process = self._start(answer, printed, fresh=True)
            try:
                while process.exit_code is None:
                    if time.monotonic() > self._until:
                        raise TimeUsed
                    if self._kills_conductor():
                        self._kill(process, answer)
                        process = self._start(answer, printed, fresh=False)
                    time.sleep(POLL_S)
            finally:
                with uninterrupted():
                    if not process.interrupt(END_S):
                        self._kill(process, answer)
                    kill_marked(self._mark)
                    scratch.sweep()  # what killed processes left on this machine
            return answer_of(answer, printed, process.exit_code)

    def _kills_conductor(self) -> bool:
        """Whether the conductor is to be killed now: once, when a rank has recorded that the fault is due."""
        fault = self._wanted.fault
        if self._killed or fault is None or fault.name != "conductor-killed":
            return False
        uri = self.uri
        self._killed = bool(uri) and self._store.exists(game_day_record(uri, "injected"))
        return self._killed

    def _kill(self, process: TiedProcess, answer: Path) -> None:
        """Kill the conductor; on a work pool, end what the server lists as running for it."""
        process.kill()
        if self._pool is not None:
            first, uri = answer.read_text().partition("\n")[0], self.uri
            leases = self._store.list(layout.slots(uri)) if uri else []
            end_dead_conductor(self._pool, json.loads(first or "{}").get("flow_run", ""), self._store.uri, uri, leases)

    def _start(self, answer: Path, printed: Path, *, fresh: bool) -> TiedProcess:
        # If this process is killed, so is the conductor, and then its nodes end, too.
        return TiedProcess(
            self._module,
            json.dumps(self._wanted.model_copy(update={"fresh": fresh}).to_json()),
            mark=self._mark,
            output=answer,
            log=printed,
        )


def answer_of(file: Path, printed: Path, code: int | None) -> Checkpoint:
    """The checkpoint that a training answered with; raises the error that it answered with."""
    lines = file.read_text(errors="replace").splitlines()
    try:
        value = json.loads(lines[-1])
    except (IndexError, ValueError):
        sentence = f"A training of the game day ended with exit code {code} and no answer."
        raise TrainwrightError(sentence, details={"log": log_tail(printed)}) from None
    if "error" in value:
        raise from_json(value["error"])
    return Checkpoint.from_json(value["checkpoint"])


@dataclass(frozen=True)
class Timeline:
    """The fault of a training.

    Attributes:
        injected: what was injected; None: nothing, because the training ended before.
        injected_at: Unix time.
        noticed_s: from there to the end of the generation; None if it did not end.
        cause: of that end.
        recovered_s: from the fault to the end of the first step after it; None if there was none.
        caught_up_s: from the fault to the end of the first step that had not been taken before.
        resumed_from: the step from which training continued.
    """

    injected: InjectedFault | None = None
    injected_at: float = 0.0
    noticed_s: float | None = None
    cause: str = ""
    recovered_s: float | None = None
    caught_up_s: float | None = None
    resumed_from: int | None = None

    @property
    def lost_steps(self) -> int | None:
        """Steps that were taken twice."""
        if self.injected is None or self.resumed_from is None:
            return None
        return max(0, self.injected.step - self.resumed_from)


def read_timeline(store: Store, training: str, causes: Sequence[str]) -> Timeline:
    """The timeline of a training's fault.

    Args:
        causes: how the fault may be named; with none, it is noticed when the next generation is launched.
    """
    path = game_day_record(training, "injected")
    injected = store.find_as(path, InjectedFault.from_json)
    if injected is None:
        return Timeline()
    written = {file.path: file.written_s for file in store.stored(training)}
    began = written[path]

    def after_s(record: str) -> float | None:
        return max(0.0, written[record] - began) if record in written else None

    later = [number for number in sorted(generations(store, training)) if number >= injected.generation]
    marks = {number: store.find_as(layout.cancel(training, number), CancelMarker.from_json) for number in later}
    ends = [(number, mark.cause) for number, mark in marks.items() if mark is not None]
    record, cause = _noticed(training, injected, ends, causes, later)
    noticed_s = None if record is None else after_s(record)
    first = store.find_as(game_day_record(training, "first"), StepAfter.from_json)
    return Timeline(
        injected=injected,
        injected_at=began,
        noticed_s=noticed_s,
        cause="" if noticed_s is None else cause,
        recovered_s=after_s(game_day_record(training, "first")),
        caught_up_s=after_s(game_day_record(training, "caught-up")),
        resumed_from=None if first is None else first.resumed_from,
    )


def _noticed(
    training: str, injected: InjectedFault, ends: list[tuple[int, str]], causes: Sequence[str], later: list[int]
) -> tuple[str | None, str]:
    """The record that shows that the fault was noticed, and the cause that it names."""
    if not causes:
        return (layout.launch(training, later[1]), "") if len(later) > 1 else (None, "")
    if injected.name == "checkpoint-damaged":  # no generation begins from it, so none ends by it
        return layout.quarantined(injected.checkpoint), CorruptError.cause
    named = next((end for end in ends if end[1] in causes), ends[0] if ends else None)
    return (None, "") if named is None else (layout.cancel(training, named[0]), named[1])


@dataclass(frozen=True)
class Outcome:
    """The outcome of a fault.

    Attributes:
        why: a clause on a verdict other than `as promised`; else "".
        where: what was struck, such as `rank 1 of node 0 (gpu-7), after step 15`.
        at: when, UTC; noticed_s, recovered_s: after it, until the cause was named, and until the first step.
        limit_s: in which time it must be noticed; None: without a number.
        lost_steps: steps that were taken twice; lost_node_s: paid seconds until the first new step, over all nodes.
        same_weights: whether the final weights are those of a training without a fault; None: not promised.
    """

    fault: str
    what: str
    verdict: Verdict
    why: str = ""
    where: str = ""
    at: str = ""
    cause: str = ""
    limit_s: float | None = None
    noticed_s: float | None = None
    recovered_s: float | None = None
    lost_steps: int | None = None
    lost_node_s: float | None = None
    same_weights: bool | None = None


def not_tried(fault: Fault, why: str) -> Outcome:
    """The outcome of a fault that this pipeline or its store does not allow."""
    return Outcome(fault.name, fault.what, "not tried", why)


def not_injected(fault: Fault, why: str) -> Outcome:
    """The outcome of a fault that was to be injected, and that came to nothing."""
    return Outcome(fault.name, fault.what, "not injected", why)


def judged(
    fault: Fault, times: Timeline, *, failure: str, limit_s: float | None, nodes: int, same_weights: bool | None
) -> Outcome:
    """The outcome of a training with a fault.

    Args:
        failure: why the training did not end well; "" if it did.
        limit_s: in which time the fault must be noticed.
        nodes: of the training, which are all paid.
        same_weights: None if the weights are not to be compared.
    """
    struck = times.injected
    if struck is None:
        return not_injected(fault, failure or "no checkpoint was committed before the training ended")
    verdict, why = _verdict(fault, times, failure, limit_s, same_weights)
    return Outcome(
        fault=fault.name,
        what=fault.what,
        verdict=verdict,
        why=why,
        where=f"rank {struck.rank} of node {struck.node} ({struck.host}), after step {struck.step}",
        at=datetime.fromtimestamp(times.injected_at, UTC).isoformat(timespec="seconds"),
        cause=times.cause,
        limit_s=limit_s,
        noticed_s=_rounded(times.noticed_s),
        recovered_s=_rounded(times.recovered_s),
        lost_steps=times.lost_steps,
        lost_node_s=None if times.caught_up_s is None else round(times.caught_up_s * nodes, 1),
        same_weights=same_weights,
    )


def _verdict(
    fault: Fault, times: Timeline, failure: str, limit_s: float | None, same_weights: bool | None
) -> tuple[Verdict, str]:
    if failure or times.recovered_s is None:
        return "not recovered", failure or "the training ended without a step after the fault"
    if times.noticed_s is None:
        return "not as promised", "nothing in the records shows that it was noticed"
    if fault.causes and times.cause not in fault.causes:
        return "not as promised", f"the cause named is {times.cause}, not {' or '.join(fault.causes)}"
    if same_weights is False:
        return "not as promised", "the final weights are not those of a training without a fault"
    if limit_s is not None and times.noticed_s > limit_s + MEASURING_S:
        return "slower than promised", f"noticed after {times.noticed_s:.1f} s, promised are {limit_s:g} s"
    return "as promised", ""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def broken(outcomes: Sequence[Outcome]) -> list[str]:
    """The faults whose promise was not kept, or not tried although it was to be."""
    return [one.fault for one in outcomes if one.verdict not in ("as promised", "not tried")]


def kept_all(outcomes: Sequence[Outcome]) -> bool:
    """Whether every promise that was to be tried was kept, and at least one was tried."""
    return not broken(outcomes) and any(one.verdict == "as promised" for one in outcomes)


def outcome_row(outcome: Outcome) -> tuple[str, ...]:
    """An outcome in OUTCOME_COLUMNS."""
    weights = {None: "–", True: "the same", False: "different"}[outcome.same_weights]
    return (
        outcome.fault,
        outcome.verdict,
        _seconds(outcome.noticed_s),
        _seconds(outcome.limit_s),
        _seconds(outcome.recovered_s),
        "–" if outcome.lost_steps is None else str(outcome.lost_steps),
        _seconds(outcome.lost_node_s),
        weights,
        outcome.why,
    )


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"


def outcomes_in_words(outcomes: Sequence[Outcome]) -> str:
    """How many faults were injected, and how many promises were kept."""
    tried = [one for one in outcomes if one.verdict not in ("not injected", "not tried")]
    kept = sum(one.verdict == "as promised" for one in tried)
    noun = "fault" if len(tried) == 1 else "faults"
    return (
        f"{len(tried)} {noun} injected, {kept} recovered from as promised, {len(outcomes) - len(tried)} not injected."
    )


def game_day_page(name: str, outcomes: Sequence[Outcome], began: datetime, took_s: float) -> str:
    """The page of a pipeline's game day.

    Args:
        began: UTC; took_s: how long it took.
    """
    struck = [
        (one.fault, one.what, f"{datetime.fromisoformat(one.at):%Y-%m-%d %H:%M:%S}", one.where, one.cause)
        for one in outcomes
        if one.where
    ]
    return page(
        "game_day",
        title=f"Game day of {name}",
        tone="good" if kept_all(outcomes) else "bad",
        when=f"{began:%Y-%m-%d %H:%M} UTC · {duration(took_s)}",
        name=name,
        words=outcomes_in_words(outcomes),
        head=OUTCOME_COLUMNS,
        numbers=OUTCOME_NUMBERS,
        faults=[outcome_row(outcome) for outcome in outcomes],
        struck=struck,
        not_tried=NOT_TRIED,
    )
