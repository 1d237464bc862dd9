"""Who may take part in a generation, what each node is called, and whose error is the cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts import errors
from data_contracts.errors import NodeLost, TrainwrightError
from data_contracts.messages.gang import Heartbeat, Joined, Launch, NodeExit, RankAnswer, RankEnd, RankReport
from infra.gang.members import Members, Node, RankReports, called, first_cause, fitting, links_between


def joined(host: str) -> Joined:
    return Joined(node=0, address="10.0.0.1", port=1, host=host)


def node(host: str | None = None, **more: Any) -> Node:
    return Node(0.0, joined=None if host is None else joined(host), **more)


def launched(**launch: Any) -> Launch:
    return Launch(**{"training": "trainings/k-0", "nodes": 4, "devices": 1, **launch})


def members(started: list[Node], **launch: Any) -> Members:
    membership: Any = SimpleNamespace(status=lambda number: "its run is Late" if number == 5 else "", log=lambda _: "")
    made = Members(launched(**launch), membership)
    made.nodes += started
    return made


GONE = {"exit": NodeExit(status="done", ranks=[RankEnd(rank=0, done=RankAnswer())])}


def test_who_has_joined_and_who_is_missing() -> None:
    nodes = [node("a"), node("bad"), node(), node("b", **GONE), node("c"), node()]
    found = members(nodes, left_out=["bad"])
    assert list(found.joined()) == [0, 4]
    assert found.incomplete(60).details["missing"] == ["1 (bad is left out)", "2", "3", "5 (its run is Late)"]
    assert [one.over for one in nodes] == [False, False, False, True, False, False]
    assert node(lost=NodeLost("gone.")).over
    assert [one.host for one in nodes[:3]] == ["a", "bad", ""]
    assert [found.called(number) for number in (0, 2)] == ["node 0 (a)", "node 2"]
    assert called(7, node("z")) == "node 7 (z)"


@pytest.mark.parametrize(
    ("hosts", "barred", "expected"),
    [
        ([], [], [0, 1, 2, 3]),
        (["a", None], [], [2, 3]),
        (["a", "b", "c", "d"], [], []),
        (["a", "bad"], ["bad"], [2, 3, 4]),
        (["a", "bad", "bad", "c"], ["bad"], [4]),
        (["bad", "worse", "b", "c"], ["bad", "worse"], [4, 5]),
    ],
)
def test_a_node_on_a_host_that_is_left_out_is_replaced_once(
    hosts: list[str | None], barred: list[str], expected: list[int]
) -> None:
    assert list(members([node(host) for host in hosts], left_out=barred).unstarted()) == expected


@pytest.mark.parametrize(
    ("launch", "least"), [({}, 4), ({"min_nodes": 2}, 2), ({"min_nodes": 9}, 4), ({"min_nodes": 0}, 0)]
)
def test_the_least_number_of_nodes(launch: dict[str, Any], least: int) -> None:
    found = launched(**launch)
    assert (found.nodes, found.least_nodes) == (4, least)


# nodes that there are, devices, global batch, the most, the least -> how many fit
FITS = [
    (1, 0, 4, 1, 4),
    (1, 12, 4, 1, 4),
    (1, 12, 5, 1, 4),
    (1, 12, 5, 5, 0),
    (2, 12, 4, 1, 3),
    (2, 12, 1, 1, 1),
    (8, 12, 4, 1, 0),
    (1, 7, 4, 0, 1),
    (3, 8, 4, 0, 0),
]


@pytest.mark.parametrize(("devices", "batch", "most", "least", "expected"), FITS)
def test_as_many_nodes_as_share_the_global_batch(
    devices: int, batch: int, most: int, least: int, expected: int
) -> None:
    train = {"train": {"global_batch_size": batch}} if batch else {}
    assert fitting(launched(devices=devices, **train), most, least) == expected


def test_the_gang_is_the_first_that_fit_and_may_grow_by_those_that_come_late() -> None:
    nodes = [node("a"), node(), node("c"), node("d")]
    found = members(nodes, min_nodes=1, train={"global_batch_size": 8})
    assert found.active() == dict(enumerate(nodes)), "before the roll-call all that were started"
    assert list(found.fix()) == [0, 2], "3 do not divide 8"
    assert found.active() == found.gang == {0: nodes[0], 2: nodes[2]}
    assert found.could_be() == 2
    nodes[1].joined = joined("b")
    assert found.could_be() == 4
    assert found.fitting(9) == 4, "never more than are asked for"
    unfit = members([node("a"), node("b"), node("c")], nodes=3, train={"global_batch_size": 8})
    assert list(unfit.fix()) == [0, 1, 2], "the spec's own check has said so before"


def test_links_are_named_once_by_their_ends() -> None:
    nodes = {0: node("a"), 1: node("b"), 3: node()}
    nodes[1].beat = Heartbeat(unreachable=[0, 3])
    nodes[0].beat = Heartbeat(unreachable=[1, 2])
    ends = ["between node 0 (a) and node 1 (b)", "between node 1 (b) and node 3"]
    assert links_between(nodes, nodes) == ends
    assert links_between(nodes, [0, 1]) == ends[:1]
    assert links_between(nodes, [0, 3]) == []


def failed(error: TrainwrightError) -> Node:
    return node("a", exit=NodeExit(status="failed", error=error.to_json()))


# Each stands before all that follow it.
ORDER = [
    "Fenced", "Cancelled", "UserCodeError", "UsageError", "CorruptError", "Preempted", "StorageUnavailable", "Hung",
    "NodeLost",
]  # fmt: skip


def test_the_cause_by_precedence_then_by_time() -> None:
    for at, name in enumerate(ORDER):
        for other in ORDER[at + 1 :]:
            said = [failed(getattr(errors, one)("as said.")) for one in (other, name)]
            assert type(first_cause(said)) is getattr(errors, name), (name, other)
            assert type(first_cause(said[::-1])) is getattr(errors, name), (name, other)
    internal = TrainwrightError("a bug.")
    assert first_cause([failed(errors.CorruptError("x.")), failed(internal)]).message == "a bug."
    assert first_cause([failed(errors.UserCodeError("x.")), failed(internal)]).message == "x."
    early = errors.UsageError("early.", details={"when": -1.0})
    assert first_cause([failed(internal), failed(early)]).message == "early.", "without a time it is 0"
    assert first_cause([node("a"), failed(internal), node("b", **GONE)]).message == "a bug."
    vanished = NodeLost("The supervisor of node 1 was ended by SIGKILL.")
    assert members([failed(internal), node(lost=vanished)]).cause() is vanished


def test_what_follows_the_death_of_a_rank_is_not_the_users_fault() -> None:
    died = NodeLost("Rank 3 ended without an answer (SIGKILL).", details={"when": 100.0})
    for late_s, cause in [(0.1, "user_code"), (0.9, "node_lost")]:
        raised = errors.UserCodeError("no statistics came.", details={"when": 100.0 + late_s})
        assert first_cause([failed(raised), failed(died)]).cause == cause
    ahead = failed(errors.UserCodeError("it was first.", details={"when": 160.0}))
    ahead.clock_ahead_s = 61.0
    assert first_cause([ahead, failed(died)]).cause == "user_code", "its clock is a minute ahead"


def test_an_error_about_a_connection_is_a_consequence_and_a_gang_that_went_as_one_has_no_culprit() -> None:
    silent = errors.Hung("Another rank did not answer.", details={"link": True, "when": 90.0})
    died = NodeLost("Rank 3 ended without an answer.", details={"when": 100.0})
    assert first_cause([failed(silent), failed(died)]).cause == "node_lost"
    gone = [node("a", heard=heard, lost=NodeLost("gone.", details={"node": at})) for at, heard in enumerate((9.0, 1.0))]
    assert first_cause(gone).details == {"node": 1}
    gone[0].heard = 3.0
    assert first_cause(gone).details == {}
    asked = failed(errors.Preempted("asked."))
    asked.heard = 5.5
    assert first_cause([asked, gone[1]]).cause == "preempted"
    asked.heard = 9.0
    assert first_cause([asked, gone[1]]).cause == "node_lost"


@pytest.mark.parametrize(("heard", "link", "expected"), [(4.9, True, True), (5.0, True, False), (4.9, False, False)])
def test_broken_connections_are_unexplained_while_a_node_is_silent(heard: float, link: bool, expected: bool) -> None:
    broken = NodeLost("The connection was lost.", details={"link": link})
    found = members([failed(broken), node("b", heard=heard)], nodes=2)
    found.gang = dict(enumerate(found.nodes))
    assert found.is_unexplained(5.0) is expected


def test_an_error_is_placed_on_the_node_of_its_rank() -> None:
    found = members([node("a"), node("b"), node("c")], nodes=2, devices=2)
    found.gang = {0: found.nodes[0], 2: found.nodes[2]}
    said = [found.placed(NodeLost("x.", details=details)).details for details in ({}, {"rank": 1}, {"rank": 2})]
    assert said == [{}, {"rank": 1, "node": 0}, {"rank": 2, "node": 2}]
    assert found.placed(NodeLost("x.", details={"rank": 4})).details == {"rank": 4}
    assert found.placed(NodeLost("x.", details={"rank": 3, "node": 7})).details["node"] == 7


def test_devices_of_several_kinds_are_refused_by_name() -> None:
    reports = RankReports(launched(), commit=lambda _: None, say=lambda **_: None)
    devices = ("", "cuda:0 (NVIDIA H200)", "cuda:1 (NVIDIA H200)", "")
    reports.take_in([RankReport(rank=rank, device=device) for rank, device in enumerate(devices)], "node 0 (a)")
    with pytest.raises(errors.UsageError) as refused:
        reports.take_in([RankReport(rank=4, device="cuda:0 (NVIDIA A100-SXM4-80GB)")], "node 1 (b)")
    assert refused.value.message == (
        "The ranks compute on different devices: rank 1 on node 0 (a) on cuda (NVIDIA H200); "
        "rank 4 on node 1 (b) on cuda (NVIDIA A100-SXM4-80GB)."
    )
