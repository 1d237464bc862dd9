"""What follows each cause, as data: whether it is tried again, and what the next generation is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts import errors
from data_contracts.errors import Diverged, Hung, NodeLost, OutOfMemory, TrainwrightError
from data_contracts.messages.gang import Launch, Retries
from data_contracts.pipeline_spec import RetrySpec
from infra.gang.recovery import WITHDRAWN_S, Recovery

LAUNCH = Launch(training="trainings/k-0", nodes=4, min_nodes=2, devices=1, train={"global_batch_size": 24})
HOSTS = {0: "a", 1: "b", 2: "c", 3: "d"}


def recovery(
    skipped: list[tuple[int, int]] | None = None,
    launch: dict[str, Any] | None = None,
    retries: Retries | None = None,
    **retry: int,
) -> Recovery:
    return Recovery(RetrySpec(**retry), LAUNCH.model_copy(update=launch or {}), skipped or [], retries)


# cause -> how often it is tried again by default
TRIED = [
    ("Preempted", 10),
    ("NodeLost", 3),
    ("Hung", 3),
    ("StorageUnavailable", 3),
    ("GangIncomplete", 0),
    ("Diverged", 0),  # without its rows, as with a loader of the user's own, whose batches cannot be passed over
    ("Fenced", 0),
    ("CorruptError", 0),
    ("UserCodeError", 0),
    ("UsageError", 0),
    ("TrainwrightError", 0),
    ("Cancelled", 0),
]


@pytest.mark.parametrize(("kind", "times"), TRIED)
def test_a_cause_is_tried_again_as_often_as_its_budget_says(kind: str, times: int) -> None:
    recovers, error = recovery(), getattr(errors, kind)("as said.")
    for _ in range(times):
        recovers.after(error, {}, 0)
    with pytest.raises(TrainwrightError) as raised:
        recovers.after(error, {}, 0)
    assert raised.value is error


# global batch, nodes, the least of them, micro-batch that was too much -> the next one; None: there is no smaller one
HALVES = [
    (24, 4, 2, 6, 3),
    (24, 4, 2, 3, 1),
    (24, 4, 3, 6, 2),
    (24, 4, 2, 1, None),
    (24, 4, 2, 0, None),
    (20, 4, 2, 5, 1),
    (32, 4, 4, 8, 4),
]


@pytest.mark.parametrize(("batch", "nodes", "least", "micro", "smaller"), HALVES)
def test_out_of_memory_halves_the_micro_batch_and_leaves_the_global_one(
    batch: int, nodes: int, least: int, micro: int, smaller: int | None
) -> None:
    train = {"global_batch_size": batch, "seed": 3}
    recovers = recovery(launch={"train": train, "nodes": nodes, "min_nodes": least})
    error = OutOfMemory("no more.")
    if smaller is None:
        with pytest.raises(OutOfMemory):
            recovers.after(error, HOSTS, micro)
        return
    assert recovers.launch.train == train
    said = recovers.after(error, HOSTS, micro)
    assert said == f"Out of memory: micro-batches of {smaller} rows instead of {micro}, same global batch."
    assert recovers.launch.train == {"global_batch_size": batch, "seed": 3, "micro_batch_size": smaller}
    with pytest.raises(OutOfMemory):
        recovers.after(error, HOSTS, smaller)


def diverged(first: int, end: int, **more: Any) -> Diverged:
    return Diverged("no number.", details={"samples": [first, end], "rows": [7], **more})


def test_what_diverged_is_passed_over_three_times_in_one_training() -> None:
    recovers = recovery([(0, 24)])
    assert recovers.after(diverged(48, 72), HOSTS, 6) == "Samples 48 to 72 are passed over."
    recovers.after(diverged(96, 120), HOSTS, 6)
    assert recovers.launch.skip == [(0, 24), (48, 72), (96, 120)]
    with pytest.raises(Diverged):
        recovers.after(diverged(120, 144), HOSTS, 6)


def lost(node: int, kind: type[TrainwrightError] = NodeLost) -> TrainwrightError:
    return kind("gone.", details={"node": node})


def test_a_node_that_failed_twice_is_left_out_and_named() -> None:
    recovers = recovery(node_lost=9, hung=9)
    assert recovers.after(lost(2), HOSTS, 6) == ""
    assert recovers.after(lost(1), HOSTS, 6) == ""
    assert (recovers.nodes, recovers.launch.left_out) == (4, [])
    assert recovers.after(lost(2, Hung), HOSTS, 6) == "Node 2 (c) failed 2 times and is left out."
    assert (recovers.nodes, recovers.launch.nodes, recovers.launch.nodes_in_spec) == (3, 3, 4)
    assert recovers.launch.left_out == ["c"]
    assert recovers.happened == ["node 2 (c) failed 2 times and is left out"]
    # 24 rows share evenly among 3, 2 and 1; two nodes are the least.
    recovers.after(lost(1), HOSTS, 6)
    assert recovers.nodes == 2
    recovers.after(lost(0), HOSTS, 6)
    assert recovers.after(lost(0), HOSTS, 6) == "", "fewer than min_nodes cannot train"
    assert recovers.nodes == 2


def broken(node: int) -> TrainwrightError:
    return NodeLost("A device is broken.", details={"node": node, "broken": True})


def test_another_machine_is_asked_for_in_place_of_a_broken_one() -> None:
    recovers = recovery(node_lost=9, launch={"min_nodes": 4})
    assert recovers.after(broken(2), HOSTS, 6) == "Another machine is asked for in place of c."
    assert (recovers.nodes, recovers.launch.nodes, recovers.launch.left_out) == (4, 4, ["c"])
    assert recovers.happened == ["node 2 (c) is broken and is replaced"]
    kept = Retries.model_validate_json(recovers.retries.model_dump_json())
    assert recovery(retries=kept, launch={"min_nodes": 4}).launch.left_out == ["c"]
    said = recovers.after(errors.GangIncomplete("too few."), HOSTS, 6)
    assert said == "No other machine came in place of c, which may take part again."
    assert (recovers.launch.left_out, recovers.retries.used) == ([], {"node_lost": 1})
    with pytest.raises(errors.GangIncomplete):
        recovers.after(errors.GangIncomplete("too few."), HOSTS, 6)


def test_a_broken_machine_may_take_part_again_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr("infra.gang.recovery.time", SimpleNamespace(time=lambda: clock.now))
    recovers = recovery(node_lost=9, launch={"min_nodes": 4})
    recovers.after(broken(2), HOSTS, 6)
    clock.now += WITHDRAWN_S - 1
    recovers.after(broken(1), HOSTS, 6)
    assert recovers.launch.left_out == ["c", "b"]
    clock.now += 1
    assert (recovers.launch.left_out, recovers.launch.withdrawn) == (["b"], ["b"])


def test_of_nodes_on_one_machine_none_is_replaced() -> None:
    recovers = recovery(node_lost=9)
    assert recovers.after(broken(2), dict.fromkeys(HOSTS, "here"), 6) == ""
    assert recovers.launch.left_out == []


def test_a_gang_shrinks_to_a_number_that_divides_the_global_batch() -> None:
    recovers = recovery(launch={"train": {"global_batch_size": 16}}, node_lost=9)
    recovers.after(lost(2), HOSTS, 6)
    recovers.after(lost(2), HOSTS, 6)
    assert recovers.nodes == 2, "16 rows do not share evenly among 3"


def test_a_gang_that_grows_spends_no_budget_and_uses_are_counted_by_cause() -> None:
    recovers = recovery(preempted=1)
    grows = errors.Preempted("more nodes.", details={"grows": True})
    assert [recovers.after(grows, HOSTS, 6) for _ in range(3)] == ["", "", ""]
    assert recovers.used(grows) == 0
    assert recovers.after(errors.Preempted("gone."), HOSTS, 6) == ""
    assert (recovers.used(grows), recovers.used(NodeLost("gone."))) == (1, 0)
    with pytest.raises(errors.Preempted):
        recovers.after(errors.Preempted("gone."), HOSTS, 6)


def test_the_next_conductor_has_what_is_left_of_the_budgets() -> None:
    first = recovery(node_lost=3)
    for error in (lost(2), lost(2), OutOfMemory("no more.")):
        first.after(error, HOSTS, 6)
    first.after(errors.Preempted("asked."), HOSTS, 6)
    kept = Retries.model_validate_json(first.retries.model_dump_json())
    later = recovery(retries=kept, node_lost=3)
    assert later.launch == first.launch
    assert (later.nodes, later.launch.left_out, later.launch.train["micro_batch_size"]) == (3, ["c"], 3)
    assert later.happened == first.happened
    assert later.used(errors.Preempted("asked.")) == 1
    later.after(lost(1), HOSTS, 6)
    with pytest.raises(NodeLost):
        later.after(lost(1), HOSTS, 6)
    with pytest.raises(OutOfMemory):
        later.after(OutOfMemory("no more."), HOSTS, 3)
    # A raised budget counts at once, and the failures of each node do, too.
    said = recovery(retries=later.retries, node_lost=9).after(lost(1), HOSTS, 6)
    assert said == "Node 1 (b) failed 2 times and is left out."


@pytest.mark.parametrize(
    ("launch", "nodes", "left_out", "micro"),
    [
        ({}, 3, ["c"], 3),
        ({"nodes": 2}, 2, [], 3),
        ({"nodes": 1, "min_nodes": 1}, 1, [], 3),
        ({"train": {"global_batch_size": 24, "micro_batch_size": 2}}, 3, ["c"], 2),
        ({"train": {"global_batch_size": 32}}, 2, ["c"], None),
    ],
    ids=["as it was", "fewer nodes", "one node", "a smaller micro-batch", "another batch"],
)
def test_changes_that_no_longer_fit_are_dropped(
    launch: dict[str, Any], nodes: int, left_out: list[str], micro: int | None
) -> None:
    later = recovery(launch=launch, retries=Retries(left_out=["c"], micro_batch=3))
    assert (later.nodes, later.launch.left_out) == (nodes, left_out)
    assert later.launch.train.get("micro_batch_size") == micro
