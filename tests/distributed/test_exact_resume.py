"""A training that is killed, at any step, goes on to the bit: the last checkpoint has the id of the undisturbed one's.

The id covers losses, weights, optimizer, schedules, generators of every rank and the cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.gang import Gang, answer

STEPS = 50
EVERY_STEP = {"checkpoint": {"every_steps": 1}}

# Each two values of two columns stand together: strategy, ranks, format, accumulation, schedule, dropout, clipping.
PAIRS: list[tuple[str, int, str, bool, bool, float, bool]] = [
    ("ddp", 1, "parquet", False, False, 0.0, False),
    ("ddp", 2, "tfrecord", True, True, 0.2, True),
    ("ddp", 4, "parquet", True, False, 0.2, True),
    ("fsdp", 1, "tfrecord", True, True, 0.0, False),
    ("fsdp", 2, "parquet", False, True, 0.2, False),
    ("fsdp", 4, "tfrecord", False, True, 0.0, True),
    ("fsdp", 1, "parquet", False, False, 0.2, True),
    ("ddp", 2, "parquet", True, False, 0.0, False),
    ("ddp", 4, "tfrecord", False, False, 0.2, False),
]


def test_every_two_values_stand_together_somewhere() -> None:
    columns = list(zip(*PAIRS, strict=True))
    for at, first in enumerate(columns):
        for second in columns[at + 1 :]:
            assert set(zip(first, second, strict=True)) == {(a, b) for a in set(first) for b in set(second)}


def killed_and_carried_on(run: Gang, kills: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Kill a rank at a step, generation after generation, and train to the end from what was sealed last."""
    sealed: dict[str, Any] | None = None
    for generation, (step, rank) in enumerate(kills):
        run.environment = {"KILL": f"{step} {rank}"}
        scratch = run.run(generation, sealed)
        assert answer(scratch, 0, "done") is None, f"not killed at step {step}"
        written = (answer(scratch, 0) or {}).get("checkpoints", [])
        sealed = written[-1] if written else sealed
        # Of a step before the kill, however far behind it the save was.
        assert sealed is None or sealed["step"] <= step
    run.environment = {}
    return run.train_to_end(len(kills), sealed)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "steps", [pytest.param(range(1, STEPS), id="all", marks=pytest.mark.sweep), pytest.param((3, 19), id="sample")]
)
def test_killed_at_every_step(steps: Sequence[int], gang: Callable[..., Gang]) -> None:
    settings: dict[str, Any] = {
        **EVERY_STEP,
        "micro_batch_size": 4,
        "trainer": {"max_steps": STEPS, "max_epochs": -1, "gradient_clip_val": 0.1},
    }
    end = gang("whole", "Killed", **settings).train_to_end()
    assert end["step"] == STEPS
    run = gang("killed", "Killed", **settings)
    found = killed_and_carried_on(run, [(step, step % 2) for step in steps])
    assert found["ref"]["id"] == end["ref"]["id"]


def test_killed_with_a_module_that_asks_the_trainer_about_its_loader(gang: Callable[..., Gang]) -> None:
    end = gang("whole", "Looks", **EVERY_STEP, micro_batch_size=4).train_to_end()
    assert end["step"] == 18
    run = gang("killed", "Looks", **EVERY_STEP, micro_batch_size=4)
    # Looking changes nothing: neither the rows of this training nor where the next one resumes.
    looking = {"LOOKS": "1"}
    run.environment = {"KILL": "8 1", **looking}
    run.run(0)
    sealed = answer(run.scratch(0), 0)["checkpoints"][-1]
    assert 0 < sealed["step"] <= 8
    run.environment = looking
    found = run.train_to_end(1, sealed)
    assert found["ref"]["id"] == end["ref"]["id"]
