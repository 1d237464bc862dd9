"""What a rank reports to its node's supervisor, through the files of `infra.gang.rank_files`. Torch-free."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import RankAnswer, RankReport, Saved, TrainingSummary
from infra.gang.rank_files import RankFiles, stop_file
from infra.processes.this_process import COUNTERS, now_s
from training.fit.reporting.measures import Measures
from training.fit.reporting.rank_activity import RankActivity

# A rank reports at least this often, even when it makes no progress.
PULSE_S = 1.0
# A heartbeat names this many of the newest checkpoints: far more than are sealed between two heartbeats, but not all of
# a long training's.
NAMED_CHECKPOINTS = 16


@dataclass
class RankProgress:
    """What the training notes about itself between two reports; `RankReport` explains the fields."""

    device: str = ""
    step: int = 0
    epoch: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    begun_with: str = ""
    micro_batch: int = 0


class Reports:
    """Writes one rank's files.

    Attributes:
        progress: how far training is; set by other modules. activity: where the rank is. measures: its measures for
          people who watch.
    """

    def __init__(self, scratch: Path, rank: int, interval_s: float) -> None:
        self.progress = RankProgress()
        self.activity = RankActivity()
        self.measures = Measures(self.activity)
        self._files = RankFiles(scratch, rank)
        self._stop = str(stop_file(scratch))  # checked before every step
        self._interval_s = interval_s
        self._written = -math.inf
        self._waited_s = 0.0
        self._waited_before_s = 0.0
        self._began: float | None = None
        self._lock = threading.Lock()
        self._phase: Literal["starting", "training", "done"] = "starting"
        self._checkpoints: list[Checkpoint] = []
        self._num_checkpoints = 0
        self._wait_share = 0.0
        self._saving = False
        self._waits_for = ""
        self._stalls, self._stalled_s = 0, 0.0

    @property
    def wait_share(self) -> float:
        """Share of the time since `begin` spent waiting for data."""
        if self._began is None:
            return 0.0
        return round((self._waited_before_s + self._waited_s) / max(1e-9, time.monotonic() - self._began), 4)

    def begin(self) -> None:
        """Report that training begins."""
        self._phase = "training"
        self._began = time.monotonic()

    @property
    def stop_asked(self) -> bool:
        """Whether the supervisor asked this rank to write a checkpoint and end."""
        return os.path.exists(self._stop)

    @property
    def is_due(self) -> bool:
        """Whether the interval since the last report is over."""
        return time.monotonic() - self._written >= self._interval_s

    def waited(self, seconds: float) -> None:
        """Count time spent waiting for the next batch."""
        self._waited_s += seconds

    def report(self, *, now: bool = False) -> None:
        """Write the report, if the interval is over or `now`."""
        if not now and not self.is_due:
            return
        since = time.monotonic() - self._written
        self._wait_share = round(min(1.0, self._waited_s / since), 4) if math.isfinite(since) else 0.0
        self._write()
        self._waited_before_s += self._waited_s
        self._written, self._waited_s = time.monotonic(), 0.0

    def begun_with(self, sentence: str) -> None:
        """Report what was loaded before step 1."""
        self.progress.begun_with = sentence

    def sealed(self, checkpoint: Checkpoint) -> None:
        """Report a sealed checkpoint to the supervisor at once; from any thread."""
        self._num_checkpoints += 1
        self._checkpoints = [*self._checkpoints, checkpoint][-NAMED_CHECKPOINTS:]
        self._write()

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Report that the checkpoint of a step is being saved, and how it went; from any thread."""
        began, sealed = now_s(), False
        self._report_saving(True)
        try:
            yield
            sealed = True
        finally:
            self.measures.saved(Saved(step=step, began=began, ended=now_s(), sealed=sealed))
            self._report_saving(False)

    def _report_saving(self, going_on: bool) -> None:
        self._saving, self._waits_for = going_on, ""
        self.activity.moved()
        self._write()

    def stalled(self, seconds: float) -> None:
        """Count a checkpoint for which the steps waited, without the work of the background thread."""
        self._stalls += 1
        self._stalled_s += seconds

    def waits(self, why: str) -> None:
        """Report why saving a checkpoint takes longer; from any thread."""
        self._waits_for = why
        self._write()

    def pulse(self) -> None:
        """Keep reporting where this rank is, from a thread of its own, whatever happens to the other threads."""
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()

    def failed(self, error: TrainwrightError) -> None:
        """Report why this rank ends; the first reason stays."""
        with self._lock:
            self._files.write_error(error)

    def done(self, checkpoint: Checkpoint | None, summary: TrainingSummary) -> None:
        """Report that this rank has trained to the end."""
        self._phase = "done"
        self.report(now=True)
        self._files.write_answer(RankAnswer(checkpoint=checkpoint, plan=summary.to_json()))

    def _pulse(self) -> None:
        while True:
            time.sleep(max(PULSE_S, self._interval_s))
            self._write()

    def _write(self) -> None:
        with self._lock:
            self._files.write_report(self._current())

    def _current(self) -> RankReport:
        progress, activity = self.progress, self.activity.read()
        return RankReport(
            rank=self._files.rank,
            device=progress.device,
            phase=self._phase,
            step=progress.step,
            epoch=progress.epoch,
            samples=progress.samples,
            metrics=progress.metrics,
            checkpoints=self._checkpoints,
            num_checkpoints=self._num_checkpoints,
            wait_share=self._wait_share,
            begun_with=progress.begun_with,
            micro_batch=progress.micro_batch,
            saving=self._saving,
            waits_for=self._waits_for,
            stalls=self._stalls,
            stalled_s=round(self._stalled_s, 6),
            place=activity.place,
            place_s=round(activity.place_s, 3),
            moves=activity.moves,
            own_s=round(activity.own_s, 6),
            steps=activity.steps,
            used=COUNTERS.total(),
            measured=self.measures.record(activity.spent_s),
        )
