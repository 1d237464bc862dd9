"""Which of several failures is the cause, and which checkpoints a generation may commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from data_contracts import errors
from data_contracts.errors import CorruptError, GangIncomplete, Hung, NodeLost, StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Heartbeat, Joined, Launch, NodeExit, Place, RankAnswer, RankEnd, RankReport
from infra.gang import conductor, members
from infra.gang.conductor import Generation
from infra.gang.hub import Ended
from infra.gang.members import Node
from infra.store import layout, open_store
from tests.support.refusals import refusal
from tests.support.scripted_nodes import TRAINING, ScriptedNodes, SilentNode, unstored


@pytest.fixture
def committed() -> list[Checkpoint]:
    return []


@pytest.fixture
def launched(tmp_path: Path, committed: list[Checkpoint]) -> Callable[..., Generation]:
    """Generation 2 of two nodes with one rank each, unless its launch says otherwise."""

    def make(**launch: Any) -> Generation:
        told = Launch(training=TRAINING, generation=2, **{"nodes": 2, "devices": 1, "poll_s": 10, **launch})
        store = open_store(str(tmp_path / "store"))
        return Generation(
            ScriptedNodes(lambda generation, node: pytest.fail("nothing is started"), store, told),
            commit=committed.append,
            check=lambda: None,
            on_progress=lambda progress: None,
        )

    return make


@pytest.fixture
def generation(launched: Callable[..., Generation]) -> Generation:
    return launched()


def nodes_of(generation: Generation) -> ScriptedNodes:
    """Its nodes, for which a test speaks."""
    return cast(ScriptedNodes, generation.membership)


def joined(host: str, number: int = 0) -> Joined:
    return Joined(node=number, address=f"10.0.0.{number}", port=1 + number, host=host)


def failed(error: TrainwrightError) -> NodeExit:
    return NodeExit(status="failed", error=error.to_json())


COMMITS = [(TRAINING, 2, True), (TRAINING, 1, False), (TRAINING, 3, None), ("trainings/other-0", 2, None)]


@pytest.mark.parametrize(("training", "number", "taken"), COMMITS)
def test_a_generation_commits_only_what_it_wrote(
    training: str, number: int, taken: bool | None, generation: Generation, committed: list[Checkpoint]
) -> None:
    said = refusal(CorruptError, generation.reports.commit, unstored(5, number, training))
    assert ("was reported by generation 2, which did not write it" in said) is (taken is None)
    assert bool(committed) is bool(taken)


def test_a_step_that_is_written_again_is_no_progress(launched: Callable[..., Generation]) -> None:
    generation = launched(resume=unstored(5, 1))
    for step, is_more in [(5, False), (6, True)]:
        generation.reports.commit(unstored(step, 2))
        assert generation.has_progressed is is_more


class Clock:
    """Time that passes only when somebody sleeps, ten seconds at once, and what happens then."""

    def __init__(self, happens: list[Any]) -> None:
        self.now, self.happens = 1000.0, happens

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 10
        assert self.happens, "it should have been noticed by now"
        self.happens.pop(0)()


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock([lambda: None] * 9)
    for module in (conductor, members):
        monkeypatch.setattr(module, "time", clock)
    return clock


def running(generation: Generation, hosts: str, heard: float = 1000.0) -> None:
    """A node on each host has joined and trains."""
    for number, host in enumerate(hosts):
        node = Node(0.0, joined=joined(host, number), heard=heard)
        generation.members.nodes.append(node)
        generation.members.gang[number] = node


def test_while_the_machine_stands_still_no_node_is_silent(launched: Callable[..., Generation], times: Clock) -> None:
    generation = launched(nodes=1, poll_s=1)
    running(generation, "a")
    record = NodeExit(status="done", ranks=[RankEnd(rank=0, done=RankAnswer())])
    times.happens[4] = lambda: nodes_of(generation).say(0, record)
    assert generation._follow() == RankAnswer()


def test_a_place_in_a_queue_counts_for_no_deadline_and_costs_nothing(
    launched: Callable[..., Generation], times: Clock
) -> None:
    generation = launched()
    times.happens *= 10
    said: list[str] = []
    generation._on_progress = lambda progress: said.append(progress.sentence)
    nodes = nodes_of(generation)
    nodes.make = lambda generation, node: SilentNode()
    nodes.waits = lambda: "its job is PENDING" if times.now < 1500 else ""  # type: ignore[method-assign]
    with pytest.raises(GangIncomplete, match="had not answered the roll-call of generation 2 after 30 s"):
        generation.run(30)
    assert times.now == 1530, "it waited for the last time at 1490"
    assert generation.node_seconds == 2 * (1530 - 1490)
    assert said.count("waiting: its job is PENDING") == 1


def test_who_will_not_come_is_not_waited_for(launched: Callable[..., Generation], times: Clock) -> None:
    generation = launched(nodes=3, min_nodes=1)
    nodes = nodes_of(generation)
    nodes.make = lambda generation, node: SilentNode()
    for number, host in enumerate("ab"):
        times.happens[number + 1] = partial(nodes.say, number, joined(host, number))
    times.happens[0] = partial(nodes.say, 2, Ended("was not started: Slurm gave its job 7 2 of 3 machines"))
    generation._roll_call(600, 600)
    assert list(generation.members.gang) == [0, 1]
    assert times.now < 1100


class Counted(SilentNode):
    """Notes that it was killed."""

    def __init__(self, number: int, killed: list[int]) -> None:
        super().__init__()
        self.number, self.killed = number, killed

    def kill(self) -> None:
        self.killed.append(self.number)


def test_a_hang_is_raised_with_its_node_and_a_straggler_said(launched: Callable[..., Generation], times: Clock) -> None:
    generation = launched(devices=2)
    said: list[str] = []
    generation._on_progress = lambda progress: said.append(progress.sentence)
    running(generation, "a")
    own_s = {0: 0.1, 1: 1.5}

    def beat(step: int) -> None:
        place = {0: "backward", 1: "fetching"}
        ranks = [
            RankReport(rank=rank, step=step, steps=step, own_s=own * step, place=place[rank])
            for rank, own in own_s.items()
        ]
        nodes_of(generation).say(0, Heartbeat(ranks=ranks))

    steps = [5, 10, *[15] * 12]
    times.happens = [lambda step=step: beat(step) for step in steps]
    with pytest.raises(Hung) as raised:
        generation._follow()
    assert raised.value.message.startswith("Rank 1 on node 0 (a) stands still (fetching) at step 15")
    assert (raised.value.details["rank"], raised.value.details["node"]) == (1, 0)
    assert [sentence for sentence in dict.fromkeys(said) if "straggler" in sentence] == [
        "rank 1 on node 0 (a) is a straggler: its own work takes 1.5 s per micro-batch, that of the others 0.1 s; all "
        "wait for it"
    ]


def test_a_store_that_is_away_is_no_hang(
    launched: Callable[..., Generation], times: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = launched(devices=2)
    running(generation, "a")
    gone: list[StorageUnavailable] = []

    def beat() -> None:
        gone.clear()
        report = RankReport(rank=0, step=5, steps=5, place="forward")
        nodes_of(generation).say(0, Heartbeat(ranks=[report]))

    monkeypatch.setattr(generation, "_unwritable", lambda: gone[0] if gone else None)
    times.happens = [beat, lambda: gone.append(StorageUnavailable("the store is away.")), *[lambda: None] * 20]
    times.happens += [beat, lambda: None, beat, beat, beat]
    with pytest.raises(Hung):
        generation._follow()
    assert times.happens == []


# The hosts whose workers take the runs, in the order in which those are started, "-": nobody does, d: is left out;
# nodes asked for, the least, global batch; who trains, or a part of what is said.
ROLL: list[tuple[str, int, int, int, list[int] | str]] = [
    ("abce", 4, 4, 16, [0, 1, 2, 3]),
    ("ab-e", 4, 2, 24, [0, 1, 3]),
    ("ab-e", 4, 2, 16, [0, 1]),
    ("-bce", 4, 2, 16, [1, 2]),
    ("---e", 4, 1, 16, [3]),
    ("---e", 4, 2, 16, "Node 0, 1, 2 of 4 had not answered"),
    ("abc-", 4, 4, 16, "Node 3 of 4 had not answered"),
    # A host that is left out does not take another's place.
    ("adb", 2, 2, 16, [0, 2]),
    ("dab", 2, 2, 16, [1, 2]),
    ("add", 2, 2, 16, "Node 1 (d is left out), 2 (d is left out) of 2 had not answered"),
]


@pytest.mark.parametrize(("hosts", "asked", "least", "batch", "trains"), ROLL)
def test_who_answered_by_the_deadline_trains_if_they_are_enough(
    hosts: str,
    asked: int,
    least: int,
    batch: int,
    trains: list[int] | str,
    launched: Callable[..., Generation],
    times: Clock,
) -> None:
    train = {"global_batch_size": batch}
    generation = launched(nodes=asked, min_nodes=least, left_out=["d"], silence_s=1e9, train=train)
    killed: list[int] = []

    def make(_: int, number: int) -> SilentNode:
        node = Counted(number, killed)
        node.joined = None if hosts[number] == "-" else joined(hosts[number], number)
        return node

    nodes_of(generation).make = make
    said = refusal(errors.GangIncomplete, generation._roll_call, 60, 60)
    if isinstance(trains, str):
        assert trains in said
        assert not generation.store.exists(layout.rollcall(TRAINING, 2))
        return
    meeting = generation.store.read_json(layout.rollcall(TRAINING, 2))
    assert [node["node"] for node in meeting["nodes"]] == trains
    assert meeting["port"] == 1 + trains[0]
    others = [number for number, host in enumerate(hosts) if host != "-" and number not in trains]
    assert killed == others, "one that has not come may come later"
    places = {node: message for node, message in nodes_of(generation).told if isinstance(message, Place)}
    assert [(node, place.place, place.nodes) for node, place in places.items()] == [
        (node, at, len(trains)) for at, node in enumerate(trains)
    ]


def test_a_link_is_cut_if_both_its_ends_are_heard_of(generation: Generation, times: Clock) -> None:
    running(generation, "abc")
    generation.members.gang[0].beat = Heartbeat(unreachable=[1])
    assert generation._cut_links() == ["between node 0 (a) and node 1 (b)"]
    generation.members.gang[1].heard = 990.0
    assert generation._cut_links() == [], "a node that is silent is lost, not cut off"
    # The ranks' own words, when they came first.
    broken = NodeLost("The connection to another rank was lost.", details={"link": True})
    generation.members.gang[2].exit = failed(broken)
    assert generation.members.cause().message.startswith("The link between node 0 (a) and node 1 (b) is cut")
    generation.members.gang[0].beat = Heartbeat()
    assert generation.members.cause().message == "The connection to another rank was lost."


# whether the other node is heard of again; the cause, and the node that has it
BROKEN = [
    (True, "The connection to another rank was lost.", 0),
    (False, "Node 1 (b) has sent no heartbeat for ", 1),
]


@pytest.mark.parametrize(("beats", "cause", "node"), BROKEN)
def test_a_node_that_is_silent_when_connections_break_is_waited_for(
    beats: bool, cause: str, node: int, generation: Generation, times: Clock
) -> None:
    """A machine that is gone closes its connections, or they time out, before its heartbeats are missed."""
    running(generation, "ab", heard=999.0)
    broken = NodeLost("The connection to another rank was lost.", details={"link": True, "node": 0})
    generation.members.gang[0].exit = failed(broken)
    if beats:
        times.happens[0] = lambda: nodes_of(generation).say(1, Heartbeat())
    with pytest.raises(NodeLost) as raised:
        generation._follow()
    assert raised.value.message.startswith(cause)
    assert raised.value.details["node"] == node


@pytest.mark.parametrize(("runs", "silence_s"), [(False, 12), (True, 60)])
def test_a_process_of_this_machine_may_be_silent_longer(
    runs: bool, silence_s: int, generation: Generation, times: Clock
) -> None:
    running(generation, "ab")
    nodes_of(generation).here = {0, 1} if runs else set()
    with pytest.raises(NodeLost, match=f"no heartbeat for {silence_s} s"):
        generation._follow()


def test_a_peer_of_a_node_that_was_asked_to_stop_may_finish_its_checkpoint(
    launched: Callable[..., Generation], times: Clock, committed: list[Checkpoint]
) -> None:
    generation = launched(silence_s=60)
    running(generation, "ab")
    generation.members.gang[0].exit = failed(errors.Preempted("asked to stop."))
    report = RankReport(rank=1, checkpoints=[unstored(5, 2)])
    record = NodeExit(status="done", ranks=[RankEnd(rank=1, report=report, done=RankAnswer())])
    times.happens[1] = lambda: nodes_of(generation).say(1, record)
    with pytest.raises(errors.Preempted):
        generation._follow()
    assert committed == report.checkpoints
