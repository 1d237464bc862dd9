"""What bounds a step, as a table of its parts; and when a change counts as faster."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.messages.commands import StepProfile
from tasks.profile import PARTS, SENTENCES, Bound, bound_by, compare, parts_of, steps_between

# Seconds of the parts of a step → what bounds it, if matrix products take most of the module's time.
CASES: dict[str, tuple[dict[str, float], Bound]] = {
    "waits longest for data": ({"data": 5, "forward": 1, "backward": 2, "optimizer": 1}, "data"),
    "waits less than it works": ({"data": 3, "forward": 1, "backward": 2, "optimizer": 1}, "compute"),
    "exactly as long": ({"data": 4, "forward": 1, "backward": 2, "optimizer": 1}, "compute"),
    "copies": ({"transfer": 2, "forward": 1}, "transfer"),
    "waits for other ranks": ({"synchronisation": 4, "backward": 3}, "communication"),
    "is held by checkpoints": ({"checkpoint": 4, "backward": 3}, "checkpoint"),
    "is in callbacks": ({"callbacks": 4, "backward": 3}, "callbacks"),
}


@pytest.mark.parametrize(("parts", "bound"), CASES.values(), ids=CASES)
def test_a_step_is_bound_by_its_largest_part(parts, bound):
    assert bound_by(profile(traced=2, busy_s=8.0, products_s=4.0), {**dict.fromkeys(PARTS, 0.0), **parts}) == bound
    assert bound in SENTENCES


@pytest.mark.parametrize(
    ("busy_s", "products_s", "bound"),
    [(2.9, 2.9, "calls"), (3.1, 3.1, "compute"), (6.0, 3.0, "compute"), (6.0, 2.9, "memory"), (0.0, 0.0, "calls")],
)
def test_the_modules_own_work_is_bound_by_what_takes_most_of_it(busy_s, products_s, bound):
    two_steps = profile(traced=2, busy_s=busy_s, products_s=products_s)
    assert bound_by(two_steps, {**dict.fromkeys(PARTS, 0.0), "backward": 3.0}) == bound


def profile(**facts: Any) -> StepProfile:
    usual = {"device": "cpu", "world_size": 1, "rows": 10, "accumulate": 1, "steps_per_epoch": 50, "traced": 4}
    return StepProfile(**{**usual, "step_s": [1.0] * 4, "phases": {}, **facts})


def test_what_an_exchange_adds_to_a_backward_pass_is_synchronisation():
    phases = {"forward": 4.0, "backward": 12.0, "data": 2.0, "own": 2.0}
    assert parts_of(profile(phases=phases, exchange_s=1.0, checkpoint_s=5.0), {}) == {
        **{"data": 0.5, "transfer": 0.0, "forward": 1.0, "backward": 2.0, "optimizer": 0.0},
        **{"synchronisation": 1.0, "checkpoint": 0.1, "callbacks": 0.5},
    }
    slower_in_the_middle = parts_of(profile(phases=phases, exchange_s=4.0), {})
    assert (slower_in_the_middle["backward"], slower_in_the_middle["synchronisation"]) == (0.0, 3.0)


@pytest.mark.parametrize(
    ("checkpoint", "steps"),
    [
        ({}, 50),
        ({"every_steps": 5, "every_s": None}, 5),
        ({"every_steps": None, "every_s": 10.0}, 20),
        ({"every_steps": 5, "every_s": 10.0}, 5),
        ({"every_steps": None, "every_s": 0.1}, 1),
        ({"every_steps": None, "every_s": "auto"}, 50),
    ],
)
def test_the_steps_between_two_checkpoints(checkpoint, steps):
    assert steps_between(checkpoint, 50, 0.5) == steps


COMPARED = {
    "faster": ([1.0, 1.1, 1.2, 1.1], [0.5, 0.6, 0.5, 0.6], 10, True),
    "slower": ([1.0, 1.1, 1.2, 1.1], [2.0, 2.1, 2.0, 2.1], 10, False),
    "within the spread": ([1.0, 1.1, 1.2, 1.1], [0.9, 1.2, 1.1, 1.0], 10, None),
    "one slow step decides nothing": ([1.0, 1.0, 1.0, 1.0, 90.0], [1.0, 1.0, 1.0, 1.0, 1.0], 10, None),
    "twice the rows in the same time": ([1.0, 1.0], [1.0, 1.0], 20, True),
    "one step each": ([1.0], [0.5], 10, True),
    "equal": ([1.0], [1.0], 10, None),
}


@pytest.mark.parametrize(("before", "after", "rows", "helps"), COMPARED.values(), ids=COMPARED)
def test_a_change_helps_if_the_middle_steps_are_apart(before, after, rows, helps):
    compared = compare(profile(step_s=before), profile(step_s=after, rows=rows))
    assert compared.helps is helps
    assert (compared.gain > 0) is (helps is True) or helps is None


def test_what_checkpoints_hold_counts():
    compared = compare(profile(), profile(), (1.0, 0.0))
    assert (compared.before, compared.after, compared.helps) == (5.0, 10.0, True)
