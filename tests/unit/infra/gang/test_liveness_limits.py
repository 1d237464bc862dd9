"""The limits of a generation's liveness, each to the second: what is not a hang yet, and what is one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from data_contracts.errors import Hung
from infra.gang.members import Liveness
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
    assert found is not None
    assert found.message.endswith("14 at step 1, 15 at step 1).")
