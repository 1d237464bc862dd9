"""What the records of past runs tell of checkpoints and failures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from data_contracts.executions import ExecutionUsage, GangUsage, NodeUsage
from data_contracts.resolved import Price
from infra.usage import PastTrainings, past_trainings

GPU = Price(machine="gpu", per_hour=1.0, price_date="2026-11-01", pool="gpu")


def gang(generation: int, began: float, ended: str = "done", **changes: Any) -> GangUsage:
    """Two nodes for 100 s, of which 80 s have steps; 4 checkpoints that stopped the steps for 2 s in all."""
    moments = {"started": began, "released": began + 100, "joined": began + 5}
    node = NodeUsage(number=0, working=began + 10, stopped=began + 90, saved_s=2.0, **moments)
    slower = node.model_copy(update={"number": 1, "saved_s": 1.5})
    known: dict[str, Any] = {"stage": "train", "where": "trainings/a-0", "local": False, "nodes": [node, slower]}
    steps = {"first_step": 0, "last_step": 41, "kept_step": 40, "saves": 4}
    return GangUsage(**{**known, **steps, "generation": generation, "ended": ended, **changes})


def execution(*gangs: GangUsage, pipeline: str = "a") -> ExecutionUsage:
    about = {"run_id": "r", "execution": "e", "pipeline": pipeline, "model": "m", "tags": {}, "began": 0.0}
    return ExecutionUsage(prices={"train": GPU}, gangs=list(gangs), **about)


def found(*executions: ExecutionUsage, pool: str = "gpu") -> dict[str, Any]:
    none, some = asdict(PastTrainings()), asdict(past_trainings(executions, "a", pool))
    return {name: value for name, value in some.items() if value != none[name]}


ONE = {"node_seconds": 200.0, "saves": 4, "stalled_s": 2.0, "steps": 40, "stepping_s": 80.0}


@pytest.mark.parametrize("cause", ["done", "preempted", "cancelled", "user_code", "diverged", "gang_incomplete"])
def test_what_no_machine_is_to_blame_for_is_no_failure(cause: str) -> None:
    assert found(execution(gang(0, 0, cause))) == ONE


@pytest.mark.parametrize("cause", ["node_lost", "hung", "storage", "killed", "corrupt"])
def test_failures_and_the_time_until_the_next_step(cause: str) -> None:
    later = gang(1, 130, steps_per_epoch=7)
    two = {name: 2 * value for name, value in ONE.items()}
    # The nodes were released at 100 and the next step was seen at 140.
    failed = {"failures": 1, "restarts": 1, "restarting_s": 40.0, "steps_per_epoch": 7}
    assert found(execution(gang(0, 0, cause)), execution(later, gang(1, 130))) == {**two, **failed}, "each counts once"


def test_other_pools_and_other_pipelines() -> None:
    assert found(execution(gang(0, 0, "hung", local=True))) == {k: v for k, v in ONE.items() if k != "node_seconds"}
    assert found(execution(gang(0, 0, "hung", local=True), pipeline="b"), pool="") == {
        "failures": 1,
        "node_seconds": 200.0,
    }
    assert found(execution(gang(0, 0, "hung"), pipeline="b")) == {"failures": 1, "node_seconds": 200.0}
    assert found(execution(gang(0, 0, stage="verify"))) == {}
    assert found(execution(gang(0, 0, ""))) == {}, "a sum of an earlier Trainwright"


def test_records_without_steps_or_with_a_clock_that_was_set_back() -> None:
    never = NodeUsage(number=0, started=50.0, released=40.0)
    assert found(execution(gang(0, 0, "node_lost", nodes=[never], saves=0, last_step=0))) == {"failures": 1}
    assert found(execution(gang(0, 0, "node_lost", nodes=[], saves=0)))["failures"] == 1
