"""What bounds a step, as a table of its parts; and when a change counts as faster."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.messages.commands import StepProfile
from tasks.profile import PARTS, SENTENCES, Bound, Roofline, bound_by, compare, parts_of, roofline, steps_between

BUSY, CALLS = Roofline(0.8, 0.4), Roofline(0.1, 0.2)
CASES: dict[str, tuple[dict[str, float], Roofline | None, Bound]] = {
    "waits longest for data": ({"data": 5, "forward": 1, "backward": 2, "optimizer": 1}, BUSY, "data"),
    "waits less than it works": (
        {"data": 3, "forward": 1, "backward": 2, "optimizer": 1},
        BUSY,
        "compute",
    ),
    "exactly as long": ({"data": 4, "forward": 1, "backward": 2, "optimizer": 1}, BUSY, "compute"),
    "copies": ({"transfer": 2, "forward": 1}, BUSY, "transfer"),
    "waits for other ranks": ({"synchronisation": 4, "backward": 3}, BUSY, "communication"),
    "is held by checkpoints": ({"checkpoint": 4, "backward": 3}, BUSY, "checkpoint"),
    "is in callbacks": ({"callbacks": 4, "backward": 3}, BUSY, "callbacks"),
    "moves bytes": ({"backward": 3}, Roofline(0.3, 0.9), "memory"),
    "makes many calls": ({"backward": 3}, CALLS, "calls"),
    "was not counted": ({"backward": 3}, None, "unknown"),
    "has no time": ({}, BUSY, "unknown"),
    "has no number": ({"data": float("nan"), "forward": 1}, BUSY, "unknown"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_bound_by_its_largest_part_or_by_what_limits_the_work(case):
    parts, roof, bound = CASES[case]
    assert bound_by({**dict.fromkeys(PARTS, 0.0), **parts}, roof) == bound
    assert bound in SENTENCES


def profile(**facts: Any) -> StepProfile:
    usual = {"device": "cpu", "world_size": 1, "rows": 10, "accumulate": 1, "steps_per_epoch": 50}
    return StepProfile(**{**usual, "step_s": [1.0] * 4, "phases": {}, **facts})


def test_what_an_exchange_adds_to_a_backward_pass_is_synchronisation():
    phases = {"forward": 4.0, "backward": 12.0, "data": 2.0, "own": 2.0}
    parts = parts_of(profile(phases=phases, exchange_s=1.0, checkpoint_s=5.0), {})
    assert parts == {
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


def test_the_roofline_is_a_share_of_the_modules_own_time():
    counted = profile(flops=30.0, bytes=20.0, peak_flops=100.0, peak_bytes=10.0)
    parts = {**dict.fromkeys(PARTS, 9.0), "forward": 1.0, "backward": 2.0, "optimizer": 1.0}
    assert roofline(counted, parts) == Roofline(0.075, 0.5)
    assert roofline(profile(), parts) is None
    assert roofline(counted, dict.fromkeys(PARTS, 0.0)) is None


COMPARED = {
    "faster": ([1.0, 1.1, 1.2, 1.1], [0.5, 0.6, 0.5, 0.6], 10, True),
    "slower": ([1.0, 1.1, 1.2, 1.1], [2.0, 2.1, 2.0, 2.1], 10, False),
    "within the spread": ([1.0, 1.1, 1.2, 1.1], [0.9, 1.2, 1.1, 1.0], 10, None),
    "one slow step decides nothing": ([1.0, 1.0, 1.0, 1.0, 90.0], [1.0, 1.0, 1.0, 1.0, 1.0], 10, None),
    "twice the rows in the same time": ([1.0, 1.0], [1.0, 1.0], 20, True),
    "one step each": ([1.0], [0.5], 10, True),
    "equal": ([1.0], [1.0], 10, None),
}


@pytest.mark.parametrize("case", COMPARED)
def test_a_change_helps_if_the_middle_steps_are_apart(case):
    before, after, rows, helps = COMPARED[case]
    compared = compare(profile(step_s=before), profile(step_s=after, rows=rows))
    assert compared.helps is helps
    assert (compared.gain > 0) is (helps is True) or helps is None


def test_what_checkpoints_hold_counts():
    compared = compare(profile(), profile(), (1.0, 0.0))
    assert (compared.before, compared.after, compared.helps) == (5.0, 10.0, True)
