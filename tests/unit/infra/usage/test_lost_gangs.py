"""A generation whose conductor was killed is charged by the records of its nodes."""

from __future__ import annotations

from typing import Any

from data_contracts.messages.gang import Heartbeat, Joined, Launch, NodeExit, RankAnswer, RankEnd, RankReport
from infra.store import Store, layout
from infra.usage import gang_by_its_nodes

WHERE = "trainings/k-0"
BEGAN = 1_764_000_000.0


def write(store: Store, number: int, run_id: str = "r1") -> None:
    """A generation of two nodes: node 0 ended, node 1 was killed after its second heartbeat."""
    launch = Launch(training=WHERE, generation=number, nodes=2, devices=1, provenance={"run_id": run_id})
    store.create_once(layout.launch(WHERE, number), launch.to_json())
    for node in (0, 1):
        joined = Joined(node=node, address="127.0.0.1", port=1, time=BEGAN + 2 + node)
        store.create_once(layout.joined(WHERE, number, node), joined.to_json())
        for beat in (0, 1):
            ranks = [RankReport(rank=node, phase="training", step=5 * beat)]
            record = Heartbeat(time=BEGAN + 10 + beat, ranks=ranks)
            store.create_once(layout.beat(WHERE, number, node, beat), record.to_json())
    report = RankReport(rank=0, phase="done", step=7)
    ends: list[Any] = [RankEnd(rank=0, report=report, done=RankAnswer())]
    exit_ = NodeExit(status="done", started=BEGAN, released=BEGAN + 20, ranks=ends)
    store.create_once(layout.node_exit(WHERE, number, 0), exit_.to_json())


def test_nodes_are_counted_until_their_end_or_their_last_heartbeat(store: Store) -> None:
    write(store, 0)
    gang = gang_by_its_nodes(store, WHERE, 0, "r1")
    spans = [(node.number, node.started - BEGAN, node.released - BEGAN) for node in gang.nodes]
    assert spans == [(0, 0, 20), (1, 3, 11)]
    assert (gang.met, gang.ended, gang.first_step, gang.last_step, gang.kept_step) == (BEGAN + 3, "killed", 0, 7, 0)


def test_another_runs_generation_and_one_without_records_are_not_counted(store: Store) -> None:
    write(store, 0, run_id="r2")
    assert gang_by_its_nodes(store, WHERE, 0, "r1") is None
    launch = Launch(training=WHERE, generation=1, nodes=1, devices=1, provenance={"run_id": "r1"})
    store.create_once(layout.launch(WHERE, 1), launch.to_json())
    assert gang_by_its_nodes(store, WHERE, 1, "r1") is None
