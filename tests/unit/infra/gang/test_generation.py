"""Which of several failures is the cause, and which checkpoints a generation may commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts import errors
from data_contracts.errors import CorruptError, Hung, NodeLost, StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.messages.gang import Joined, Launch, NodeExit
from infra.gang import conductor as generation_module
from infra.gang import members as liveness_module
from infra.gang.conductor import Generation
from infra.gang.members import Node
from infra.store import layout, open_store
from tests.support.coded import publish

TRAINING = "trainings/k-0"


@pytest.fixture
def committed() -> list[Checkpoint]:
    return []


@pytest.fixture
def launched(tmp_path: Path, committed: list[Checkpoint]) -> Callable[..., Generation]:
    """Generation 2 of two nodes with one rank each, unless its launch says otherwise."""

    def make(**launch: Any) -> Generation:
        return Generation(
            open_store(str(tmp_path / "store")),
            Launch(training=TRAINING, generation=2, **{"nodes": 2, "devices": 1, **launch}),
            lambda generation, node: pytest.fail("nothing is started"),
            commit=committed.append,
            check=lambda: None,
            on_progress=lambda progress: None,
        )

    return make


@pytest.fixture
def generation(launched: Callable[..., Generation]) -> Generation:
    return launched()


def joined(host: str, number: int = 0) -> Joined:
    return Joined(node=number, address=f"10.0.0.{number}", port=1 + number, host=host)


def failed(error: TrainwrightError) -> NodeExit:
    return NodeExit(status="failed", error=error.to_json())


def checkpoint(training: str, generation: int) -> Checkpoint:
    ref = Ref(uri=f"{training}/checkpoints/5-g{generation}", id="0" * 64, seal="0" * 64)
    fields = {"training": training, "step": 5, "epoch": 0, "generation": generation, "world_size": 1}
    return Checkpoint(ref=ref, key="k", **fields)


COMMITS = [(TRAINING, 2, True), (TRAINING, 1, False), (TRAINING, 3, None), ("trainings/other-0", 2, None)]


@pytest.mark.parametrize(("training", "number", "taken"), COMMITS)
def test_a_generation_commits_only_what_it_wrote(
    training: str, number: int, taken: bool | None, generation: Generation, committed: list[Checkpoint]
) -> None:
    if taken is None:
        with pytest.raises(CorruptError, match="was reported by generation 2, which did not write it"):
            generation.reports.commit(checkpoint(training, number))
    else:
        generation.reports.commit(checkpoint(training, number))
    assert bool(committed) is bool(taken)


def test_a_supervisor_that_vanished_stands_before_all(generation: Generation) -> None:
    said = failed(TrainwrightError("a bug."))
    lost = NodeLost("The supervisor of node 1 was ended by SIGKILL.")
    generation.members.nodes += [Node(None, 0.0, exit=said), Node(None, 0.0, lost=lost)]  # type: ignore[arg-type]
    assert generation.members.cause() is lost


class Clock:
    """Time that passes only when somebody sleeps, and what happens then."""

    def __init__(self, happens: list[Any]) -> None:
        self.now, self.happens = 1000.0, happens

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 10
        assert self.happens, "it should have been noticed by now"
        self.happens.pop(0)()


class Handle:
    """A node that runs."""

    def ended(self) -> None: ...
    def log(self) -> str:
        return ""

    def status(self) -> str:
        return ""


def node_of(generation: Generation) -> None:
    node = Node(Handle(), 0.0, joined=joined("a"), heard=1000.0)  # type: ignore[arg-type]
    generation.members.nodes.append(node)
    generation.members.gang[0] = node


def test_a_hang_is_raised_with_its_node_and_a_straggler_said(
    launched: Callable[..., Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = launched(devices=2)
    clock = Clock([])
    for module in (generation_module, liveness_module):
        monkeypatch.setattr(module, "time", clock)
    said: list[str] = []
    generation._on_progress = lambda progress: said.append(progress.sentence)
    node_of(generation)
    own_s = {0: 0.1, 1: 1.5}

    def beat(number: int, step: int) -> None:
        place = {0: "backward", 1: "fetching"}
        ranks = [
            {"rank": rank, "step": step, "steps": step, "own_s": own * step, "place": place[rank], "checkpoints": []}
            for rank, own in own_s.items()
        ]
        publish(generation.store, layout.beat(TRAINING, 2, 0, number), {"ranks": ranks})

    steps = [5, 10, *[15] * 12]
    clock.happens = [lambda n=n, step=step: beat(n, step) for n, step in enumerate(steps)]
    with pytest.raises(Hung) as raised:
        generation._follow()
    assert raised.value.message.startswith("Rank 1 on node 0 (a) stands still (fetching) at step 15")
    assert (raised.value.details["rank"], raised.value.details["node"]) == (1, 0)
    assert [sentence for sentence in dict.fromkeys(said) if "straggler" in sentence] == [
        "rank 1 on node 0 (a) is a straggler: its own work takes 1.5 s per micro-batch, that of the others 0.1 s; all "
        "wait for it"
    ]


def test_a_store_that_is_away_is_no_hang(launched: Callable[..., Generation], monkeypatch: pytest.MonkeyPatch) -> None:
    generation = launched(devices=2)
    clock = Clock([])
    for module in (generation_module, liveness_module):
        monkeypatch.setattr(module, "time", clock)
    node_of(generation)
    real, gone = generation.store.read_json, [False]

    def read(path: str) -> Any:
        if gone[0]:
            raise errors.StorageUnavailable("the store is away.")
        return real(path)

    def beat(number: int) -> None:
        gone[0] = False
        report = {"rank": 0, "step": 5, "steps": 5, "place": "forward", "checkpoints": []}
        publish(generation.store, layout.beat(TRAINING, 2, 0, number), {"ranks": [report]})

    def away() -> None:
        gone[0] = True

    monkeypatch.setattr(generation.store, "read_json", read)
    clock.happens = [lambda: beat(0), away, *[lambda: None] * 20, lambda: beat(1), lambda: None]
    clock.happens += [lambda n=n: beat(n) for n in (2, 3, 4)]
    with pytest.raises(Hung):
        generation._follow()
    assert clock.happens == []


ROLL = [
    # who joins, nodes asked for, the least, global batch, who trains
    ([0, 1, 2, 3], 4, 4, 16, [0, 1, 2, 3]),
    ([0, 1, 3], 4, 2, 24, [0, 1, 3]),
    ([0, 1, 3], 4, 2, 16, [0, 1]),
    ([1, 2, 3], 4, 2, 16, [1, 2]),
    ([3], 4, 1, 16, [3]),
    ([3], 4, 2, 16, None),
    ([0, 1, 2], 4, 4, 16, None),
]


@pytest.mark.parametrize(("joins", "asked", "least", "batch", "trains"), ROLL)
def test_who_answered_by_the_deadline_trains_if_they_are_enough(
    joins: list[int],
    asked: int,
    least: int,
    batch: int,
    trains: list[int] | None,
    launched: Callable[..., Generation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation_module, "time", Clock([lambda: None] * 9))
    train = {"global_batch_size": batch}
    generation = launched(nodes=asked, min_nodes=least, silence_s=1e9, train=train)
    killed: list[int] = []
    for number in range(asked):
        handle = Handle()
        handle.kill = lambda number=number: killed.append(number)  # type: ignore[attr-defined]
        generation.members.nodes.append(Node(handle, 0.0))
    for number in joins:
        publish(generation.store, layout.joined(TRAINING, 2, number), joined("h", number).to_json())
    if trains is None:
        with pytest.raises(errors.GangIncomplete) as raised:
            generation._roll_call(60, 60)
        assert raised.value.details["missing"] == [str(n) for n in range(asked) if n not in joins]
        assert not generation.store.exists(layout.rollcall(TRAINING, 2))
        return
    generation._roll_call(60, 60)
    meeting = generation.store.read_json(layout.rollcall(TRAINING, 2))
    assert [node["node"] for node in meeting["nodes"]] == trains
    assert meeting["port"] == 1 + trains[0]
    assert killed == [number for number in joins if number not in trains], "one that has not come may come later"


# The hosts whose workers take the runs, in the order in which those are started; who trains.
TAKEN = [("adb", [0, 2]), ("dab", [1, 2]), ("add", None)]


@pytest.mark.parametrize(("hosts", "trains"), TAKEN)
def test_a_host_that_is_left_out_does_not_take_anothers_place(
    hosts: str, trains: list[int] | None, launched: Callable[..., Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_module, "time", Clock([lambda: None] * 9))
    generation = launched(left_out=["d"], silence_s=1e9)
    killed: list[int] = []

    def start(_: int, number: int) -> Any:
        publish(generation.store, layout.joined(TRAINING, 2, number), joined(hosts[number], number).to_json())
        handle = Handle()
        handle.kill = lambda: killed.append(number)  # type: ignore[attr-defined]
        return handle

    generation._start = start
    generation._start_missing()
    if trains is None:
        with pytest.raises(errors.GangIncomplete, match=r"Node 1 \(d is left out\), 2 \(d is left out\) of 2 had not"):
            generation._roll_call(60, 60)
        return
    generation._roll_call(60, 60)
    meeting = generation.store.read_json(layout.rollcall(TRAINING, 2))
    assert [node["node"] for node in meeting["nodes"]] == trains
    assert killed == [hosts.index("d")]


def test_a_link_is_cut_if_both_its_ends_are_heard_of(generation: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock([])
    for module in (generation_module, liveness_module):
        monkeypatch.setattr(module, "time", clock)
    for number, host in enumerate("abc"):
        node = Node(Handle(), 0.0, joined=joined(host, number), heard=1000.0, unreachable=[1] if number == 0 else [])
        generation.members.nodes.append(node)
        generation.members.gang[number] = node
    assert generation._cut_links() == ["between node 0 (a) and node 1 (b)"]
    generation.members.gang[1].heard = 990.0
    assert generation._cut_links() == [], "a node that is silent is lost, not cut off"
    # The ranks' own words, when they came first.
    broken = NodeLost("The connection to another rank was lost.", details={"link": True})
    generation.members.gang[2].exit = failed(broken)
    assert generation.members.cause().message.startswith("The link between node 0 (a) and node 1 (b) is cut")
    generation.members.gang[0].unreachable = []
    assert generation.members.cause().message == "The connection to another rank was lost."


def test_silence_is_the_stores_where_nobody_can_write_to_it(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, value: Any) -> None:
        raise StorageUnavailable("the disk is full.")

    def lost() -> dict[str, Any]:
        raise NodeLost("Node 0 (a) has published no heartbeat for 12 s.", details={"node": 0, "silent": True})

    monkeypatch.setattr(generation, "_start_missing", lambda: None)
    monkeypatch.setattr(generation, "_roll_call", lambda *_: None)
    monkeypatch.setattr(generation, "_follow", lost)
    monkeypatch.setattr(generation.store, "create_json", full)
    with pytest.raises(StorageUnavailable, match="the disk is full"):
        generation.run(1)
    assert generation.activity.ended == "storage", "metrics and pages count it by this"


@pytest.mark.parametrize("beats", [False, True])
def test_a_node_that_is_silent_when_connections_break_is_waited_for(
    beats: bool, generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is gone closes its connections, or they time out, before its heartbeats are missed."""
    clock = Clock([lambda: None] * 3)
    for module in (generation_module, liveness_module):
        monkeypatch.setattr(module, "time", clock)
    for number, host in enumerate("ab"):
        node = Node(Handle(), 0.0, joined=joined(host, number), heard=999.0)  # type: ignore[arg-type]
        generation.members.nodes.append(node)
        generation.members.gang[number] = node
    broken = NodeLost("The connection to another rank was lost.", details={"link": True, "node": 0})
    generation.members.gang[0].exit = failed(broken)
    if beats:
        clock.happens[0] = lambda: publish(generation.store, layout.beat(TRAINING, 2, 1, 0), {"ranks": []})
    with pytest.raises(NodeLost) as raised:
        generation._follow()
    if beats:
        assert raised.value.message == broken.message
    else:
        assert raised.value.message.startswith("Node 1 (b) has published no heartbeat for ")
        assert raised.value.details["node"] == 1
