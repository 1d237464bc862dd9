"""What records of earlier runs say: how fast they trained, how long stages took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.executions import StageUsage
from data_contracts.resolved import Price
from tasks.estimates.earlier_runs import Past, add
from tests.unit.tasks.costs.test_charges import BEGAN, execution, gang, node

RESOLVED: Any = SimpleNamespace(
    run_id="r1",
    price=Price(machine="gpu", per_hour=36.0, price_date="2026-01-01", devices=2),
    spec={"train": {"strategy": "ddp", "devices": 2, "global_batch_size": 8}},
    lightning={},
    files=[SimpleNamespace(bytes=100), SimpleNamespace(bytes=50)],
)


def stage(name: str, began: float, ended: float, status: Any = "ran") -> StageUsage:
    return StageUsage(name=name, began=BEGAN + began, ended=BEGAN + ended, status=status)


STAGES = [stage("shard", 1, 11), stage("train", 11, 71)]
# Eleven steps, of which ten lie between the first that was seen and the last, in 40 seconds.
STEPS = {"met": BEGAN + 15, "last_step": 10, "samples": 80, "steps_per_epoch": 5}


def read(one: Any) -> Past:
    past = Past()
    add(past, RESOLVED, [one])
    return past


def test_a_training_and_the_stages_of_a_run() -> None:
    past = read(execution(gangs=[gang(0, node(0, 12, 13, 20, 60, 63), **STEPS)], stages=STAGES))
    [training] = past.trainings
    assert (training.rate, training.overhead_s, training.epoch_samples) == (pytest.approx(2.0), pytest.approx(20.0), 40)
    assert (training.machine, training.nodes, training.devices) == ("gpu", 1, 2)
    took = {one.stage: one.seconds for one in past.stages}
    assert took == {"shard": pytest.approx(10), "train": pytest.approx(60), "": pytest.approx(30)}
    assert {one.raw_bytes for one in past.stages} == {150}


def test_the_first_step_is_part_of_the_start() -> None:
    measured = gang(0, node(0, 12, 13, 20, 60, 63), **STEPS, stepping_s=18.0)
    [training] = read(execution(gangs=[measured], stages=STAGES)).trainings
    # Nine steps of 8 samples follow the first: 2 s each. The stage took 60 s, and ten such steps take 20 s.
    assert (training.rate, training.overhead_s) == (pytest.approx(4.0), pytest.approx(40.0))


NONE = {
    "a generation that failed": {"ended": "node_lost"},
    "fewer than two steps": {"last_step": 1},
    "no step was seen": {"nodes": [node(0, 12, 13, 20, 60, 63, working=None, stopped=None)]},
}


@pytest.mark.parametrize("case", NONE)
def test_what_gives_no_rate(case: str) -> None:
    launched = gang(0, node(0, 12, 13, 20, 60, 63), **STEPS).model_copy(update=NONE[case])
    assert read(execution(gangs=[launched], stages=STAGES)).trainings == []


def test_a_stage_that_failed_or_was_reused_says_nothing() -> None:
    stages = [stage("shard", 1, 2, "reused"), stage("train", 2, 3, "failed")]
    assert [one.stage for one in read(execution(stages=stages)).stages] == [""]


def test_times_that_run_backward_are_no_time() -> None:
    past = read(execution(gangs=[gang(0, node(0, 90, 13, 20, 60, 63))], stages=[stage("shard", 11, 1)]))
    assert past.stages[0].seconds == 0


def test_two_generations_say_little_of_an_uninterrupted_training() -> None:
    first = gang(0, node(0, 0, 1, 2, 12, 13), ended="preempted", kept_step=4)
    assert read(execution(gangs=[first, gang(1, node(0, 15, 16, 20, 26, 26))])).trainings == []
