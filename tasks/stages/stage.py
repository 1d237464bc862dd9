"""A stage of the line: how its result is found, and how it is made when there is none.

Each stage is one `Stage` in a module of its own name. Its Prefect task (`tasks.stages.orchestrated`), its verb
(`flows.commands.stages`), its lines in a plan (`tasks.queries.plan`) and its record in the store all follow from it.
`EarlierHandoffs` has the results that the store already has for a run's spec.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from data_contracts.errors import (
    ApprovalPending,
    Cancelled,
    ContractRejected,
    CorruptError,
    GateNotMet,
    OnHold,
    OverBudget,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import HandOff, Ref
from data_contracts.run_report import StageResult, StageStatus
from infra import stopping
from infra.processes.this_process import now_s
from infra.store import layout
from tasks.run.meter import begin_stage, used_by_stage
from tasks.run.progress import IN_VIEW, StageBegan, StageEnded, notify, on_page
from tasks.run.resolve import explain_left_out
from tasks.run.run import Run, RunInputs, artifact_key

EXTERNAL = "data is external"
log = logging.getLogger("trainwright")

P = ParamSpec("P")
T = TypeVar("T")
_STATUSES: dict[type[TrainwrightError], StageStatus] = {
    ContractRejected: "rejected",
    Cancelled: "cancelled",
    OverBudget: "cancelled",
    stopping.HandedOver: "cancelled",
    ApprovalPending: "waiting",
}
# What a stage will do, and why: the last two columns of a plan.
PlannedAction = tuple[str, str]


@dataclass(frozen=True)
class StageOutcome(Generic[T]):
    """A stage's outcome: its hand-off, whether it ran or was reused, and one sentence about it.

    Attributes:
        in_plan: what a plan says about a reused result; default: `reused_from`.
        lacks: what `make` still has to make beside the found result.
        error: the error with which this result ends the run, such as the rejection in a contract report.
    """

    handoff: T
    status: StageStatus
    sentence: str
    ref: Ref | None = None
    reused_from: str | None = None
    in_plan: str = ""
    lacks: str = ""
    error: TrainwrightError | None = None


def rejected(
    done: StageOutcome[T], sentence: str, report: HandOff, uri: str, remedy: str | None = None
) -> StageOutcome[T]:
    """The result of a stage whose sealed report, at `uri`, rejects the data."""
    error = ContractRejected(sentence, remedy=remedy, details=report.to_json())
    return replace(done, sentence=sentence, in_plan=f"{uri}: {sentence}", error=error)


_SKIPPED: StageOutcome[Any] = StageOutcome(
    None, "skipped", f"{EXTERNAL}: the user's data module reads it", in_plan=EXTERNAL
)


@dataclass(frozen=True, eq=False)
class Stage(Generic[P, T]):
    """A stage: called with a run and the hand-offs that it takes, it reuses its result or makes it.

    Attributes:
        name: the same for its module, command, task, record and page.
        sections: sections of the spec that decide its result; a plan names what changed in them.
        takes: the stages whose hand-offs it takes, in order.
        key: the key of the result for these inputs; None with data for which the stage is skipped.
        find: the result under this key, if there is one. Nothing is written.
        make: makes the result.
        missing: why there is nothing to reuse, for a plan and for a later verb that asks for the result.
        keyed: whether the hand-offs that it takes decide its result; if not, key and find take None for each.
        check: refuses what `make` would refuse, before any work begins; takes None for hand-offs that do not exist yet.
        ahead: what `make` would do where `missing` does not say it, such as continuing unfinished work.
        remark: for a plan in which the stage is made: what is worth knowing about how; "" for nothing.
        resumed: what continuing the run would do, where the stage's record does not say it.
        ranks: the ranks that `make` would start, for a plan; "" for one process. Takes None for what is not made yet.
        corrupt: what the stage does with a CorruptError of `find` before the run ends with that error.
    """

    name: str
    sections: tuple[str, ...]
    takes: tuple[Stage[..., Any], ...]
    key: Callable[Concatenate[RunInputs, P], str | None]
    find: Callable[Concatenate[Run, str, P], StageOutcome[T] | None]
    make: Callable[Concatenate[Run, str, P], StageOutcome[T]]
    missing: str
    keyed: bool = field(default=True, kw_only=True)
    check: Callable[Concatenate[Run, ...], None] | None = field(default=None, kw_only=True)
    ahead: Callable[Concatenate[Run, P], PlannedAction | None] | None = field(default=None, kw_only=True)
    remark: Callable[[Run], str] | None = field(default=None, kw_only=True)
    resumed: Callable[[Run], PlannedAction | None] | None = field(default=None, kw_only=True)
    ranks: Callable[Concatenate[Run, ...], str] | None = field(default=None, kw_only=True)
    corrupt: Callable[Concatenate[Run, CorruptError, P], None] | None = field(default=None, kw_only=True)

    def stored(self, run: Run, *args: P.args, **kwargs: P.kwargs) -> StageOutcome[T] | None:
        """The stored result for these inputs, if there is one; None for each input if the stage is not `keyed`."""
        key = self.key(run, *args, **kwargs)
        return _SKIPPED if key is None else self.find(run, key, *args, **kwargs)

    def find_or_make(self, run: Run, *args: P.args, **kwargs: P.kwargs) -> StageOutcome[T]:
        """The stored result, or a new one; nothing is logged or recorded."""
        known: Any = args if self.keyed else (None,) * len(args)
        key = self.key(run, *known, **kwargs)
        if key is None:
            return _SKIPPED
        try:
            stored = self.find(run, key, *known, **kwargs)
        except CorruptError as error:
            if self.corrupt is not None:
                self.corrupt(run, error, *args, **kwargs)
            raise
        if stored is not None and not stored.lacks:
            return stored
        if self.check is not None:
            try:
                self.check(run, *args)
            except (UsageError, UserCodeError) as error:
                error.details["refused"] = True
                raise
        return self.make(run, key, *args, **kwargs)

    def first(self, missing: str = "") -> UsageError:
        """The error of a later verb that needs this stage's result: what is missing, and which verb makes it."""
        clause = missing or self.missing
        return UsageError(
            f"{clause[0].upper()}{clause[1:]}.", remedy=f"Run `trainwright {self.name}` with the same spec first."
        )

    def __call__(self, run: Run, *args: P.args, **kwargs: P.kwargs) -> T:
        """Carry the stage out: timed, logged, and recorded in `run.live` and under `runs/<run_id>/stages/`."""
        started, began = time.monotonic(), now_s()
        begin_stage(run, self.name)
        notify(StageBegan(self.name, run.spec.name, run.run_id if run.recorded else ""))

        def ended(status: StageStatus, sentence: str, **more: Any) -> StageResult:
            seconds = round(time.monotonic() - started, 3)
            result = StageResult(name=self.name, status=status, seconds=seconds, sentence=sentence, **more)
            run.live.add_result(result)
            used_by_stage(run, self.name, began, status)
            # An error is reported once, where it ends the run.
            shown = "" if sys.exception() else f"  {sentence}"
            level = logging.WARNING if status in ("failed", "rejected") else logging.INFO
            more = {**IN_VIEW, **on_page(artifact_key(run, self.name))}
            log.log(level, "%-9s %-9s %6.1f s%s", self.name, status, seconds, shown, extra=more)
            notify(StageEnded(result))
            return result

        try:
            stopping.check()
            done = self.find_or_make(run, *args, **kwargs)
            if done.error is not None:
                raise done.error
        except OnHold as error:  # not recorded: the run continues once the checkpoint is released
            ended("ran", error.message)
            raise
        except GateNotMet as error:
            _record(run, ended("ran", error.message))
            raise
        except TrainwrightError as error:
            explain_left_out(error, run.resolved, run.store)
            refused: StageStatus = "rejected" if error.details.get("refused") else "failed"
            ended(_STATUSES.get(type(error), refused), error.message)
            raise
        except Exception as error:
            ended("failed", f"{type(error).__name__}: {error}")
            raise
        except BaseException as signal:  # Ctrl-C, or Prefect's TerminationSignal in a worker's flow run
            if type(signal).__module__ == "pyo3_runtime":  # a panic of a library in Rust
                ended("failed", f"{type(signal).__name__}: {signal}")
                raise
            ended("cancelled", "stopped; no process is left")
            raise Cancelled(f"The run was stopped during {self.name}.") from signal
        identity = done.ref.id if done.ref else None
        _record(run, ended(done.status, done.sentence, id=identity, reused_from=done.reused_from))
        return done.handoff


@dataclass(frozen=True)
class ClusterStage:
    """What a stage says about a cluster that does its work.

    Attributes:
        name: of the stage.
        field: of the spec, which names the cluster.
        if_memory_ran_out: what to do then.
    """

    name: str
    field: str
    if_memory_ran_out: str


def _record(run: Run, result: StageResult) -> None:
    """Record how the stage ended. A run's first record of a stage stays; a resumed run does not replace it."""
    if run.recorded:
        run.store.create_once(layout.stage(run.run_id, result.name), result.to_json())


class EarlierHandoffs:
    """Results found by their keys; each stage is looked up once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[Stage[..., Any], StageOutcome[Any] | None] = {}

    def stored(self, stage: Stage[..., Any]) -> StageOutcome[Any] | None:
        """The stage's result; UsageError if an input that decides it does not exist yet."""
        if stage not in self._found:
            self._found[stage] = stage.stored(self._run, *self.keyed_inputs(stage))
        return self._found[stage]

    def handoff(self, stage: Stage[..., Any]) -> Any:
        """The stage's hand-off; if there is none, UsageError that names the verb to run first."""
        done = self.stored(stage)
        if done is None or done.error is not None:
            raise stage.first()
        return done.handoff

    def inputs(self, stage: Stage[..., Any]) -> list[Any]:
        """The hand-offs that a stage takes; UsageError as in `handoff`."""
        return [self.handoff(one) for one in stage.takes]

    def keyed_inputs(self, stage: Stage[..., Any]) -> list[Any]:
        """The inputs that identify the stage's result: its hand-offs, or None for each if they do not decide it."""
        return self.inputs(stage) if stage.keyed else [None] * len(stage.takes)
