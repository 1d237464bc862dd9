"""The limits of a generation's liveness, each to the second: what is not a hang yet, and what is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import Hung
from data_contracts.handoffs import Checkpoint, Ref
from infra.gang.members import Liveness
from infra.gang.remote_job import report_of
from tests.support.liveness import report, train


@pytest.fixture
def clock(liveness_clock: SimpleNamespace) -> SimpleNamespace:
    return liveness_clock


# What both ranks do, the process state of rank 1, and the seconds at which rank 1 is not hung yet.
LIMITS = [
    ("forward", "", 45), ("between", "", 45), ("collective", "T", 15), ("forward", "T", 15),
    ("checkpoint", "", 1800), ("hooks", "", 1800), ("starting", "", 1800), ("collective", "", 45), ("backward", "", 45),
]  # fmt: skip


@pytest.mark.parametrize(("place", "state", "limit_s"), LIMITS)
def test_a_limit_is_kept_to_the_second(
    place: str, state: str, limit_s: int, liveness: Liveness, clock: SimpleNamespace
) -> None:
    train(liveness, clock, 5)
    liveness.hear(report(1, 5, place, state=state), "node 1 (b)")
    liveness.hear(report(0, 5, "collective"), "node 0 (a)")
    clock.now += limit_s
    assert liveness.stuck([], 1) is None
    clock.now += 1
    found = liveness.stuck([], 1)
    assert isinstance(found, Hung)
    if place in ("collective", "backward") and not state:
        where = "(rank 0 at step 5, 1 at step 5)"
        assert found.message == f"All ranks wait for each other inside a collective for {limit_s + 1} s {where}."
        assert found.details == {"step": 5}
        assert "a link between" not in found.remedy
        across = liveness.stuck([], 2)
        assert across is not None
        assert "again, a link between their nodes carries nothing, or the module" in across.remedy
    else:
        what = "is stopped (SIGSTOP)" if state else f"stands still ({place})"
        assert found.message == f"Rank 1 on node 1 (b) {what} at step 5 and has made no progress for {limit_s + 1} s."
        assert found.details == {"rank": 1, "step": 5}


def test_a_remote_job_that_no_longer_polls_is_hung_like_a_rank(liveness: Liveness, clock: SimpleNamespace) -> None:
    for polls in range(1, 4):
        clock.now += 1
        liveness.hear(report_of(0, "training", polls), "node 0 (a)")
    clock.now += 45
    assert liveness.stuck([], 1) is None
    clock.now += 1
    assert isinstance(liveness.stuck([], 1), Hung)


def test_the_limits_before_the_first_step_and_of_silence_are_kept_to_the_second(
    liveness: Liveness, clock: SimpleNamespace
) -> None:
    clock.now += 1800
    assert liveness.stuck([], 1) is None
    clock.now += 1
    found = liveness.stuck([], 1)
    assert found is not None
    assert found.message == "No rank has made progress for 1801 s."
    liveness.paused()
    liveness.hear(report(0, 0), "node 0 (a)")
    clock.now += 1800
    assert liveness.stuck([], 1) is None
    clock.now += 1
    assert isinstance(liveness.stuck([], 1), Hung)


def test_ten_times_the_slowest_step_is_never_more_than_a_stall(liveness: Liveness, clock: SimpleNamespace) -> None:
    train(liveness, clock, 3, each_s=4)
    clock.now += 45
    assert liveness.stuck([], 1) is None, "40 s would be ten steps"
    train(liveness, clock, 8, each_s=400)
    clock.now += 1800
    assert liveness.stuck([], 1) is None
    clock.now += 1
    assert isinstance(liveness.stuck([], 1), Hung)


def test_of_several_that_are_behind_the_first_to_stop_is_named(liveness: Liveness, clock: SimpleNamespace) -> None:
    for rank in range(4):
        liveness.hear(report(rank, 4), "node 0 (a)")
    for rank in (3, 2, 1):
        clock.now += 1
        liveness.hear(report(rank, 5), "node 0 (a)")
    clock.now += 100
    found = [liveness.stuck([], 1)]
    liveness.ranks.pop(0)
    found.append(liveness.stuck([], 1))
    liveness.ranks[1].state = "T"
    found.append(liveness.stuck([], 1))
    assert [one and one.details for one in found] == [
        {"rank": 0, "step": 4}, {"rank": 3, "step": 5}, {"rank": 1, "step": 5},
    ]  # fmt: skip


def test_a_link_is_cut_after_eight_seconds_without_progress(liveness: Liveness, clock: SimpleNamespace) -> None:
    train(liveness, clock, 5, place="backward")
    clock.now += 8
    assert liveness.stuck(["between a and b", "between b and c"], 2) is None
    clock.now += 0.5
    found = liveness.stuck(["between a and b", "between b and c"], 2)
    assert found is not None
    assert found.message.startswith("The link between a and b; the link between b and c is cut, while ")
    assert found.details == {"links": ["between a and b", "between b and c"]}


# Seconds of own work per micro-batch of two ranks, and what is said of them after so many steps.
BORDERS = [
    ((0.5, 5.0), 5, ""),
    ((0.5, 5.5), 4, ""),
    ((0.5, 5.5), 5, "its own work takes 5.5 s per micro-batch, that of the others 0.5 s; all wait for it"),
    ((0.0, 0.0195), 5, ""),
    ((0.0, 0.02), 5, "its own work takes 0.02 s per micro-batch, that of the others 0 s; all wait for it"),
]


@pytest.mark.parametrize(("each", "steps", "said"), BORDERS)
def test_a_straggler_is_told_by_ten_times_a_fiftieth_of_a_second_and_five_steps(
    each: tuple[float, float], steps: int, said: str, liveness: Liveness
) -> None:
    for number, own_s in enumerate(each):
        liveness.hear(report(number, steps, own_s=own_s * steps), f"node {number}")
    sentence = liveness.straggler()
    assert sentence == (f"rank 1 on node 1 is a straggler: {said}" if said else "")
    assert liveness.straggler() == "", "it is said once"


def test_a_straggler_is_judged_by_its_last_steps(liveness: Liveness) -> None:
    for step, own_s in ((5, 50.0), (9, 50.0), (10, 50.5)):
        liveness.hear(report(0, step, own_s=step * 0.1), "node 0")
        liveness.hear(report(1, step, own_s=own_s), "node 1")
    assert liveness.straggler() == "", "the first five were slow, the last five are not"
    liveness.hear(report(2, 3, own_s=90.0), "node 2")
    liveness.hear(report(1, 15, own_s=99.0), "node 1")
    assert liveness.straggler() == "", "not before every rank has taken five steps"


def test_a_step_of_several_micro_batches_is_judged_by_the_micro_batch(liveness: Liveness) -> None:
    for number, own_s in enumerate((0.5, 5.5)):
        liveness.hear(report(number, 3, own_s=own_s * 6, steps=6), f"node {number}")
    assert "takes 5.5 s per micro-batch, that of the others 0.5 s" in liveness.straggler()


def test_a_checkpoint_more_is_progress(liveness: Liveness, clock: SimpleNamespace) -> None:
    ref = Ref(uri="trainings/t-0/checkpoints/1-g0", id="1" * 64, seal="2" * 64)
    fields: dict[str, Any] = {"key": "t", "training": "trainings/t-0", "epoch": 0, "generation": 0, "world_size": 2}
    made = Checkpoint(ref=ref, step=5, **fields)
    for count in (1, 2):
        clock.now += 40
        liveness.hear(report(0, 5, checkpoints=[made] * count), "node 0 (a)")
        assert liveness.still_s == 0
    clock.now += 40
    liveness.hear(report(0, 5, checkpoints=[made] * 2), "node 0 (a)")
    assert liveness.still_s == 40


def test_a_deadlock_names_the_first_sixteen_ranks(liveness: Liveness, clock: SimpleNamespace) -> None:
    for rank in range(17):
        liveness.hear(report(rank, 1, "collective"), "node 0 (a)")
    clock.now += 46
    found = liveness.stuck([], 1)
    assert found is not None
    assert found.message.endswith("14 at step 1, 15 at step 1).")


def test_a_rank_alone_is_no_straggler(liveness: Liveness) -> None:
    liveness.hear(report(0, 5, own_s=500.0), "node 0")
    assert liveness.straggler() == ""


def test_a_straggler_is_named_with_the_pace_of_its_last_steps(liveness: Liveness) -> None:
    for step, own_s in ((5, 0.5), (10, 25.5)):
        liveness.hear(report(0, step, own_s=step * 0.1), "node 0")
        liveness.hear(report(1, step, own_s=own_s), "node 1")
    assert "its own work takes 5 s per micro-batch, that of the others 0.1 s" in liveness.straggler()
