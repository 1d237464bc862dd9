"""How a recorded history becomes launches: who does which steps, with what, and where each generation stops."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.messages.gang import Launch, MachineFacts, Segment, StopAt
from data_contracts.pipeline_spec import RetrySpec
from infra.gang.recovery import Replay
from tests.support.scripted_nodes import unstored

TRAIN = {"global_batch_size": 24, "strategy": "ddp", "micro_batch_size": None}
LAUNCH = Launch(training="trainings/k-0", nodes=4, min_nodes=2, devices=1, train=TRAIN)


def segment(first: int, **facts: Any) -> Segment:
    settings = {"training": "trainings/k-0", "generation": 0, "nodes": 1, "devices": 1, "strategy": "ddp", **facts}
    return Segment(first_step=first, resumed_from="i" if first else None, **settings)


HISTORY = [
    segment(0, nodes=4, micro_batch=6, facts=MachineFacts(threads=3)),
    segment(10, nodes=2, micro_batch=6, has_held_loss=True),
    segment(10, nodes=3, devices=2, micro_batch=2, has_held_loss=True),
    segment(25, nodes=2, micro_batch=3, skip=[(300, 324)], shard_ranks=2),
]

# step to continue from -> nodes, devices, micro-batch, skipped samples, where it stops
LAUNCHES = [
    (0, 4, 1, 6, [], StopAt(step=10, may_be_last=True)),
    (9, 4, 1, 6, [], StopAt(step=10, may_be_last=True)),
    # A generation of which no step was kept is not repeated.
    (10, 3, 2, 2, [], StopAt(step=25)),
    (24, 3, 2, 2, [], StopAt(step=25)),
    (25, 2, 1, 3, [(300, 324)], None),
    (99, 2, 1, 3, [(300, 324)], None),
]


@pytest.mark.parametrize(("step", "nodes", "devices", "micro", "skip", "stop"), LAUNCHES)
def test_each_step_is_done_as_it_was(
    step: int, nodes: int, devices: int, micro: int, skip: list[tuple[int, int]], stop: StopAt | None
) -> None:
    launch = Replay(HISTORY).launch(LAUNCH.for_generation(7, 3, unstored(step) if step else None))
    assert (launch.nodes, launch.least_nodes, launch.devices) == (nodes, nodes, devices)
    assert (launch.train["micro_batch_size"], launch.skip, launch.stop) == (micro, skip, stop)
    assert (launch.generation, launch.token) == (7, 3), "the rest stays"
    assert launch.threads == (3 if step < 10 else None)
    assert launch.train["global_batch_size"] == 24


def test_a_generation_without_a_failure_trains_to_the_end() -> None:
    replay = Replay([segment(0)])
    assert replay.launch(LAUNCH).stop is None
    assert replay.with_stops(RetrySpec()).preempted == RetrySpec().preempted


def test_the_stops_of_a_replay_use_up_no_budget() -> None:
    assert Replay(HISTORY).with_stops(RetrySpec(preempted=0)).preempted == 2


def test_the_users_own_loader_keeps_its_batches() -> None:
    launch = Replay([segment(0, micro_batch=0)]).launch(LAUNCH)
    assert launch.train["micro_batch_size"] is None


def test_a_launch_without_a_stop_is_written_as_before() -> None:
    assert "stop" not in LAUNCH.to_json()
    stopping = LAUNCH.model_copy(update={"stop": StopAt(step=3)})
    assert Launch.from_json(stopping.to_json()).stop == StopAt(step=3)
