"""What the live view shows of a run's events."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from data_contracts.messages.raw_data import ShardProgress
from data_contracts.run_report import StageResult
from flows.commands.live_view import LiveView
from tasks.run.progress import GangChanged, RunEnded, StageBegan, StageEnded, TrainingProgress

TRAINING = TrainingProgress("training", 120, 3, 3840, 7680, 640.0, {"acc": 0.5, "val_loss": 0.25, "train_loss": 0.125})
ROWS = ShardProgress(phase="reading", rows=1500, total=3000, rows_per_s=100, share=0.5, seconds_left=15)


def ended(stage: str, status: Any, sentence: str) -> StageEnded:
    return StageEnded(StageResult(name=stage, status=status, seconds=0.26, sentence=sentence))


def text(*events: Any, run_id: str = "20261122-1", width: int = 90) -> str:
    """The view after these events, of which a text begins a stage, without its times."""
    page, view = io.StringIO(), LiveView(colour=False)
    view._begin = lambda: None  # type: ignore[method-assign]  # nothing is drawn on this process's terminal
    for event in events:
        view.handle(StageBegan(event, "tiny", run_id) if isinstance(event, str) else event)
    Console(file=page, width=width, color_system=None).print(view.drawn())
    return "\n".join(line.rstrip() for line in re.sub(r"[ \d]\d\.\d s", " 0.0 s", page.getvalue()).splitlines())


RUN = """\
running tiny

  validate  ran          0.0 s  600 rows meet 3 expectations
  shard     reused       0.0 s  3 parquet shards
  train     running      0.0 s  50 %, epoch 3, step 120, train_loss 0.125, val_loss 0.25,
                                acc 0.5, 640 samples/s, 6 s left
  verify
  evaluate
  promote

  run       20261122-1"""
TRAINS = (
    "validate", ended("validate", "ran", "600 rows meet 3 expectations"), "shard",
    ended("shard", "reused", "3 parquet shards"), "train", TRAINING,
)  # fmt: skip


@pytest.mark.parametrize(
    ("events", "run_id", "lines"),
    [
        (TRAINS, "20261122-1", RUN),
        (
            ("shard", ROWS),
            "",
            "  shard     running      0.0 s  50 %, reading 1,500 of 3,000 rows, 100 rows/s, 15 s left",
        ),
        (
            (*TRAINS, GangChanged([]), ended("train", "failed", "it\nraised \x1b[2J")),
            "20261122-1",
            "  train     failed       0.0 s  it\\nraised \\x1b[2J",
        ),
        (
            ("train", replace(TRAINING, total=None, metrics={"[bold]loss\x1b[1A": 1.0})),
            "1",
            "0.0 s  epoch 3, step 120, [bold]loss\\x1b[1A 1, 640 samples/s",
        ),
        ((*TRAINS, RunEnded(), StageBegan("validate", "ti\x1b]0;x\x07ny", "2")), "1", "running ti\\x1b]0;x\\x07ny"),
    ],
    ids=["a run", "a stage", "failed", "texts of users", "another run"],
)
def test_what_is_shown(events: tuple[Any, ...], run_id: str, lines: str) -> None:
    assert lines in text(*events, run_id=run_id)


@pytest.mark.parametrize("width", [1, 20, 40, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, text(*TRAINS, width=width).splitlines())) <= width
