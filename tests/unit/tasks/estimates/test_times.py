"""The time of a run, with a range, follows from earlier runs; what they do not tell is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.estimates.earlier_runs import PastStage, PastTraining, Span, most_s, samples_ahead, stage_time, training_time


@pytest.mark.parametrize(
    ("trainer", "epoch_steps", "samples"),
    [
        ({"max_epochs": 3}, 10, 240),
        ({"max_steps": 7}, 10, 56),
        ({"max_steps": 7}, 0, 56),  # needs no dataset
        ({"max_epochs": 3, "max_steps": 100}, 10, 240),
        ({"max_epochs": 3, "max_steps": 20}, 10, 160),
        ({"max_epochs": 3}, 0, None),
        ({"max_epochs": -1}, 10, None),  # without an end
        ({}, 10, 80_000),  # Lightning's 1,000 epochs
        ({"max_epochs": 2, "limit_train_batches": 4}, 10, 64),
        ({"max_epochs": 2, "limit_train_batches": 1}, 10, 16),
        ({"max_epochs": 2, "limit_train_batches": 4.0}, 10, 64),
        ({"max_epochs": 2, "limit_train_batches": 4}, 0, None),
        ({"max_epochs": 2, "limit_train_batches": 0.5}, 10, 80),
        ({"max_epochs": 2, "limit_train_batches": 1.0}, 10, 160),
        ({"max_epochs": 2, "limit_train_batches": float("inf")}, 10, 160),
        ({"max_epochs": 0}, 10, 0),
        ({"max_time": "00:01:00:00"}, 10, None),  # Lightning trains until then
    ],
)
def test_samples_ahead(trainer: dict[str, Any], epoch_steps: int, samples: int | None) -> None:
    assert samples_ahead(trainer, epoch_steps, 8) == samples


def past(run_id: str, rate: float = 10.0, overhead_s: float = 5.0, **changes: Any) -> PastTraining:
    known: dict[str, Any] = {"machine": "m", "settings": "s", "strategy": "ddp", "nodes": 1, "devices": 2}
    return PastTraining(run_id=run_id, rate=rate, overhead_s=overhead_s, **{**known, **changes})


TIMES: dict[str, tuple[list[PastTraining], int | None, int, Span | None, str]] = {
    "one run": ([past("a")], 100, 2, Span(15, 15, 15), "1 earlier run"),
    "the median of several": (
        [past("a"), past("b", 20), past("c", 5)], 100, 2, Span(15, 10, 25), "3 earlier runs",
    ),
    "more ranks": ([past("a")], 100, 4, Span(10, 10, 15), "1 earlier run; scaled evenly from 2 ranks"),
    "fewer ranks": ([past("a")], 100, 1, Span(25, 25, 25), "1 earlier run; scaled evenly from 2 ranks"),
    "the same ranks before others": ([past("a"), past("b", nodes=4)], 100, 2, Span(15, 15, 15), "1 earlier run"),
    "the same strategy before another": (
        [past("a"), past("b", 1, strategy="fsdp")], 100, 2, Span(15, 15, 15), "1 earlier run",
    ),
    "other settings": (
        [past("a", settings="t")], 100, 2, Span(15, 15, 15),
        "1 earlier run; with other settings of the module or the batch",
    ),
    "steps that were seen at once": ([past("a", float("inf"))], 100, 2, Span(5, 5, 5), "1 earlier run"),
    "another machine": (
        [past("a", machine="other")], 100, 2, None, "this pipeline never trained on m, only on other",
    ),
    "no run": ([], 100, 2, None, "no earlier run of this pipeline has trained"),
    "unknown samples": (
        [past("a")], None, 2, None, "the number of steps is not known before the dataset is made, or has no end",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("known", "samples", "ranks", "span", "why"), TIMES.values(), ids=TIMES)
def test_training_time(known: list[PastTraining], samples: int | None, ranks: int, span: Span | None, why: str) -> None:
    found = training_time(known, samples, ranks, "m", "s", "ddp")
    assert (found.span, found.why) == (span, why)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (None, None),
        ("01:02:03:04", 93_784), ({"hours": 1}, 3600), ({"weeks_": 1}, None), ("an hour", None), (7, None),
        ({"hours": float("nan")}, None), ({"hours": float("inf")}, None),
    ],
)  # fmt: skip
def test_the_longest_that_steps_take(limit: Any, seconds: float | None) -> None:
    assert most_s({"max_time": limit}) == seconds


@pytest.mark.parametrize(
    ("samples", "limit_s", "span", "why"),
    [
        (100, 6.0, Span(11, 11, 11), "1 earlier run; it may end at trainer.max_time"),
        (100, 60.0, Span(15, 15, 15), "1 earlier run"),
        (None, 6.0, Span(11, 11, 11), "1 earlier run; it may end at trainer.max_time"),
    ],
)
def test_a_training_ends_at_its_time(samples: int | None, limit_s: float, span: Span, why: str) -> None:
    found = training_time([past("a")], samples, 2, "m", "s", limit_s=limit_s)
    assert (found.span, found.why) == (span, why)


@pytest.mark.parametrize(
    ("known", "raw_bytes", "span"),
    [
        ([], 100, None),
        ([(10, 100)], 100, Span(10, 10, 10)),
        ([(10, 100)], 200, Span(20, 10, 20)),  # if it grows with the data, or if it does not
        ([(10, 100)], 50, Span(5, 5, 10)),
        ([(10, 100), (12, 100), (30, 300)], 100, Span(10, 10, 30)),
        ([(10, 0)], 100, Span(10, 10, 10)),  # external data
    ],
)
def test_stage_time(known: list[tuple[float, int]], raw_bytes: int, span: Span | None) -> None:
    made = [PastStage("r", "shard", seconds, size) for seconds, size in known]
    assert stage_time([*made, PastStage("r", "train", 1.0, 100)], "shard", raw_bytes) == span


def test_spans_add_up_and_name_their_unit() -> None:
    added = Span(1, 0.5, 2) + Span(1, 1, 1).times(2)
    assert added.to_json("run_s") == {"run_s": 3, "run_least_s": 2.5, "run_most_s": 4}
