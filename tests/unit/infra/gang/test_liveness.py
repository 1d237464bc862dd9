"""Who hangs, who is slow, and which link is cut, by what the ranks say of themselves; nobody who waits is blamed."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import Hung, NodeLost
from data_contracts.messages.gang import RankReport
from infra.gang.members import Liveness
from tests.support.liveness import hear, report, train
from tests.support.scripted_nodes import unstored
from tests.support.slopes import grows_linearly

# What each rank says from then on; the seconds in which it is found; who is blamed.
HANGS = [
    (report(0, 5, "collective"), report(1, 5, "forward"), 46, "Rank 1 on node 1 (b) stands still (forward) at step 5"),
    (report(0, 5, "fetching"), report(1, 5, "backward"), 46, "Rank 0 on node 0 (a) stands still (fetching) at step 5"),
    (report(0, 5, "collective"), report(1, 5, "between"), 46, "Rank 1 on node 1 (b) stands still (between) at step 5"),
    (
        report(0, 5, "collective"),
        report(1, 5, "backward", state="T"),
        16,
        "Rank 1 on node 1 (b) is stopped (SIGSTOP) at step 5",
    ),
    (report(0, 5, "forward"), report(1, 4, "forward"), 46, "Rank 1 on node 1 (b) stands still (forward) at step 4"),
    (report(0, 5, "collective"), report(1, 5, "forward", state="T"), 16, "Rank 1 on node 1 (b) is stopped (SIGSTOP)"),
    (report(0, 5, "collective"), report(1, 5, "collective", state="T"), 16, "Rank 1 on node 1 (b) is stopped"),
    (report(0, 5, "collective"), report(1, 5, "hooks"), 1801, "Rank 1 on node 1 (b) stands still (hooks)"),
    (report(0, 5, "collective"), report(1, 5, "starting"), 1801, "Rank 1 on node 1 (b) stands still (starting)"),
    (report(0, 5, "collective"), report(1, 5, "collective"), 46, "All ranks wait for each other inside a collective"),
    (report(0, 5, "collective"), report(1, 5, "checkpoint"), 1801, "Rank 1 on node 1 (b) stands still (checkpoint)"),
    (report(0, 5, "checkpoint"), report(1, 5, "checkpoint", state="T"), 16, "Rank 1 on node 1 (b) is stopped"),
    (report(0, 5, "collective"), report(1, 5, "backward"), 46, "All ranks wait for each other inside a collective for"),
]


@pytest.mark.parametrize(("zero", "one", "within_s", "message"), HANGS)
def test_the_rank_that_stands_still_in_its_own_work_is_named(
    zero: RankReport, one: RankReport, within_s: int, message: str, liveness: Liveness, clock: SimpleNamespace
) -> None:
    train(liveness, clock, 5)
    hear(liveness, zero, one)
    for _ in range(within_s - 1):
        clock.now += 1
        # Heartbeats come all the while: a process that lives is no progress.
        hear(liveness, zero, one)
        assert liveness.stuck([], 2) is None, f"after {clock.now - 1005:g} s"
    clock.now += 1
    found, on_one_node = liveness.stuck([], 2), liveness.stuck([], 1)
    assert isinstance(found, Hung)
    assert found.message.startswith(message)
    if message.startswith("All"):
        assert found.message.endswith(f" for {within_s} s (rank 0 at step 5, 1 at step 5).")
        assert found.details == {"step": 5}
        link = "again, a link between their nodes carries nothing, or the module"
        assert (link in found.remedy, "a link between" in on_one_node.remedy) == (True, False)
    else:
        # A node that is named is counted, and left out the second time.
        rank = int(message.split()[1])
        assert found.details == {"rank": rank, "step": (zero, one)[rank].step}
        assert found.message.endswith(f" and has made no progress for {within_s} s.")


def test_slow_steps_are_no_hang_and_neither_is_a_first_one(liveness: Liveness, clock: SimpleNamespace) -> None:
    hear(liveness, report(0, 0), report(1, 0))
    clock.now += 1700
    assert liveness.stuck([], 1) is None, "compiling, or reading the first batch"
    train(liveness, clock, 3, each_s=20)
    clock.now += 199
    assert liveness.stuck([], 1) is None, "ten times the slowest step"
    clock.now += 2
    assert isinstance(liveness.stuck([], 1), Hung)


def test_a_long_checkpoint_does_not_count_as_a_slow_step(liveness: Liveness, clock: SimpleNamespace) -> None:
    train(liveness, clock, 5)
    train(liveness, clock, 5, place="checkpoint")
    clock.now += 500
    hear(liveness, report(0, 6), report(1, 6))
    clock.now += 46
    assert isinstance(liveness.stuck([], 1), Hung)


def test_a_rank_that_is_done_is_not_waited_for(liveness: Liveness, clock: SimpleNamespace) -> None:
    train(liveness, clock, 5)
    for step in range(6, 100):
        clock.now += 10
        hear(liveness, report(0, 5, phase="done"), report(1, step))
        assert liveness.stuck([], 2) is None


def test_silence_while_the_store_is_away_counts_for_nothing(liveness: Liveness, clock: SimpleNamespace) -> None:
    train(liveness, clock, 5)
    clock.now += 600
    liveness.paused()
    assert liveness.stuck([], 1) is None
    clock.now += 46
    assert isinstance(liveness.stuck([], 1), Hung)


def test_a_cut_link_is_told_from_a_hang(liveness: Liveness, clock: SimpleNamespace) -> None:
    train(liveness, clock, 5, place="backward")
    link = ["between node 0 (a) and node 1 (b)"]
    clock.now += 7
    assert liveness.stuck(link, 2) is None
    clock.now += 2
    found = liveness.stuck(link, 2)
    assert isinstance(found, NodeLost)
    assert found.message == (
        "The link between node 0 (a) and node 1 (b) is cut, while the heartbeats of both ends arrive."
    )


def test_a_link_that_training_does_not_need_is_left_alone(liveness: Liveness, clock: SimpleNamespace) -> None:
    for _ in range(10):
        train(liveness, clock, 5)
        assert liveness.stuck(["between node 0 (a) and node 1 (b)"], 2) is None


def test_ranks_of_which_nothing_is_heard_are_hung_too(liveness: Liveness, clock: SimpleNamespace) -> None:
    clock.now += 1801
    found = liveness.stuck([], 1)
    assert found.message.startswith("No rank has made progress")


# Seconds of own work per micro-batch of three ranks; the straggler.
PACES = [
    ((0.1, 0.1, 1.2), 2),
    ((0.1, 0.1, 0.9), None),
    ((0.0001, 0.0001, 0.01), None),
    ((2.0, 0.1, 0.12), 0),
    ((1.0, 1.0, 0.01), None),
]


@pytest.mark.parametrize(("each", "rank"), PACES)
def test_a_straggler_is_named_once_by_the_ranks_own_time(
    each: tuple[float, ...], rank: int | None, liveness: Liveness, clock: SimpleNamespace
) -> None:
    said = []
    for step in range(1, 31):
        clock.now += max(each)
        for number, own_s in enumerate(each):
            liveness.hear(report(number, step, own_s=own_s * step), f"node {number} (host{number})")
        said.append(liveness.straggler())
    found = [sentence for sentence in said if sentence]
    assert len(found) == (0 if rank is None else 1)
    if rank is not None:
        assert found[0].startswith(f"rank {rank} on node {rank} (host{rank}) is a straggler: its own work takes ")
    assert liveness.stuck([], 3) is None, "slow is not hung"


def waiting(clock: SimpleNamespace, ranks: int, **more: Any) -> Liveness:
    """Ranks of which none is behind, but all have to be judged."""
    liveness = Liveness(hang_s=45, stall_s=1800, stopped_s=15)
    for step in (1, 5, 10):
        clock.now += 1
        for rank in range(ranks):
            liveness.hear(report(rank, step, own_s=step * (0.03 + rank % 7 / 1000), **more), f"node {rank}")
    return liveness


def test_judging_grows_with_the_ranks_and_not_with_their_square(clock: SimpleNamespace) -> None:
    assert grows_linearly(lambda ranks: functools.partial(waiting(clock, ranks).stuck, [], ranks))
    assert grows_linearly(lambda ranks: waiting(clock, ranks).straggler)
    assert grows_linearly(lambda ranks: functools.partial(waiting(clock, ranks, place="collective").stuck, [], ranks))


def test_a_checkpoint_beyond_those_that_are_named_is_progress(liveness: Liveness, clock: SimpleNamespace) -> None:
    named = [unstored(step) for step in range(16)]
    for count in (16, 17):
        clock.now += 1
        liveness.hear(report(0, 5, checkpoints=named, num_checkpoints=count), "node 0 (a)")
        assert liveness.ranks[0].moved == clock.now


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


def test_a_deadlock_names_the_first_sixteen_ranks(liveness: Liveness, clock: SimpleNamespace) -> None:
    for rank in range(17):
        liveness.hear(report(rank, 1, "collective"), "node 0 (a)")
    clock.now += 46
    found = liveness.stuck([], 1)
    assert found.message.endswith("14 at step 1, 15 at step 1).")
