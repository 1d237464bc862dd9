"""What a rank tells its node's supervisor: small files in the scratch folder, each replaced whole. Torch-free.

    rank-<r>.json         phase, step, epoch, samples, metrics, checkpoints, wait_share
    rank-<r>.error.json   the error it failed with
    rank-<r>.done.json    the checkpoint it ended with

The other way there is one file, `stop`: write a checkpoint and end.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Checkpoint

STOP = "stop"


@dataclass
class Progress:
    """Where a rank stands. `wait_share` is the share of the time since the last report spent waiting for data."""

    rank: int
    phase: Literal["starting", "training", "done"] = "starting"
    step: int = 0
    epoch: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    wait_share: float = 0.0


class Reports:
    """Writes one rank's files."""

    def __init__(self, scratch: Path, rank: int, interval_s: float) -> None:
        self.progress = Progress(rank)
        self._scratch = scratch
        self._interval_s = interval_s
        self._written = -math.inf
        self._waited_s = 0.0
        self._waited_before_s = 0.0
        self._began: float | None = None

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
        return os.path.exists(self._scratch / STOP)

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
        self._write("json", asdict(self.progress))
        self._waited_before_s += self._waited_s
        self._written, self._waited_s = time.monotonic(), 0.0

    def sealed(self, checkpoint: Checkpoint) -> None:
        """Name a sealed checkpoint to the supervisor, at once."""
        self.progress.checkpoints.append(checkpoint.to_json())
        self.report(now=True)

    def failed(self, error: TrainwrightError) -> None:
        """Say why this rank ends; the first reason stays."""
        if not self._path("error.json").exists():
            self._write("error.json", error.to_json())

    def done(self, checkpoint: Checkpoint | None, plan: dict[str, Any]) -> None:
        """Say that this rank has trained to the end."""
        self.progress.phase = "done"
        self.report(now=True)
        self._write("done.json", {"checkpoint": checkpoint.to_json() if checkpoint else None, "plan": plan})

    def _path(self, ending: str) -> Path:
        return self._scratch / f"rank-{self.progress.rank}.{ending}"

    def _write(self, ending: str, value: Any) -> None:
        path = self._path(ending)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(value))
        draft.replace(path)
