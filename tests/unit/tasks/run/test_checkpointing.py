"""`train.checkpoint: auto`: what it stands for, what a plan says, and that a resumed run keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.resolved import CheckpointInterval
from infra.store import Store
from infra.usage import PastTrainings
from tasks.run.resolve import (
    DEFAULT_S,
    LEAST_S,
    checkpoint_outlook,
    in_words,
    look_at_past_checkpoints,
    resolve_interval,
)
from tests.support.tiny import SPEC

PAST = PastTrainings(
    failures=3, node_seconds=400 * 86_400, saves=10, stalled_s=20.0, restarts=2, restarting_s=120.0, steps=1000,
    stepping_s=2000.0, steps_per_epoch=500,
)  # fmt: skip


def spec(checkpoint: Any = None, **train: Any) -> PipelineSpec:
    more = {} if checkpoint is None else {"checkpoint": checkpoint}
    return PipelineSpec.model_validate({**SPEC, "train": {**SPEC["train"], **more, **train}})


def test_without_a_measured_checkpoint_it_is_the_default(store: Store) -> None:
    assert look_at_past_checkpoints(spec(), store).every_s == DEFAULT_S
    found = resolve_interval(spec("auto"), store)
    assert found == CheckpointInterval(every_s=600, why="no run of this pipeline has measured a checkpoint yet")
    assert resolve_interval(spec({"every_s": 9}), store) is None


def test_a_plan_says_what_loses_least_and_why() -> None:
    assert checkpoint_outlook(spec("auto"), PAST).line == (
        "a checkpoint every 2.04 h loses least (an expected 0.05% of the time: a checkpoint stops the steps for 2 s, "
        "and a node fails about once in 156 d, from 3 failures in 400 node-days and an assumed one in 150)"
    )


@pytest.mark.parametrize(
    ("checkpoint", "own_s", "own"),
    [
        ({"every_s": 7000}, 7000, "the spec's checkpoint.every_s: 7000"),
        ({"every_steps": 100}, 200, "the spec's checkpoint.every_steps: 100"),
        ({"every_steps": 100, "every_s": 90}, 90, "the spec's checkpoint.every_s: 90"),
        ({"every_steps": 100, "every_s": 900}, 200, "the spec's checkpoint.every_steps: 100"),
        ({}, 1000, "each end of an epoch"),
        ("auto", None, ""),
    ],
)
def test_the_specs_own_interval(checkpoint: Any, own_s: float | None, own: str) -> None:
    found = checkpoint_outlook(spec(checkpoint), PAST)
    assert (found.own_s, found.own) == (own_s, own)


@pytest.mark.parametrize(("every_s", "is_named"), [(7000, False), (3.0, True), (20 * 86_400.0, True)])
def test_an_interval_that_loses_much_more_is_named(every_s: float, is_named: bool) -> None:
    assert (
        "; the spec's checkpoint.every_s: " in checkpoint_outlook(spec({"every_s": every_s}), PAST).line
    ) is is_named


def test_more_nodes_fail_more_often_and_a_checkpoint_that_costs_nothing_has_a_least_interval() -> None:
    one, sixteen = (
        checkpoint_outlook(spec("auto", nodes=nodes, strategy="ddp", global_batch_size=32), PAST) for nodes in (1, 16)
    )
    assert one.every_s == pytest.approx(4 * sixteen.every_s, rel=0.01)
    assert checkpoint_outlook(spec("auto"), PastTrainings(saves=3, stalled_s=0.0)).every_s == LEAST_S


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.04 s"), (59, "59 s"), (840, "14 min"), (5400, "1.5 h"), (864_000, "10 d")]
)
def test_lengths_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
