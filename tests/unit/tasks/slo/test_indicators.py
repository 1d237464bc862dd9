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
    points = points_of(Objective.model_validate({"measure": measure, "target": 0.9, **more}), runs, NOW.timestamp())
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
    assert left_out(Objective(measure="success", target=0.9), [one]) == ({} if why is None else {why: 1})


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


def test_goodput_is_the_work_of_all_node_seconds() -> None:
    ended = BEGAN + timedelta(seconds=100)
    spent = charges(usage("r1", BEGAN, ended, generation(BEGAN, ended)))
    work = sum(one.node_seconds for one in spent if one.cause == "work")
    good, total = counted("goodput", run(charges=spent))
    assert (good, total) == (pytest.approx(work), pytest.approx(sum(one.node_seconds for one in spent)))
    assert 0 < good < total
