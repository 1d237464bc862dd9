"""A run's metrics follow its events: stages, generations, heartbeats, checkpoints and waiting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.executions import ExecutionUsage, GangUsage, NodeUsage
from data_contracts.messages.gang import Heartbeat, Launch, RankMeasures, RankReport
from data_contracts.resolved import Price
from infra.processes.this_process import now_s
from tasks.run.progress import GangLaunched, GangReleased, NodeHeard, StageBegan, TrainingProgress
from tasks.run.run import Run
from tasks.telemetry import WatchedRun
from tests.support.clocks import Clock
from tests.support.runs import make_run


@pytest.fixture
def clock() -> Clock:
    return Clock()


def at_work(run: Run) -> Run:
    """The run, with a meter that says that it began now."""
    price = Price(machine="here", per_hour=3.6, price_date="2026-01-01")
    usage = ExecutionUsage(
        run_id="r1", execution="e", pipeline="tiny", model="tiny", tags={}, prices={"here": price}, began=now_s()
    )
    run.live.meter = SimpleNamespace(so_far=usage)  # type: ignore[assignment]
    return run


@pytest.fixture
def watched(clock: Clock) -> WatchedRun:
    return WatchedRun(at_work(make_run()), clock)


def of(watched: WatchedRun) -> dict[tuple[str, ...], Any]:
    return {(one.name, *one.labels): one.value for one in watched.samples()}


def restarts(watched: WatchedRun) -> dict[str, int]:
    """The causes that occurred, of those that are shown."""
    return {key[1]: value for key, value in of(watched).items() if key[0] == "restarts_total" and value}


def usage(generation: int, **changes: Any) -> GangUsage:
    began = now_s() - 10
    node = NodeUsage(number=0, started=began, released=began + 10)
    known: dict[str, Any] = {"stage": "", "where": "trainings/k-0", "local": True, "ended": ""}
    return GangUsage(generation=generation, nodes=[node], **{**known, **changes})


def launched(generation: int, counted: list[int] | None = None) -> GangLaunched:
    def used() -> GangUsage:
        if counted is not None:
            counted.append(generation)
        return usage(generation)

    return GangLaunched(Launch(training="trainings/k-0", generation=generation, nodes=1, devices=1), used)


def test_a_generation_is_followed_and_the_next_begins_anew(watched: WatchedRun) -> None:
    watched(launched(0))
    watched(NodeHeard(0, Heartbeat(ranks=[RankReport(rank=0, step=7)])))
    found = of(watched)
    assert (found["generation",], found["gang_nodes",], found["step",]) == (0, 1, 7)
    watched(GangReleased(usage(0, ended="node_lost")))
    assert (of(watched)["restarts_total", "node_lost"], of(watched)["gang_nodes",]) == (1, 0)
    watched(launched(1))
    assert ("step",) not in of(watched)
    watched(GangReleased(usage(1, ended="done")))
    assert restarts(watched) == {"node_lost": 1}


def test_causes_that_are_retried_and_failed_saves_are_counted_from_0(watched: WatchedRun) -> None:
    begun = of(watched)
    shown = {key[1] for key in begun if key[0] == "restarts_total"}
    assert shown >= {"node_lost", "hung", "preempted", "storage", "diverged", "out_of_memory", "gang_incomplete"}
    assert ({begun["restarts_total", cause] for cause in shown}, begun["checkpoint_failures_total",]) == ({0}, 0)


def test_failed_saves_and_the_newest_checkpoint_outlive_their_generation(watched: WatchedRun) -> None:
    failed = Heartbeat(ranks=[RankReport(rank=0, step=7, measured=RankMeasures(failed_saves=1))])
    watched(StageBegan("train", "tiny", "r1"))
    assert ("training_start_time_seconds",) not in of(watched)
    heard = NodeHeard(0, failed)
    for event in (launched(0), heard, heard, TrainingProgress("training", checkpoint_step=10)):
        watched(event)
    before = of(watched)
    watched(launched(1))
    watched(NodeHeard(0, Heartbeat(ranks=[RankReport(rank=0, step=7, measured=RankMeasures())])))
    after = of(watched)
    for name in ("checkpoint_failures_total", "checkpoint_time_seconds", "training_start_time_seconds"):
        assert after[name,] == before[name,] > 0
    watched(launched(2))
    watched(NodeHeard(0, failed))
    assert of(watched)["checkpoint_failures_total",] == 2
    watched(StageBegan("train", "tiny", "r1"))
    assert {"checkpoint_time_seconds", "training_start_time_seconds"}.isdisjoint(key[0] for key in of(watched))


def test_a_cause_that_nobody_knows_makes_no_new_label(watched: WatchedRun) -> None:
    for number, cause in enumerate(("rows of Alice", "rows of Bob")):
        watched(launched(number))
        watched(GangReleased(usage(number, ended=cause)))
    assert restarts(watched) == {"other": 2}


def test_what_a_gang_used_is_counted_once_a_second_at_most(watched: WatchedRun, clock: Clock) -> None:
    counted: list[int] = []
    watched(launched(0, counted))
    for _ in range(50):
        watched(NodeHeard(0, Heartbeat()))
    assert len(counted) == 1
    clock.now += 1
    watched(NodeHeard(0, Heartbeat()))
    assert len(counted) == 2


def test_waiting_is_summed_also_while_it_lasts(watched: WatchedRun, clock: Clock) -> None:
    watched(TrainingProgress("waiting"))
    clock.now += 5
    assert of(watched)["queue_wait_seconds",] == 5
    watched(TrainingProgress("waiting"))
    clock.now += 2
    watched(TrainingProgress("training", samples_per_s=8.0))
    clock.now += 50
    found = of(watched)
    assert (found["queue_wait_seconds",], found["samples_per_second",]) == (7, 8.0)


def test_checkpoints_are_counted_as_they_are_committed(watched: WatchedRun) -> None:
    watched(launched(0))
    for step in (-1, 10, 10, 20):
        watched(TrainingProgress("training", checkpoint_step=step))
    watched(launched(1))
    watched(TrainingProgress("training", checkpoint_step=-1))
    assert of(watched)["checkpoints_committed_total",] == 2
    assert ("checkpoint_step",) not in of(watched)
    watched(TrainingProgress("training", checkpoint_step=30))
    assert (of(watched)["checkpoints_committed_total",], of(watched)["checkpoint_step",]) == (3, 30)
