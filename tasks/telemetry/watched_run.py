"""A run as its metrics show it: listens to its stages and its gang, and gives the samples of a moment."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import TrainwrightError, causes, from_json
from data_contracts.executions import ExecutionUsage, GangUsage
from data_contracts.messages.gang import Heartbeat, NodeExit
from infra.metrics import Sample, failed_saves, node_samples
from infra.processes.this_process import now_s
from infra.usage import executions_of
from tasks.run.executions import num_crashed
from tasks.run.progress import GangLaunched, GangReleased, NodeHeard, StageBegan, StageEnded, TrainingProgress
from tasks.run.run import Run
from tasks.telemetry.run_samples import run_samples

# The use of a gang is counted anew at most so often, in the conductor's thread: it walks over all nodes.
LIVE_EVERY_S = 1.0
log = logging.getLogger("trainwright")
_CAUSES = causes()
# Shown as 0 from the beginning: Prometheus sees no increase where a counter begins at 1.
_RETRIED = tuple(cause for cause in _CAUSES if from_json({"cause": cause}).retry_key)
# How a generation ends that did not fail; what a crash of its conductor ended is counted as that crash.
_NO_FAILURE = ("done", "killed", "fenced")


@dataclass(frozen=True)
class Earlier:
    """What the store's records say of the run's earlier processes: what they used, and how many of them crashed."""

    executions: Sequence[ExecutionUsage] = ()
    crashes: int = 0


NOTHING_EARLIER = Earlier()


def earlier_processes(run: Run) -> Earlier:
    """The run's processes before this one; with a warning, none if their records are damaged or cannot be read."""
    try:
        executions, _ = executions_of(run.store, run.run_id)
        own = run.meters[-1].so_far.execution
        return Earlier([one for one in executions if one.execution != own], num_crashed(run.store, run.run_id))
    except TrainwrightError as error:
        log.warning("The metrics count from this process on: %s", error)
        return NOTHING_EARLIER


class WatchedRun:
    """Takes a run's events in the thread that carries it out; any other thread may ask for samples."""

    def __init__(
        self, run: Run, clock: Callable[[], float] = time.monotonic, earlier: Earlier = NOTHING_EARLIER
    ) -> None:
        self._run, self._meter, self._clock = run, run.meters[-1], clock
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

    def samples(self) -> list[Sample]:
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

    def _of_run(self) -> Iterator[Sample]:
        yield Sample("run_info", 1, (self._run.run_id,))
        yield Sample("run_start_time_seconds", self._began)
        if self._stage:
            yield Sample("stage_running", 1, (self._stage,))
        for result in list(self._run.results.values()):
            yield Sample("stage_duration_seconds", result.seconds, (result.name, result.status))
        waits_s = 0.0 if self._waiting_since is None else self._clock() - self._waiting_since
        yield Sample("queue_wait_seconds", self._waited_s + waits_s)
        yield Sample("gang_nodes", 0 if self._live is None else len(self._live.nodes))
        yield Sample("checkpoints_committed_total", self._commits)
        yield Sample("checkpoint_failures_total", self._failed_saves + failed_saves(self._messages))
        for cause, number in sorted(self._restarts.items()):
            yield Sample("restarts_total", number, (cause,))
        if self._generation is not None:
            yield Sample("generation", self._generation)
        if self._checkpoint >= 0:
            yield Sample("checkpoint_step", self._checkpoint)
        if self._checkpoint_at:
            yield Sample("checkpoint_time_seconds", self._checkpoint_at)
        if self._training_at:
            yield Sample("training_start_time_seconds", self._training_at)
        if self._progress is not None and self._progress.samples_per_s is not None:
            yield Sample("samples_per_second", self._progress.samples_per_s)
