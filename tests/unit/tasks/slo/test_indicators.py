"""What of a run is good, by what an objective measures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from data_contracts.rules import Objective
from tasks.costs.charges import charges
from tasks.slo import LedgerRun, left_out, points_of
from tests.support.ledger_runs import generation, usage

NOW = datetime(2026, 11, 26, 6, tzinfo=UTC)
BEGAN = NOW - timedelta(hours=5)


def run(verdict: str = "promoted", hours: float = 1.0, **changes: Any) -> LedgerRun:
    began = BEGAN.timestamp()
    known: dict[str, Any] = {"run_id": "r1", "pipeline": "orders", "began": began, "ended": began + hours * 3600}
    return LedgerRun(verdict=verdict, **{**known, **changes})


def counted(measure: str, *runs: LedgerRun, **more: Any) -> tuple[float, float]:
    objective = Objective.model_validate({"measure": measure, "target": 0.9, **more})
    points = points_of(objective, runs, NOW.timestamp())
    return sum(point.good for point in points), sum(point.total for point in points)


@pytest.mark.parametrize(
    ("verdict", "cause", "good", "why"),
    [
        ("promoted", "", (1, 1), None),
        ("canary", "", (1, 1), None),
        ("unchanged", "", (1, 1), None),
        ("not_promoted", "gate_not_met", (1, 1), None),
        ("rejected", "contract_rejected", (1, 1), None),
        ("failed", "node_lost", (0, 1), None),
        ("failed", "storage", (0, 1), None),
        ("failed", "corrupt", (0, 1), None),
        ("failed", "internal", (0, 1), None),
        ("failed", "of a later version", (0, 1), None),
        ("died", "crashed", (0, 1), None),
        ("failed", "user_code", (0, 0), "user"),
        ("failed", "out_of_memory", (0, 0), "user"),
        ("failed", "diverged", (0, 0), "user"),
        ("failed", "spec", (0, 0), "user"),
        ("cancelled", "cancelled", (0, 0), "person"),
        ("over_budget", "over_budget", (0, 0), "person"),
        ("running", "", (0, 0), "open"),
        ("waiting", "waiting", (0, 0), "open"),
        ("unknown", "", (0, 0), "open"),
    ],
)
def test_success_by_who_is_to_blame(verdict: str, cause: str, good: tuple[int, int], why: str | None) -> None:
    one = run(verdict, cause=cause)
    assert counted("success", one) == good
    objective = Objective(measure="success", target=0.9)
    assert left_out(objective, [one]) == ({} if why is None else {why: 1})


@pytest.mark.parametrize(
    ("one", "good"),
    [
        (run(hours=2), (1, 1)),
        (run(hours=2.001), (0, 1)),
        (run(hours=4, waited_s=2 * 3600), (1, 1)),
        (run("failed", hours=9, cause="node_lost"), (0, 0)),
        (run("running", hours=1, ended=NOW.timestamp()), (0, 1)),  # began five hours ago
        (run("running", began=NOW.timestamp() - 60, ended=NOW.timestamp()), (0, 0)),
        (run("waiting", hours=4), (0, 0)),
        (run(hours=-1), (1, 1)),  # a clock that was set back
    ],
)
def test_time_to_complete(one: LedgerRun, good: tuple[int, int]) -> None:
    assert counted("time", one, within="2h") == good


@pytest.mark.parametrize(
    ("changes", "in_store", "good"),
    [
        ({"saves": 0}, (), (0, 0)),
        ({"saves": 4}, (), (4, 4)),
        ({"saves": 0}, ((50, False), (100, False)), (2, 2)),  # the last one of a training stops no step
        ({"saves": 2}, ((50, False), (100, True)), (1, 2)),
        ({"saves": 2, "ended": "node_lost", "kept_step": 50}, ((50, False), (90, False)), (1, 2)),
        ({"saves": 2, "ended": "node_lost", "kept_step": 0}, (), (0, 2)),
        ({"saves": 0, "ended": "node_lost", "kept_step": 0}, (), (0, 0)),
        ({"saves": 4, "stage": "evaluate"}, (), (0, 0)),
        ({"saves": 4, "ended": ""}, (), (0, 0)),
    ],
)
def test_checkpoints(changes: dict[str, Any], in_store: tuple[Any, ...], good: tuple[int, int]) -> None:
    gang = generation(BEGAN, NOW, **changes)
    one = run(gangs=[gang], checkpoints={(gang.where, 0): in_store})
    assert counted("checkpoints", one) == good


def test_a_checkpoint_that_the_next_conductor_committed_is_good() -> None:
    gangs = [
        generation(BEGAN, NOW, 0, saves=1, ended="killed", kept_step=0, last_step=60),
        generation(BEGAN, NOW, 1, saves=0, first_step=50),
    ]
    one = run(gangs=gangs, checkpoints={(gangs[0].where, 0): ((50, False),)})
    assert counted("checkpoints", one) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({"number": 0}, (0, 0)),
        ({"number": 1, "first_step": 50}, (1, 1)),
        ({"number": 1, "first_step": 100, "last_step": 100}, (1, 1)),  # done at once
        ({"number": 1, "first_step": 50, "last_step": 60, "ended": "hung"}, (1, 1)),
        ({"number": 1, "first_step": 50, "last_step": 50, "ended": "hung"}, (0, 1)),
        ({"number": 1, "first_step": 50, "last_step": 50, "ended": "user_code"}, (0, 0)),
        ({"number": 1, "first_step": 50, "last_step": 50, "ended": "cancelled"}, (0, 0)),
    ],
)
def test_resumes(changes: dict[str, Any], good: tuple[int, int]) -> None:
    assert counted("resumes", run(gangs=[generation(BEGAN, NOW, **changes)])) == good


def test_a_generation_that_two_runs_recorded_counts_once() -> None:
    gang = generation(BEGAN, NOW, 1, first_step=50)
    assert counted("resumes", run(gangs=[gang]), run(run_id="r2", gangs=[gang])) == (1, 1)


def test_goodput_is_the_work_of_all_node_seconds() -> None:
    ended = BEGAN + timedelta(seconds=100)
    spent = charges(usage("r1", BEGAN, ended, generation(BEGAN, ended)))
    work = sum(one.node_seconds for one in spent if one.cause == "work")
    good, total = counted("goodput", run(charges=spent))
    assert (good, total) == (pytest.approx(work), pytest.approx(sum(one.node_seconds for one in spent)))
    assert 0 < good < total
