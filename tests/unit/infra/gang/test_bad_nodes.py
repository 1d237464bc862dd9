"""What a conductor records of nodes, and which it does without; its nodes are told by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import (
    CorruptError,
    GangIncomplete,
    Hung,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UserCodeError,
)
from data_contracts.messages.gang import Launch, Meeting
from infra.gang.conductor import remember, without_drained
from infra.records.nodes import NODE, decide, nodes_of
from infra.store import Store, layout
from tests.support.scripted_nodes import TRAINING, ScriptedNode, conduct_scripted


def train(store: Store, *starts: tuple[str, TrainwrightError | str | None]) -> int:
    """Train with nodes that start on these hosts, one after the other, and end so; the number of generations."""
    left = list(starts)

    def start(generation: int, node: int) -> ScriptedNode:
        host, end = left.pop(0)
        return ScriptedNode(store, generation, node, end=end, host=host)

    return conduct_scripted(store, start).generations


def counts(store: Store) -> dict[str, list[int]]:
    kinds = ("failure", "straggler", "corrupt_replica")
    return {one.name: [one.count(kind) for kind in kinds] for one in nodes_of(store)}


def test_a_node_that_failed_is_remembered_in_the_store(store: Store) -> None:
    lost, hung = NodeLost("gone.", details={"node": 0}), Hung("stands.", details={"node": 0})
    assert train(store, ("bad", lost), ("bad", hung), ("good", "")) == 3
    assert counts(store) == {"bad": [2, 0, 0]}
    (bad,) = nodes_of(store)
    assert [(one.cause, one.generation, one.training) for one in bad.failures] == [
        ("node_lost", 0, TRAINING), ("hung", 1, TRAINING),
    ]  # fmt: skip


def test_a_drained_node_is_not_used_and_another_takes_its_place(store: Store) -> None:
    decide(store, "bad", drained=True, reason="its memory")
    assert train(store, ("bad", None), ("good", "")) == 1
    assert store.read_as(layout.launch(TRAINING, 0), Launch.from_json).left_out == ["bad"]


def test_a_broken_machine_is_replaced_by_another(store: Store) -> None:
    broken = NodeLost("A device is broken.", details={"node": 0, "broken": True})
    left = [("bad", broken), ("good", None), ("bad", None), ("good", ""), ("spare", "")]

    def start(generation: int, node: int) -> ScriptedNode:
        host, end = left.pop(0)
        return ScriptedNode(store, generation, node, end=end, host=host)

    assert conduct_scripted(store, start, launch={"nodes": 2}).generations == 2
    assert left == []
    assert store.read_as(layout.launch(TRAINING, 1), Launch.from_json).left_out == ["bad"]
    meeting = store.read_as(layout.rollcall(TRAINING, 1), Meeting.from_json)
    assert [node.host for node in meeting.nodes] == ["good", "spare"]


def test_a_restored_node_is_used_again(store: Store) -> None:
    decide(store, "bad", drained=True, reason="its memory")
    decide(store, "bad", drained=False, reason="new memory")
    assert train(store, ("bad", "")) == 1


def test_this_machine_is_drained(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE, "rack-7")
    launch = Launch(training=TRAINING, nodes=1, devices=1)
    assert without_drained(store, launch, here=True) is launch
    decide(store, "rack-7", drained=True, reason="its memory")
    with pytest.raises(GangIncomplete, match=r"^Every node that could train is drained: rack-7 \(its memory; by "):
        without_drained(store, launch, here=True)
    assert without_drained(store, launch, here=False).left_out == ["rack-7"]
    left_out = launch.model_copy(update={"left_out": ["rack-7"]})
    assert without_drained(store, left_out, here=False).left_out == ["rack-7"]


def a_generation(hosts: dict[int, str], slow: set[int] | None = None) -> Any:
    """Four nodes of two ranks each, as a generation shows them at its end."""
    reports = SimpleNamespace(liveness=SimpleNamespace(warned=slow or set()))
    launch = Launch(training=TRAINING, nodes=4, devices=2)
    return SimpleNamespace(nodes=hosts, reports=reports, launch=launch, training=TRAINING, number=3)


HOSTS = {0: "a", 1: "b", 2: "c", 4: "e"}


@pytest.mark.parametrize(
    ("error", "slow", "expected"),
    [
        (NodeLost("gone.", details={"node": 4}), set(), {"e": [1, 0, 0]}),
        (NodeLost("a connection broke.", details={"node": 1, "link": True}), set(), {}),
        (NodeLost("gone.", details={"node": 3}), set(), {}),
        (Hung("all wait."), set(), {}),
        (CorruptError("odd.", details={"ranks": [6], "node": 0}), set(), {"e": [0, 0, 1]}),
        (CorruptError("odd.", details={"ranks": [2, 3, 5]}), set(), {"b": [0, 0, 1], "c": [0, 0, 1]}),
        (CorruptError("which?", details={"ranks": [0, 1, 2, 3, 4, 5, 6, 7]}), set(), {}),
        (CorruptError("a checkpoint.", details={"checkpoint": "x"}), set(), {}),
        (Preempted("asked.", details={"node": 1}), set(), {}),
        (UserCodeError("raised.", details={"node": 1}), set(), {}),
        (None, set(), {}),
        (None, {7, 2, 99}, {"b": [0, 1, 0], "e": [0, 1, 0]}),  # stragglers of a generation that ends well
    ],
)
def test_what_is_held_against_which_node(
    store: Store, error: TrainwrightError | None, slow: set[int], expected: dict[str, list[int]]
) -> None:
    remember(store, a_generation(HOSTS, slow), error)
    remember(store, a_generation(HOSTS, slow), error)
    assert counts(store) == expected, "once for a generation"


def test_a_store_that_is_away_costs_only_the_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> bool:
        raise StorageUnavailable("it does not answer.")

    monkeypatch.setattr(store, "create_once", away)
    remember(store, a_generation(HOSTS), NodeLost("gone.", details={"node": 0}))
    assert nodes_of(store) == []
