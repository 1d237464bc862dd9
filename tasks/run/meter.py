"""Records what a run uses while it is carried out, so that its cost is known, also if its process is killed.

Each record is created once under a name of its own, and costs are derived from the records. So nothing is charged
twice if Prefect carries a run out twice, and nothing is lost if a process dies.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from data_contracts.costs import NOTHING
from data_contracts.errors import TrainwrightError
from data_contracts.executions import (
    HERE,
    ExecutionHeartbeat,
    ExecutionUsage,
    Followed,
    GangUsage,
    NodeUsage,
    StageUsage,
)
from data_contracts.resolved import UNKNOWN_PRICE, Price
from data_contracts.run_report import RunReport, StageStatus
from infra.gpus import EnergyMeter
from infra.machine import machine_id
from infra.processes.processes import uninterrupted
from infra.processes.this_process import COUNTERS, now_s
from infra.store import Store, layout
from infra.store.records import PointerMoved, Versioned, parsed
from infra.usage import cost, executions_of
from tasks.run.report import latest_report
from tasks.run.resolve import find_inputs
from tasks.run.run import Run

# The execution of a run that was carried out by a Trainwright that kept no records of what it used.
EARLIER = "report"
BEAT_S = 30.0
log = logging.getLogger("trainwright")


def metered(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap the function that carries out a run: begin an execution, and end it whatever happens."""

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        try:
            _settle(run)
        except TrainwrightError as error:
            log.warning("what an earlier process of the run used is not settled: %s", error.message)
        meter = Meter(run)
        run.live.meter = meter
        try:
            with meter.running():
                return work(run)
        finally:
            run.live.meter = None

    return carry_out


def _settle(run: Run) -> None:
    """Write the end of executions whose process was killed, and add the cost of their nodes to this process's report.

    The run's lease is held, so they are over. Their nodes' own records are deleted by gc a day after the training.
    """
    for one in executions_of(run.store, run.run_id)[0]:
        path = layout.usage(run.run_id, one.execution, "ended")
        if run.store.exists(path) or not run.store.create_once(path, one.to_json()):
            continue
        for gang in one.gangs:
            seconds = sum(max(node.released - node.started, 0.0) for node in gang.nodes)
            run.live.add_cost(cost(seconds, one.price_of(gang.stage)))


def follow(run: Run, section: str, where: str, local: bool) -> None:
    """Note that nodes are about to be launched for a training or a job in the store; `local`: on this machine.

    If this process is killed, the records of the nodes themselves say how long they worked.
    """
    if run.live.meter is not None:
        run.live.meter.note(Followed(stage=section, where=where, local=local))


def used_by_gang(run: Run, section: str, usage: GangUsage) -> None:
    """Record what the nodes of a generation used for a section of the run."""
    if (meter := run.live.meter) is None:
        return
    meter.gang(usage.model_copy(update={"stage": section}))
    if not meter.warned_of_machine:
        sentence = other_machine(run.resolved.price_of(section), usage)
        meter.warned_of_machine = bool(sentence)
        if sentence:
            log.warning(sentence)


def other_machine(price: Price | None, usage: GangUsage) -> str:
    """The sentence about a node that is not the machine that its pool has in the price book; "" if all are.

    The pool's price still holds: a node's own statement must not lower it.
    """
    if price is None or not price.pool or not price.machine:
        return ""
    wrong = [node for node in usage.nodes if node.gpus is not None and node.gpus != price.devices]
    if not wrong:
        return ""
    node, machine = wrong[0], price.machine
    return (
        f"Node {node.number} of the pool {price.pool} has {node.gpus} GPUs, but {machine}, which the pool has in the "
        f"price book, has {price.devices}; it is charged as a {machine}. Correct pools.{price.pool} in the price book, "
        "or the pool."
    )


def begin_stage(run: Run, name: str) -> None:
    """Note on which stage this process works from now on."""
    if run.live.meter is not None:
        run.live.meter.note(name)


def used_by_stage(run: Run, name: str, began: float, status: StageStatus) -> None:
    """Record the time that this process has spent on a stage since `began` (by this process's clock)."""
    if run.live.meter is not None:
        run.live.meter.stage(StageUsage(name=name, began=began, ended=max(now_s(), began), status=status))


class Meter:
    """The execution of a run by this process."""

    def __init__(self, run: Run) -> None:
        resolved = run.resolved
        self._run, self._over = run, threading.Event()
        named = f"{now_s():.0f}-{uuid.uuid4().hex[:8]}"
        # A run that an earlier Trainwright resolved has the price of a node that trains alone.
        earlier = {HERE: resolved.price if run.spec.train.pool is None else UNKNOWN_PRICE}
        prices = {"train": resolved.price, **(resolved.prices or earlier)}
        self._began = ExecutionUsage(
            run_id=run.run_id,
            execution=named,
            pipeline=run.spec.name,
            model=run.spec.model_name,
            tags=run.spec.tags,
            prices=prices,
            began=now_s(),
            machine=machine_id(),
        )
        self._beat_at = layout.usage_beat(run.run_id, named)
        self._heartbeat = ExecutionHeartbeat(at=now_s())
        self._last: Versioned | None = None
        self._noting = threading.Lock()
        # After one write failed, the rest waits for the last record, so that an outage does not delay the run's end.
        self._is_away = False
        # Whether a message has said that a node is another machine than in the price book.
        self.warned_of_machine = False
        # What the process used before belongs to no run.
        COUNTERS.take()
        self._energy, self._taking = EnergyMeter(), threading.Lock()
        self._used = self._used_before = NOTHING
        self._stages: list[StageUsage] = []
        self._gangs: list[GangUsage] = []

    @property
    def so_far(self) -> ExecutionUsage:
        """The execution up to now."""
        self._take()
        ended = max(now_s(), self._began.began)
        known = {"ended": ended, "stages": [*self._stages], "gangs": [*self._gangs], "used": self._used}
        return self._began.model_copy(update=known)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Record the start and the end, and beat in between."""
        self._create("began", self._began.to_json())
        beating = threading.Thread(target=self._beat, name="metering", daemon=True)
        beating.start()
        try:
            yield
        finally:
            with uninterrupted():
                self._over.set()
                self._create("ended", self.so_far.to_json())
                self._energy.close()

    def stage(self, usage: StageUsage) -> None:
        """Record a stage that ended."""
        self._take()
        usage = usage.model_copy(update={"used": self._used - self._used_before})
        if usage.status != "cancelled":  # the last record, which follows at once, has it
            self._create_part(f"stage-{len(self._stages)}", usage)
        self._stages.append(usage)

    def gang(self, usage: GangUsage) -> None:
        """Record a generation whose nodes are released."""
        self._create_part(f"gang-{len(self._gangs)}", usage)
        self._gangs.append(usage)

    def _take(self) -> None:
        """Add what the process has used since the last call."""
        with self._taking:
            self._used += COUNTERS.take() + self._energy.sample()

    def _create_part(self, what: str, usage: StageUsage | GangUsage) -> None:
        if not self._is_away:
            self._create(what, {**usage.to_json(), "schema_version": 1})

    def _create(self, what: str, record: dict[str, object]) -> None:
        """Create a record; without an answer of the store the run continues, and the last record has the rest."""
        try:
            path = layout.usage(self._run.run_id, self._began.execution, what)
            self._run.store.create_once(path, record)
        except TrainwrightError as error:
            self._is_away = True
            log.warning("what the run uses is not recorded: %s", error.message)

    def note(self, what: str | Followed | None = None) -> None:
        """Write a heartbeat, with the stage that begins or the nodes that are to be launched."""
        with self._noting:
            stage = what if isinstance(what, str) else self._heartbeat.stage
            self._take()
            if isinstance(what, str):
                self._used_before = self._used
            followed = [*self._heartbeat.follows, *([what] if isinstance(what, Followed) else [])]
            self._heartbeat = ExecutionHeartbeat(at=now_s(), stage=stage, follows=followed, used=self._used)
            try:
                self._last = self._run.store.pointer(self._beat_at).swap(self._last, self._heartbeat.to_json())
            except PointerMoved as moved:  # the answer to an earlier write was lost
                self._last = moved.current
            except TrainwrightError as error:
                log.debug("no heartbeat was written: %s", error.message)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            self.note()


@dataclass(frozen=True)
class Usage:
    """What one run used.

    Attributes:
        executions: in order.
        so_far: whether its last execution has no end: it still works, or its process was killed.
    """

    run_id: str
    executions: list[ExecutionUsage]
    so_far: bool = False


def usage_of(store: Store, run_id: str) -> Usage:
    """What a run has used so far. CorruptError if a record is damaged."""
    found, so_far = executions_of(store, run_id)
    return Usage(run_id, found or _of_report(store, run_id), so_far)


def _seconds(moment: str) -> float:
    """A time of a record (ISO 8601) as seconds since the epoch; 0 if it has none."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _of_report(store: Store, run_id: str) -> list[ExecutionUsage]:
    """The cost in the report of a run of an earlier Trainwright. CorruptError if its figures cannot be."""
    resolved = find_inputs(store, run_id)
    report = latest_report(store, run_id)
    if resolved is None or report is None:
        return []
    price = resolved.price
    return [parsed(layout.report(run_id), lambda known: _as_execution(run_id, known, price), report)]


def _as_execution(run_id: str, report: RunReport, price: Price) -> ExecutionUsage:
    """An execution that used what a report says, which counted the nodes that trained."""
    ended = _seconds(report.finished or report.started)
    node = NodeUsage(number=0, started=ended - report.cost.node_seconds, released=ended)
    gang = GangUsage(stage="train", where=f"runs/{run_id}", generation=0, local=False, nodes=[node], ended="")
    return ExecutionUsage(
        run_id=run_id,
        execution=EARLIER,
        pipeline=report.pipeline,
        model=report.model.name if report.model is not None else report.pipeline,
        tags=report.tags,
        prices={"train": price, HERE: price},
        began=ended,
        ended=ended,
        gangs=[gang] if report.cost.node_seconds else [],
    )
