"""The plan: each row once per epoch, and the same rows per step at any world size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import TrainSpec
from training.order import Permutation, Plan, make_plan


def _train(global_batch: int, micro: int | None = None, world: int = 1) -> TrainSpec:
    return TrainSpec(lightning="x", global_batch_size=global_batch, micro_batch_size=micro, devices=world)


CASES = [
    # rows, global batch, micro at most, ranks → micro, accumulate, steps, dropped
    (100, 32, None, 2, (16, 1, 3, 4)),
    (96, 32, 4, 2, (4, 4, 3, 0)),
    (32, 32, 64, 1, (32, 1, 1, 0)),
    (99, 12, 5, 1, (4, 3, 8, 3)),
    (99, 12, 4, 2, (3, 2, 8, 3)),
    (7, 1, None, 1, (1, 1, 7, 0)),
]


@pytest.mark.parametrize(("rows", "size", "micro", "world", "expected"), CASES)
def test_the_arithmetic(rows, size, micro, world, expected):
    # The spec's own check speaks of its own world size; a smaller gang may need a smaller micro-batch.
    train = _train(size, 4).model_copy(update={"micro_batch_size": micro})
    plan = make_plan(rows, train, world)
    assert plan == Plan(rows, size, world, *expected)


def _taken(plan: Plan, order: np.ndarray) -> list[set[int]]:
    steps = []
    for step in range(plan.steps_per_epoch):
        rows = [order[plan.positions(step * plan.accumulate, plan.accumulate, rank)] for rank in range(plan.world_size)]
        assert {one.shape for one in rows} == {(plan.accumulate, plan.micro_batch)}
        steps.append(np.concatenate(rows).ravel().tolist())
    return steps


@given(st.integers(1, 300), st.integers(1, 24), st.integers(1, 30), st.data())
def test_each_row_is_taken_once_and_a_step_is_the_same_rows_at_any_world_size(num_rows, size, micro, data):
    assume(num_rows >= size)
    worlds = [world for world in range(1, size + 1) if size % world == 0]
    world = data.draw(st.sampled_from(worlds))
    train = _train(size).model_copy(update={"micro_batch_size": micro})
    order = Permutation(num_rows, "d")(np.arange(num_rows))
    steps = _taken(make_plan(num_rows, train, world), order)
    alone = _taken(make_plan(num_rows, train, 1), order)
    taken = [row for step in steps for row in step]
    assert len(set(taken)) == len(taken) == num_rows - num_rows % size
    assert [sorted(step) for step in steps] == [sorted(step) for step in alone]
    assert make_plan(num_rows, train, world).micro_batch <= micro


@given(st.integers(0, 200), st.integers(1, 9), st.integers(0, 3))
def test_a_run_of_micro_batches_is_each_of_them(first, count, rank):
    plan = Plan(8 * 100, 24, 4, 2, 3, 33, 8)
    each = [plan.positions(at, 1, rank) for at in range(first, first + count)]
    assert np.array_equal(plan.positions(first, count, rank), np.concatenate(each))


def test_what_makes_no_step_is_refused():
    with pytest.raises(UsageError, match=r"train split has 31 rows, fewer than train.global_batch_size 32"):
        make_plan(31, _train(32), 1)
    with pytest.raises(UsageError, match="global_batch_size 32 is not divisible by 3 ranks"):
        make_plan(64, _train(32), 3)
