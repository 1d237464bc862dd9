"""What the live view shows: an event makes a board of a board, and a board is drawn for any width."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from data_contracts.messages.raw_data import ShardProgress
from data_contracts.run_report import Cost, StageResult
from flows.commands.live_view import RunView, drawn, updated
from tasks.run.progress import GangChanged, RunEnded, StageBegan, StageEnded, TrainingProgress

COST = Cost(node_seconds=90, usd=0.0123, machine="h200", usd_per_hour=0.5, price_date="2026-01-01")
TRAINING = TrainingProgress(
    "training", 120, 3, 3840, 7680, 640.0, {"acc": 0.5, "val_loss": 0.25, "train_loss": 0.125}, cost=COST
)
ROWS = ShardProgress(phase="reading", rows=1500, total=3000, rows_per_s=100, share=0.5, seconds_left=15)


def ended(stage: str, status: Any, sentence: str) -> StageEnded:
    return StageEnded(StageResult(name=stage, status=status, seconds=0.26, sentence=sentence))


def board(*events: Any, run_id: str = "20261122-1") -> RunView:
    made: RunView | None = None
    for at, event in enumerate(events):
        made = updated(made, StageBegan(event, "tiny", run_id) if isinstance(event, str) else event, float(at))
    assert made is not None
    return made


TRAINS = board(
    "validate", ended("validate", "ran", "600 rows meet 3 expectations"),
    "shard", ended("shard", "reused", "3 parquet shards"),
    "train", TRAINING,
)  # fmt: skip


def text(made: RunView, now: float, width: int, **options: Any) -> str:
    page = io.StringIO()
    Console(file=page, width=width, **{"color_system": None, **options}).print(drawn(made, now, width))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


WIDE = """\
running tiny

  validate  ran          0.3 s  600 rows meet 3 expectations
  shard     reused       0.3 s  3 parquet shards
  train     running     12.5 s  ━━━━━━━━━━━━━━━                 50 %
            epoch 3, step 120, train_loss 0.125, val_loss 0.25, acc 0.5, 640
            samples/s, 6 s left
  verify
  evaluate
  promote

  cost      0.0123 USD so far
  run       20261122-1"""
NARROW = """\
running tiny

  validate  ran          0.3 s
  shard     reused       0.3 s
  train     running   1 min 40 s
    epoch 3, step 120, train_loss 0.125,
    val_loss 0.25, acc 0.5, 640
    samples/s, 6 s left
    ━━━━━━━━━━━━━━━                 50 %
  verify
  evaluate
  promote

  cost      0.0123 USD so far
  run       20261122-1"""


def test_a_run_that_trains() -> None:
    assert text(TRAINS, 16.5, 80) == WIDE
    assert text(TRAINS, 104, 40) == NARROW


@pytest.mark.parametrize("width", [1, 5, 10, 20, 40, 71, 72, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = text(TRAINS, 5, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "tiny" in "".join(lines) or width < 20


def test_a_stage_verb_has_one_row_and_no_run() -> None:
    line = "  shard     running      2.0 s  ━━━━━━━━━━━━━━━                 50 %"
    assert text(board("shard", ROWS, run_id=""), 2.0, 90).splitlines() == [
        line,
        "            reading 1,500 of 3,000 rows, 100 rows/s, 15 s left",
    ]


def test_how_a_stage_ended_replaces_how_far_it_was() -> None:
    made = updated(TRAINS, ended("train", "failed", "it\nraised \x1b[2J"), 9.0)
    assert made is not None
    train = made.rows[2]
    assert (train.status, train.words, train.percent) == ("failed", "it\\nraised \\x1b[2J", None)
    assert "━" not in text(made, 10, 90)


def test_texts_of_users_are_escaped_and_are_no_markup() -> None:
    made = updated(None, StageBegan("train", "ti\x1b]0;x\x07ny", "1"), 0.0)
    made = updated(made, replace(TRAINING, metrics={"[bold]loss\x1b[1A": 1.0}), 1.0)
    assert made is not None
    said = text(made, 2.0, 120)
    assert "ti\\x1b]0;x\\x07ny" in said
    assert "[bold]loss\\x1b[1A 1" in said
    assert "\x1b" not in said


def test_without_a_total_there_is_no_bar_and_without_a_price_node_seconds() -> None:
    cost = COST.model_copy(update={"usd": None, "price_date": "", "machine": "local"})
    made = updated(TRAINS, replace(TRAINING, total=None, cost=cost), 9.0)
    assert made is not None
    assert "━" not in text(made, 9, 90)
    assert "cost      90 node-seconds so far" in text(made, 9, 90)


def test_another_run_begins_another_board_and_the_gang_changes_nothing() -> None:
    assert updated(TRAINS, GangChanged([]), 9.0) == TRAINS
    assert updated(None, RunEnded(), 9.0) is None
    other = updated(TRAINS, StageBegan("validate", "tiny", "other"), 9.0)
    assert other is not None
    assert [row.status for row in other.rows] == ["running", *[""] * 5]


def test_colour_is_for_states_and_can_be_turned_off() -> None:
    page = text(TRAINS, 5, 90, color_system="standard", force_terminal=True)
    assert "\x1b[32mran" in page
    assert "\x1b[3" not in text(TRAINS, 5, 90, color_system="standard", force_terminal=True, no_color=True)
