"""Shows a run's metrics and sends its trace while it is carried out, as the operator's environment asks for it.

Metrics: Prometheus pulls them, or a gateway gets them. They listen to the run's stages and its gang. The samples of a
moment, of what the run has used and kept so far, are a pure function of its record and of the gang that works now.

Trace: the run, its stages, and below `train` the nodes and their ranks. Names and
attributes follow OpenTelemetry's conventions for CI/CD where these fit; the others begin with `trainwright`. No
sentence is in a span: a sentence may quote a value.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import ErrorJson, TrainwrightError, UsageError, causes, from_json
from data_contracts.executions import HERE, ExecutionUsage, GangUsage
from data_contracts.messages.gang import Heartbeat, NodeExit, reports_of
from data_contracts.run_report import RunReport, StageResult
from infra.metrics import Common, Endpoint, MetricSample, failed_saves, node_samples, pushing
from infra.processes.this_process import now_s
from infra.telemetry import TRACEPARENT, Context, begin_json_logs, current, json_asked
from infra.traces import (
    METRICS_PORT,
    METRICS_TOKEN_FILE,
    MetricsSettings,
    Spans,
    check_otlp,
    metrics_settings,
    metrics_token,
    traces_asked,
)
from infra.usage import executions_of
from tasks.costs.charges import charges
from tasks.run.executions import num_crashed
from tasks.run.progress import (
    GangLaunched,
    GangReleased,
    NodeHeard,
    StageBegan,
    StageEnded,
    TrainingProgress,
    listening,
)
from tasks.run.run import Run

log = logging.getLogger("trainwright")
# The use of a gang is counted anew at most so often, in the conductor's thread: it walks over all nodes.
LIVE_EVERY_S = 1.0
_CAUSES = causes()
# Shown as 0 from the beginning: Prometheus sees no increase where a counter begins at 1.
_RETRIED = tuple(cause for cause in _CAUSES if from_json({"cause": cause}).retry_key)
# How a generation ends that did not fail; what a crash of its conductor ended is counted as that crash.
_NO_FAILURE = ("done", "killed", "fenced")
# What a generation that still works has done since its newest checkpoint: it is kept, or lost, later.
UNCOMMITTED = "uncommitted"
# The conventions' word for how a run, or a stage, ended.
_RESULTS = {
    **dict.fromkeys(("promoted", "canary", "unchanged", "trained", "ran", "reused", "waiting"), "success"),
    **dict.fromkeys(("not_promoted", "rejected"), "failure"),
    **dict.fromkeys(("cancelled", "over_budget"), "cancellation"),
    "skipped": "skip",
}


def observed(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap the function that carries a metered run out: its metrics and its trace can be seen meanwhile."""

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        with contextlib.ExitStack() as stack:
            report: RunReport | None = None
            begin_json_logs(log.name, pipeline=run.spec.name, run=run.run_id)
            # Settings that are wrong end the run in its own checks, where it has a report.
            with contextlib.suppress(UsageError):
                if (settings := metrics_settings()).is_wanted:
                    _show(run, settings, stack)
                check_otlp()
                if traces_asked():
                    trace = stack.enter_context(_traced(run))
                    stack.callback(lambda: trace.end(report))
            report = work(run)
            return report

    return carry_out


def refuse_wrong_settings() -> None:
    """UsageError that names the variable of the environment that is wrong."""
    json_asked()
    check_otlp()
    settings = metrics_settings()
    if settings.ports or METRICS_TOKEN_FILE in os.environ:
        metrics_token()


def _show(run: Run, settings: MetricsSettings, stack: contextlib.ExitStack) -> None:
    watched, common = WatchedRun(run, earlier=earlier_processes(run)), _common(run)
    if settings.ports:
        stack.enter_context(_pulled(common, settings, metrics_token(), watched))
    if settings.push:
        token = metrics_token() if METRICS_TOKEN_FILE in os.environ else None
        stack.enter_context(pushing(settings.push, token, common, watched.samples))
    stack.enter_context(listening(watched))


def _common(run: Run) -> Common:
    """The labels of all samples. Nodes that are processes of this machine are in the pool of its worker, if any."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    flow_run = None if context is None else context.flow_run
    pool, queue = getattr(flow_run, "work_pool_name", None), getattr(flow_run, "work_queue_name", None)
    return {"pipeline": run.spec.name, "pool": run.spec.train.pool or pool or HERE, "queue": queue or ""}


@contextlib.contextmanager
def _traced(run: Run) -> Iterator[TracedRun]:
    spans = Spans()
    trace = TracedRun(run, spans)
    try:
        with listening(trace):
            yield trace
    finally:
        spans.close()


@contextlib.contextmanager
def _pulled(common: Common, settings: MetricsSettings, token: str, watched: WatchedRun) -> Iterator[None]:
    try:
        endpoint = Endpoint(settings.address, settings.ports, token, common, watched.samples)
    except OSError as error:
        log.warning(
            "No metrics are shown: no port of %s is free on %s (%s); the run continues.",
            METRICS_PORT,
            settings.address,
            error.strerror or error,
        )
        yield
        return
    log.info("metrics: http://%s:%d/metrics", settings.address, endpoint.port)
    try:
        yield
    finally:
        endpoint.close()


@dataclass(frozen=True)
class Earlier:
    """What the store's records say of the run's earlier processes: what they used, and how many of them crashed."""

    executions: Sequence[ExecutionUsage] = ()
    crashes: int = 0


NOTHING_EARLIER = Earlier()


def earlier_processes(run: Run) -> Earlier:
    """The run's processes before this one; with a warning, none if their records are damaged or cannot be read."""
    assert run.live.meter is not None
    try:
        executions, _ = executions_of(run.store, run.run_id)
        own = run.live.meter.so_far.execution
        return Earlier([one for one in executions if one.execution != own], num_crashed(run.store, run.run_id))
    except TrainwrightError as error:
        log.warning("The metrics count from this process on: %s", error)
        return NOTHING_EARLIER


class WatchedRun:
    """Takes a run's events in the thread that carries it out; any other thread may ask for samples."""

    def __init__(
        self, run: Run, clock: Callable[[], float] = time.monotonic, earlier: Earlier = NOTHING_EARLIER
    ) -> None:
        assert run.live.meter is not None
        self._run, self._meter, self._clock = run, run.live.meter, clock
        self._began, self._stage = now_s(), ""
        self._usage: Callable[[], GangUsage] | None = None
        self._live: GangUsage | None = None
        self._live_at = 0.0
        self._generation: int | None = None
        self._messages: dict[int, Heartbeat | NodeExit] = {}
        self._heard: dict[int, float] = {}
        self._progress: TrainingProgress | None = None
        self._earlier = earlier.executions
        self._restarts: Counter[str] = Counter({**dict.fromkeys(_RETRIED, 0), "crashed": earlier.crashes})
        for gang in (gang for one in earlier.executions for gang in one.gangs):
            self._count_end(gang)
        # When the training's first node was heard; 0.0: not yet.
        self._training_at = 0.0
        self._commits, self._checkpoint, self._checkpoint_at = 0, -1, 0.0
        # In the generations before this one.
        self._failed_saves = 0
        self._waited_s = 0.0
        self._waiting_since: float | None = None
        self._changing = threading.Lock()

    def __call__(self, event: Any) -> None:
        """Take an event in."""
        with self._changing:
            self._take(event)

    def samples(self) -> list[MetricSample]:
        """The samples of this moment."""
        execution = self._meter.so_far
        with self._changing:
            live = self._live
            taken = [*self._of_run(), *node_samples(dict(self._messages), dict(self._heard))]
        return [*taken, *run_samples(execution, live, self._earlier)]

    def _take(self, event: Any) -> None:
        match event:
            case StageBegan():
                self._stage = event.stage
                if event.stage == "train":
                    self._training_at = self._checkpoint_at = 0.0
            case StageEnded():
                self._stage = ""
            case GangLaunched():
                self._failed_saves += failed_saves(self._messages)
                self._generation, self._usage, self._checkpoint = event.launch.generation, event.usage, -1
                self._messages, self._heard, self._live_at = {}, {}, 0.0
                self._count()
            case NodeHeard():
                self._messages[event.node], self._heard[event.node] = event.message, now_s()
                self._training_at = self._training_at or now_s()
                self._count()
            case GangReleased():
                self._usage = self._live = None
                self._count_end(event.usage)
            case TrainingProgress():
                self._follow(event)

    def _count_end(self, usage: GangUsage) -> None:
        if usage.ended not in _NO_FAILURE:
            self._restarts[usage.ended if usage.ended in _CAUSES else "other"] += 1

    def _count(self) -> None:
        if self._usage is not None and self._clock() >= self._live_at:
            self._live_at = self._clock() + LIVE_EVERY_S
            self._live = self._usage().model_copy(update={"stage": "train"})

    def _follow(self, progress: TrainingProgress) -> None:
        self._progress, now = progress, self._clock()
        if self._waiting_since is not None:
            self._waited_s += now - self._waiting_since
        self._waiting_since = now if progress.phase == "waiting" else None
        if progress.phase in ("starting", "training") and progress.checkpoint_step > self._checkpoint:
            self._commits, self._checkpoint, self._checkpoint_at = self._commits + 1, progress.checkpoint_step, now_s()
        self._count()

    def _of_run(self) -> Iterator[MetricSample]:
        yield MetricSample("run_info", 1, (self._run.run_id,))
        yield MetricSample("run_start_time_seconds", self._began)
        if self._stage:
            yield MetricSample("stage_running", 1, (self._stage,))
        for result in list(self._run.live.results.values()):
            yield MetricSample("stage_duration_seconds", result.seconds, (result.name, result.status))
        waits_s = 0.0 if self._waiting_since is None else self._clock() - self._waiting_since
        yield MetricSample("queue_wait_seconds", self._waited_s + waits_s)
        yield MetricSample("gang_nodes", 0 if self._live is None else len(self._live.nodes))
        yield MetricSample("checkpoints_committed_total", self._commits)
        yield MetricSample("checkpoint_failures_total", self._failed_saves + failed_saves(self._messages))
        for cause, number in sorted(self._restarts.items()):
            yield MetricSample("restarts_total", number, (cause,))
        if self._generation is not None:
            yield MetricSample("generation", self._generation)
        if self._checkpoint >= 0:
            yield MetricSample("checkpoint_step", self._checkpoint)
        if self._checkpoint_at:
            yield MetricSample("checkpoint_time_seconds", self._checkpoint_at)
        if self._training_at:
            yield MetricSample("training_start_time_seconds", self._training_at)
        if self._progress is not None and self._progress.samples_per_s is not None:
            yield MetricSample("samples_per_second", self._progress.samples_per_s)


def run_samples(
    execution: ExecutionUsage, live: GangUsage | None, earlier: Sequence[ExecutionUsage] = ()
) -> Iterator[MetricSample]:
    """What the machines of a run did so far, and what they cost.

    Args:
        execution: of the run by this process.
        live: the use of the generation that works now, beside those that the execution has recorded.
        earlier: the executions of the run before.
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    costs: dict[tuple[str, str], float] = defaultdict(float)
    unpriced_s = 0.0
    for charge in (charge for one in (*earlier, _with(execution, live)) for charge in charges(one)):
        lives = live is not None and (charge.stage, charge.generation) == (live.stage, live.generation)
        cause = UNCOMMITTED if lives and charge.cause == "lost" else charge.cause
        seconds[charge.stage, cause] += charge.node_seconds
        if charge.amount is None:
            unpriced_s += charge.node_seconds
        else:
            costs[charge.price.currency, cause] += charge.amount
    for labels, value in sorted(seconds.items()):
        yield MetricSample("node_time_seconds", value, labels)
    for labels, value in sorted(costs.items()):
        yield MetricSample("cost", value, labels)
    yield MetricSample("unpriced_time_seconds", unpriced_s)
    known = sum(value for (_, cause), value in seconds.items() if cause != "unknown")
    if known > 0:
        work = sum(value for (_, cause), value in seconds.items() if cause == "work")
        yield MetricSample("goodput_ratio", work / known)
    for currency, per_hour in sorted(_rates(execution, live).items()):
        yield MetricSample("cost_per_hour", per_hour, (currency,))


def _with(execution: ExecutionUsage, live: GangUsage | None) -> ExecutionUsage:
    """The execution with the generation that works now, as if it ended well here: its failure is not known yet."""
    if live is None or not live.nodes:
        return execution
    return execution.model_copy(update={"gangs": [*execution.gangs, live.model_copy(update={"ended": "done"})]})


def _rates(execution: ExecutionUsage, live: GangUsage | None) -> dict[str, float]:
    """What an hour costs now, by currency. This machine is not charged beside nodes that are its own processes."""
    held = [] if live is None else [(live.stage, len(live.nodes))]
    held += [(HERE, 1)] if live is None or not live.local else []
    rates: dict[str, float] = defaultdict(float)
    for place, number in held:
        price = execution.price_of(place)
        if price.per_hour is not None:
            rates[price.currency] += number * price.per_hour
    return dict(rates)


class TracedRun:
    """Takes a run's events in the thread that carries it out, and sends a span for each thing that ends.

    The children of this process get the context of the stage that they work for by the variable TRACEPARENT.
    """

    def __init__(self, run: Run, spans: Spans) -> None:
        self._run, self._spans, self._began = run, spans, now_s()
        self._above = current()
        self._name = f"RUN {run.spec.name}"
        self._root = spans.root(self._name, self._above)
        self._before = os.environ.get(TRACEPARENT)
        self._stage: tuple[Context, float] | None = None
        self._gang: tuple[Context, int] | None = None
        self._messages: dict[int, Heartbeat | NodeExit] = {}
        self._heard: dict[int, float] = {}
        self._hand_on(self._root)

    def __call__(self, event: Any) -> None:
        """Take an event in."""
        match event:
            case StageBegan():
                self._stage = self._root.child(event.stage, now_s()), now_s()
                self._hand_on(self._stage[0])
            case StageEnded():
                self._end_stage(event.result)
            case GangLaunched():
                above = self._root if self._stage is None else self._stage[0]
                self._gang = above, event.launch.generation
                self._messages, self._heard = {}, {}
            case NodeHeard():
                self._messages[event.node] = event.message
                self._heard.setdefault(event.node, now_s())
            case GangReleased():
                self._end_gang(event.usage)

    def end(self, report: RunReport | None) -> None:
        """Send the run's span, and take TRACEPARENT back; `report`: None if the run ended without one."""
        verdict = "failed" if report is None else report.verdict
        error = "" if verdict != "failed" else "internal" if report is None else _cause(report.error)
        attributes = {
            "cicd.pipeline.name": self._run.spec.name,
            "cicd.pipeline.run.id": self._run.run_id,
            "cicd.pipeline.action.name": "RUN",
            "cicd.pipeline.result": _RESULTS.get(verdict, "error"),
            "trainwright.verdict": verdict,
        }
        self._spans.ended(
            self._name, self._root, self._above, (self._began, now_s()), attributes, error=error, server=True
        )
        if self._before is None:
            os.environ.pop(TRACEPARENT, None)
        else:
            os.environ[TRACEPARENT] = self._before

    def _hand_on(self, context: Context) -> None:
        os.environ[TRACEPARENT] = str(context)

    def _end_stage(self, result: StageResult) -> None:
        self._hand_on(self._root)
        if self._stage is None:
            return
        (context, began), self._stage = self._stage, None
        attributes = {
            "cicd.pipeline.task.name": result.name,
            "cicd.pipeline.task.run.id": f"{self._run.run_id}/{result.name}",
            "cicd.pipeline.task.run.result": _RESULTS.get(result.status, "error"),
            "trainwright.stage.status": result.status,
        }
        error = "failed" if result.status == "failed" else ""
        self._spans.ended(result.name, context, self._root, (began, now_s()), attributes, error=error)

    def _end_gang(self, usage: GangUsage) -> None:
        """Send the spans of a generation's nodes and ranks."""
        if self._gang is None:
            return
        above, generation = self._gang
        error = "" if usage.ended == "done" else usage.ended if usage.ended in _CAUSES else "other"
        for node in usage.nodes:
            context = above.child("node", generation, node.number)
            about = {"trainwright.generation": usage.generation, "trainwright.node": node.number}
            self._spans.ended(f"node {node.number}", context, above, (node.started, node.released), about, error=error)
            message = self._messages.get(node.number)
            for report in () if message is None else reports_of(message):
                rank, began = context.child("rank", report.rank), self._heard[node.number]
                about_rank = {**about, "trainwright.rank": report.rank, "trainwright.step": report.step}
                self._spans.ended(f"rank {report.rank}", rank, context, (began, node.released), about_rank, error=error)
        self._gang = None


def _cause(error: ErrorJson | None) -> str:
    cause = str((error or {}).get("cause", "internal"))
    return cause if cause in _CAUSES else "internal"
