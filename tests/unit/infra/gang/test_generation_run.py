"""A whole generation on a clock of the test's own: its nodes are files that the test writes into the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import (
    Hung,
    NodeLost,
    StorageUnavailable,
    TrainwrightError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.messages.gang import Heartbeat, Joined, Launch, NodeExit, RankAnswer, RankEnd, RankReport
from infra.gang import conductor as generation_module
from infra.gang import members
from infra.gang.conductor import Generation
from infra.gang.members import Progress
from infra.store import Store, layout, open_store
from tests.support.coded import publish

TRAINING, NUMBER = "trainings/k-0", 2
HOSTS = "abcd"


class Handle:
    """A node as its launcher knows it."""

    def __init__(self, number: int, killed: list[int]) -> None:
        self.number, self.killed, self.end, self.fails = number, killed, "", False

    def ended(self) -> str | None:
        return self.end or None

    def log(self) -> str:
        return f"log of {self.number}"

    def status(self) -> str:
        return ""

    def kill(self) -> None:
        self.killed.append(self.number)
        if self.fails:
            raise RuntimeError(f"node {self.number} cannot be ended")


class Gang:
    """A generation, and what happens whenever it sleeps: one entry of `then` each time, a second apart."""

    def __init__(self, store: Store, patch: pytest.MonkeyPatch, **launch: Any) -> None:
        self.store, self.now = store, 1000.0
        self.killed: list[int] = []
        self.handles: list[Handle] = []
        self.said: list[Progress] = []
        self.committed: list[int] = []
        self.then: list[Callable[[], object]] = []
        for module in (generation_module, members, members):
            patch.setattr(module, "time", self)
        self.generation = Generation(
            store,
            Launch(**{"training": TRAINING, "generation": NUMBER, "nodes": 2, "devices": 1, **launch}),
            self.start,
            commit=lambda checkpoint: self.committed.append(checkpoint.step),
            check=lambda: None,
            on_progress=self.said.append,
        )

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1
        assert self.then, f"it should have ended by now: {self.sentences}"
        self.then.pop(0)()

    def start(self, generation: int, number: int) -> Any:
        self.handles.append(Handle(number, self.killed))
        return self.handles[-1]

    def join(self, *nodes: int) -> None:
        for node in nodes:
            joined = Joined(node=node, address=f"10.0.0.{node}", port=7000 + node, host=HOSTS[node])
            publish(self.store, layout.joined(TRAINING, NUMBER, node), joined)

    def beat(self, node: int, beat: int, *ranks: RankReport) -> None:
        heartbeat = Heartbeat(ranks=list(ranks))
        publish(self.store, layout.beat(TRAINING, NUMBER, node, beat), heartbeat)

    def end(
        self, node: int, *, error: TrainwrightError | None = None, checkpoint: Checkpoint | None = None, stack: str = ""
    ) -> None:
        done = RankAnswer(checkpoint=checkpoint, plan={"rank": node})
        rank = RankEnd(rank=node, report=report(node, 10, begun_with="2 tensors"), done=done, stack=stack)
        ended = NodeExit(status="failed" if error else "done", error=error and error.to_json(), ranks=[rank])
        publish(self.store, layout.node_exit(TRAINING, NUMBER, node), ended)

    def run(self, **options: Any) -> RankAnswer:
        return self.generation.run(60, **options)

    @property
    def sentences(self) -> list[str]:
        return list(dict.fromkeys(progress.sentence for progress in self.said if progress.sentence))


def report(rank: int, step: int, **more: Any) -> RankReport:
    return RankReport(rank=rank, step=step, steps=step, moves=step, place="forward", **more)


def checkpoint(step: int, generation: int = NUMBER) -> Checkpoint:
    ref = Ref(uri=f"{TRAINING}/checkpoints/{step}-g{generation}", id="0" * 64, seal="0" * 64)
    return Checkpoint(
        ref=ref, key="k", training=TRAINING, step=step, epoch=0, generation=generation, world_size=2, dropped_rows=0
    )


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Gang]:
    return lambda **launch: Gang(open_store(str(tmp_path / "store")), monkeypatch, **launch)


def test_from_the_start_to_the_answer(gang: Callable[..., Gang]) -> None:
    one = gang()
    seen = report(0, 5, epoch=1, samples=40, metrics={"loss": 0.5}, micro_batch=4, checkpoints=[checkpoint(5)])
    later = report(0, 7, epoch=1, samples=56, metrics={}, micro_batch=0, begun_with="2 tensors", waits_for="the store")
    one.then = [
        lambda: one.join(0, 1),
        lambda: one.beat(0, 0, seen),
        lambda: one.beat(0, 1, later),
        lambda: one.end(1),
        lambda: one.end(0, checkpoint=checkpoint(10)),
    ]
    assert one.run() == RankAnswer(checkpoint=checkpoint(10), plan={"rank": 0})
    meeting = one.store.read_json(layout.rollcall(TRAINING, NUMBER))
    assert {name: meeting[name] for name in ("schema_version", "address", "port")} == {
        "schema_version": 1, "address": "10.0.0.0", "port": 7000,
    }  # fmt: skip
    assert [node["node"] for node in meeting["nodes"]] == [0, 1]
    assert one.committed == [5, 10]
    assert (one.killed, one.generation.reports.micro_batch) == ([0, 1], 4)
    assert one.generation.nodes == {0: "a", 1: "b"}
    assert not one.store.exists(layout.cancel(TRAINING, NUMBER))
    assert one.sentences[:2] == ["waiting: the store", "init_from: 2 tensors"]
    phases = list(dict.fromkeys((told.phase, told.step, told.checkpoint_step) for told in one.said))
    assert phases == [
        ("starting", 0, -1), ("training", 0, -1), ("training", 0, 5), ("training", 5, 5), ("training", 7, 5),
        ("training", 10, 5), ("training", 10, 10),
    ]  # fmt: skip
    fifth = next(told for told in one.said if told.step == 5)
    assert (fifth.generation, fifth.epoch, fifth.samples, fifth.metrics) == (NUMBER, 1, 40, {"loss": 0.5})
    assert one.generation.node_seconds == 4 + 5, "until each of them ended"
    assert one.said[-1].node_seconds == 9


def test_silence_is_told_to_the_second(gang: Callable[..., Gang]) -> None:
    one = gang(silence_s=5)
    one.then = [lambda: one.join(0, 1)]
    one.then += [lambda at=at: one.beat(0, at, report(0, at)) for at in range(10)]
    with pytest.raises(NodeLost) as raised:
        one.run()
    assert raised.value.message == "Node 1 (b) has published no heartbeat for 5 s."
    assert raised.value.details == {"node": 1, "silent": True}
    assert len(one.then) == 0, "six seconds of silence and three for the others"


def test_a_hang_keeps_the_stacks_of_those_that_answer(gang: Callable[..., Gang]) -> None:
    one = gang(hang_s=4, stall_s=4, silence_s=1e6)
    one.then = [lambda: one.join(0, 1), lambda: [one.beat(node, 0, report(node, 1 + node)) for node in (0, 1)]]
    one.then += [lambda: None] * 5
    one.then += [lambda: one.end(0, error=NodeLost("ended."), stack="File a.py")]
    one.then += [lambda: None] * 7
    with pytest.raises(Hung) as raised:
        one.run()
    assert raised.value.details["stacks"] == {"0": "File a.py"}
    assert (raised.value.details["rank"], raised.value.details["node"]) == (0, 0)
    assert one.store.read_json(layout.cancel(TRAINING, NUMBER))["stacks"] is True
    assert len(one.then) == 0, "eight seconds for the stacks, because a node may hang, too"


@pytest.mark.parametrize(("heartbeat_s", "fresh_s"), [(2, 6), (0.2, 3)])
def test_a_link_is_judged_by_fresh_heartbeats(heartbeat_s: float, fresh_s: float, gang: Callable[..., Gang]) -> None:
    one = gang(heartbeat_s=heartbeat_s)
    one.generation._start_missing()
    one.join(0, 1)
    one.generation._start_and_hear()
    one.generation.members.fix()[0].unreachable = [1]
    one.now += fresh_s - 0.1
    assert one.generation._cut_links() == ["between node 0 (a) and node 1 (b)"]
    one.now += 0.1
    assert one.generation._cut_links() == []


@pytest.mark.parametrize("joined", [False, True])
def test_a_signal_ends_it_wherever_it_waits(
    joined: bool, gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = gang()

    def signal() -> None:
        monkeypatch.setattr(generation_module.stopping, "check_signals", Mock(side_effect=KeyboardInterrupt))

    one.then = [lambda: one.join(0, 1) if joined else None, signal]
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert (one.killed, one.store.read_json(layout.cancel(TRAINING, NUMBER))["cause"]) == ([0, 1], "cancelled")


def test_a_cause_stays_the_cause_where_its_marker_cannot_be_written(
    gang: Callable[..., Gang], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = gang()

    def full() -> None:
        monkeypatch.setattr(one.store, "create_json", Mock(side_effect=StorageUnavailable("the disk is full.")))

    one.then = [lambda: one.join(0, 1), lambda: setattr(one.handles[0], "end", "was ended by SIGKILL"), full]
    one.then += [lambda: None] * 3
    with pytest.raises(NodeLost, match="was ended by SIGKILL"):
        one.run()
    assert one.killed == [0, 1]


def test_nodes_that_end_before_they_join_are_not_waited_for(gang: Callable[..., Gang]) -> None:
    one = gang()
    one.then = [lambda: one.end(1, error=UserCodeError("the module cannot be imported."))]
    with pytest.raises(UserCodeError, match="cannot be imported"):
        one.run()
    assert (one.then, one.killed) == ([], [0, 1])
