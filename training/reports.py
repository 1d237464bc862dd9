"""What a rank tells its node's supervisor: small files in the scratch folder, each replaced whole. Torch-free.

    rank-<r>.json         phase, step, epoch, samples, metrics, checkpoints, wait_share, begun_with; where the rank is
    rank-<r>.error.json   the error it failed with
    rank-<r>.done.json    the checkpoint it ended with

The other way there is one file, `stop`: write a checkpoint and end.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Checkpoint
from training.whereabouts import Whereabouts

STOP = "stop"
# A rank that stands still is heard of this often at least.
PULSE_S = 1.0


@dataclass
class Progress:
    """Where a rank stands.

    Attributes:
        device: on which it computes, once it knows.
        wait_share: share of the time since the last report spent waiting for data.
        begun_with: what was loaded from `train.init_from`, in this generation; else "".
        micro_batch: rows that a device takes at once; 0 while unknown, and with the user's own loader.
        saving: whether a checkpoint is on its way to the store; waits_for: why that takes longer, or "".
        place, place_s, moves, own_s, steps: where it is (see `training.whereabouts`), and for how long.
    """

    rank: int
    device: str = ""
    phase: Literal["starting", "training", "done"] = "starting"
    step: int = 0
    epoch: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    wait_share: float = 0.0
    begun_with: str = ""
    micro_batch: int = 0
    saving: bool = False
    waits_for: str = ""
    place: str = "starting"
    place_s: float = 0.0
    moves: int = 0
    own_s: float = 0.0
    steps: int = 0


class Reports:
    """Writes one rank's files.

    Attributes:
        where: where the rank is.
    """

    def __init__(self, scratch: Path, rank: int, interval_s: float) -> None:
        self.progress = Progress(rank)
        self.where = Whereabouts()
        self._scratch = scratch
        self._stop = str(scratch / STOP)  # looked for before every step
        self._interval_s = interval_s
        self._written = -math.inf
        self._waited_s = 0.0
        self._waited_before_s = 0.0
        self._began: float | None = None
        self._lock = threading.Lock()

    @property
    def wait_share(self) -> float:
        """Share of the time since `begin` spent waiting for data."""
        if self._began is None:
            return 0.0
        return round((self._waited_before_s + self._waited_s) / max(1e-9, time.monotonic() - self._began), 4)

    def begin(self) -> None:
        """Say that training begins."""
        self.progress.phase = "training"
        self._began = time.monotonic()

    @property
    def stop_asked(self) -> bool:
        """Whether the supervisor asked for a checkpoint and the end."""
        return os.path.exists(self._stop)

    @property
    def is_due(self) -> bool:
        """Whether the interval since the last report is over."""
        return time.monotonic() - self._written >= self._interval_s

    def waited(self, seconds: float) -> None:
        """Count time spent waiting for the next batch."""
        self._waited_s += seconds

    def report(self, *, now: bool = False) -> None:
        """Write the progress file, if the interval is over or `now`."""
        if not now and not self.is_due:
            return
        since = time.monotonic() - self._written
        self.progress.wait_share = round(min(1.0, self._waited_s / since), 4) if math.isfinite(since) else 0.0
        self._tell()
        self._waited_before_s += self._waited_s
        self._written, self._waited_s = time.monotonic(), 0.0

    def begun_with(self, sentence: str) -> None:
        """Say what was loaded before step 1."""
        self.progress.begun_with = sentence

    def sealed(self, checkpoint: Checkpoint) -> None:
        """Name a sealed checkpoint to the supervisor, at once; from any thread."""
        self.progress.checkpoints = [*self.progress.checkpoints, checkpoint.to_json()]
        self._tell()

    def saving(self, going_on: bool) -> None:
        """Say whether a checkpoint is on its way; from any thread."""
        self.progress.saving, self.progress.waits_for = going_on, ""
        self.where.moved()
        self._tell()

    def waits(self, why: str) -> None:
        """Say why a checkpoint is still on its way; from any thread."""
        self.progress.waits_for = why
        self._tell()

    def pulse(self) -> None:
        """Go on telling where this rank is, from a thread of its own, whatever becomes of the others."""
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()

    def failed(self, error: TrainwrightError) -> None:
        """Say why this rank ends; the first reason stays."""
        if not self._path("error.json").exists():
            self._write("error.json", error.to_json)

    def done(self, checkpoint: Checkpoint | None, plan: dict[str, Any]) -> None:
        """Say that this rank has trained to the end."""
        self.progress.phase = "done"
        self.report(now=True)
        told = {"checkpoint": checkpoint.to_json() if checkpoint else None, "plan": plan}
        self._write("done.json", lambda: told)

    def _pulse(self) -> None:
        while True:
            time.sleep(max(PULSE_S, self._interval_s))
            self._tell()

    def _tell(self) -> None:
        progress, where = self.progress, self.where
        progress.place, progress.place_s, progress.moves = where.place, round(where.place_s, 3), where.moves
        progress.own_s, progress.steps = round(where.own_s, 6), where.steps
        self._write("json", lambda: asdict(progress))

    def _path(self, ending: str) -> Path:
        return self._scratch / f"rank-{self.progress.rank}.{ending}"

    def _write(self, ending: str, tell: Callable[[], Any]) -> None:
        path = self._path(ending)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with self._lock:
            draft.write_text(json.dumps(tell()))
            draft.replace(path)
