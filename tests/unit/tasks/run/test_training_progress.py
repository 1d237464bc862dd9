"""What people read of a training while it works: speed, the time left, what it consumes in all."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.run_report import Cost
from infra.gang.members import Progress
from tasks.run.progress import TrainingMeter, TrainingProgress, percent, planned_samples, sentence


def meter(total: int | None = 1000) -> tuple[TrainingMeter, Any]:
    clock = SimpleNamespace(now=0.0)
    priced = partial(Cost, machine="m", usd_per_hour=36, price_date="2026-01-01")
    return TrainingMeter(total, lambda spent: priced(node_seconds=spent, usd=spent / 100), lambda: clock.now), clock


def training(samples: int, **more: Any) -> Progress:
    return Progress(more.pop("generation", 0), "training", samples // 10, 1, samples, **more)


def test_speed_is_that_of_the_last_seconds() -> None:
    made, clock = meter()
    speeds = []
    for clock.now, samples in ((0, 100), (1, 200), (2, 300), (100, 400), (101, 500), (102, 600)):
        speeds.append(made.take(training(samples)).samples_per_s)
    assert speeds == [None, 100, 100, pytest.approx(100 / 98), 100, 100]


def test_speed_begins_anew_with_a_generation() -> None:
    made, clock = meter()
    made.take(training(500))
    clock.now = 1.0
    assert made.take(training(600)).samples_per_s == 100
    after = made.take(training(300, generation=1))
    assert (after.samples_per_s, after.seconds_left, after.share) == (None, None, 0.3)


def test_cost_never_goes_down() -> None:
    made, _ = meter()
    spent = [made.take(training(1, node_seconds=seconds)).cost for seconds in (10, 20, 0, 25)]
    assert [one.usd for one in spent if one is not None] == [0.1, 0.2, 0.2, 0.25]


@pytest.mark.parametrize(
    ("told", "said", "done"),
    [
        (
            TrainingProgress("training", 1200, 3, 500, 1000, 99.6, {"acc": 1.0, "b": 2.0, "loss": 0.123456, "z": 1.0}),
            "epoch 3, step 1,200, loss 0.1235, acc 1, b 2, 100 samples/s, 5 s left",
            50.0,
        ),
        (TrainingProgress("training", 1, 0, 5, None, 0.333), "epoch 0, step 1, 0.33 samples/s", None),
        (TrainingProgress("training"), "waiting for the first step", None),
        (TrainingProgress("training", 3, note="waiting: the store"), "waiting: the store", None),
        (TrainingProgress("starting", total=10), "starting", 0.0),
        (TrainingProgress("training", 9, 1, 1200, 1000, 10.0), "epoch 1, step 9, 10 samples/s, 0 s left", 100.0),
        (
            TrainingProgress("training", 9, 1, 1000, 721000, 10.0),
            "epoch 1, step 9, 10 samples/s, 20 h 0 min left",
            0.1,
        ),
    ],
)
def test_in_words_and_percent(told: TrainingProgress, said: str, done: float | None) -> None:
    assert (sentence(told), percent(told)) == (said, done)


@pytest.mark.parametrize(
    ("trainer", "rows", "samples"),
    [
        ({"max_epochs": 3}, 105, 300),
        ({"max_epochs": 3, "max_steps": 4}, 105, 40),
        ({"max_epochs": 3, "max_steps": -1}, 105, 300),
        ({"max_steps": 4}, 105, 40),
        ({"max_epochs": -1, "max_steps": 4}, None, 40),
        ({"max_epochs": 3}, None, None),
        ({"max_epochs": 3, "max_steps": 4}, None, None),
        ({"max_epochs": 3, "limit_train_batches": 2}, 105, None),
        ({"max_time": "00:01:00:00"}, 105, None),
        ({}, 105, None),
    ],
)
def test_what_a_training_consumes_in_all(trainer: dict[str, Any], rows: int | None, samples: int | None) -> None:
    assert planned_samples(trainer, rows, 10) == samples
