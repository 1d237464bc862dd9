"""Gangs of fake ranks that recover: real supervisors, a real torchrun, a real store; faults are injected."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import Hung, OutOfMemory
from data_contracts.messages.gang import Heartbeat, Joined, Launch, NodeExit, reports_of
from infra.gang import conductor, hub, members
from infra.gang.hub import News
from infra.gang.members import Progress
from infra.gang.node import LocalNode, LocalNodes
from infra.processes.processes import find_marked
from infra.store import Store, layout
from tests.support.conducting import TRAINING, run, steps
from tests.support.pool import until
from tests.support.scripted_nodes import Launching

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("mark")]


def fault(kind: str, rank: int = 1, step: int = 7, generation: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "rank": rank, "step": step, "generation": generation, **more}


@pytest.fixture
def passed_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far the conductor's clock is ahead: a test lets time pass that no busy machine can bring about."""
    passed_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0], sleep=time.sleep)
    for module in (conductor, members, hub):
        monkeypatch.setattr(module, "time", clock)
    return passed_s


def launch(store: Store, generation: int) -> dict[str, Any]:
    return store.read_json(layout.launch(TRAINING, generation))


def ended(seen: list[Progress]) -> list[str]:
    return [progress.sentence for progress in seen if progress.phase == "ended"]


# fault; the sentence; what the stack says
HANGS = [
    ("hang", "Rank 1 on node 0 ({host}) stands still (forward) at step 7 and has made no progress for ", "in fail"),
    (
        "stop",
        "Rank 1 on node 0 ({host}) is stopped (SIGSTOP) at step 7 and has made no progress for ",
        "is stopped (SIGSTOP), so",
    ),
]


@pytest.mark.parametrize(("kind", "sentence", "stack"), HANGS)
def test_a_hang_is_found_named_and_its_stacks_are_kept(
    kind: str, sentence: str, stack: str, store: Store, passed_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "STACKS_S", 120.0)
    seen = [7]

    # With the other rank's steps: one that is held up is no hang.
    def pass_time(_: int, message: Heartbeat | NodeExit) -> None:
        ranks = {report.rank: report for report in reports_of(message)}
        if len(ranks) < 2 or ranks[1].step < 7 or (kind == "stop" and ranks[1].state != "T"):
            return
        if ranks[0].step > seen[-1]:
            seen.append(ranks[0].step)
            passed_s[0] += 2.0

    fake = {"faults": [fault(kind)], "steps": 20_000, "step_s": 0.05}
    with pytest.raises(Hung) as caught:
        run(store, fake, launch={"hang_s": 45, "silence_s": 45}, retry={"hung": 0}, on_message=pass_time)
    assert caught.value.message.startswith(sentence.format(host=os.uname().nodename))
    assert (caught.value.details["rank"], caught.value.details["node"]) == (1, 0)
    stacks = caught.value.details["stacks"]
    assert stack in stacks["1"]
    assert "in main" in stacks["0"], "all ranks'"
    kept = store.read(layout.rank_log(TRAINING, 0, 0, 0)).decode()
    assert "in main" in kept
    exits = store.read_json(layout.node_exit(TRAINING, 0, 0))["ranks"]
    assert {entry["rank"]: entry["stack"] for entry in exits} == {0: stacks["0"], 1: stacks["1"]}


def test_out_of_memory_goes_on_once_with_half_the_micro_batch(store: Store) -> None:
    seen: list[Progress] = []
    fake = {"faults": [fault("oom", 0, after=5), fault("oom", 0, generation=1, step=8)], "steps": 20, "step_s": 0.05}
    with pytest.raises(OutOfMemory) as caught:
        run(store, fake, train={"global_batch_size": 16}, on_progress=seen.append)
    assert caught.value.cause == "out_of_memory"
    assert "Out of memory: micro-batches of 4 rows instead of 8, same global batch." in ended(seen)[0]
    assert launch(store, 1)["train"]["micro_batch_size"] == 4
    assert launch(store, 1)["train"]["global_batch_size"] == 16
    assert len(ended(seen)) == 1
    assert not store.exists(layout.launch(TRAINING, 2))


def test_a_gang_shrinks_to_those_that_are_left_and_grows_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Progress] = []
    # Of generation 1 nodes 0 and 2 are missing. Rank 0 alone makes checkpoints, so each continues from step 5.
    faults = [fault("kill node", 0, after=5), fault("kill node", 0, generation=1, step=8, together=True)]
    fake = {"faults": faults, "steps": 10, "step_s": 0.05}

    class Nodes(LocalNodes):
        def start(self, nodes: Collection[int]) -> None:
            super().start([node for node in nodes if self.launch.generation != 1 or node not in (0, 2)])

        def status(self, node: int) -> str:
            return "its run is Late"

    def regather(launched: Launch, _: object) -> None:
        monkeypatch.setattr(conductor, "REGATHER_S", 1.0 if launched.generation == 1 else 180.0)

    outcome = run(
        store,
        fake,
        nodes=4,
        devices=1,
        train={"global_batch_size": 16},
        launch={"min_nodes": 2},
        launcher=Launching(Nodes),
        on_launch=regather,
        on_progress=seen.append,
        rollcall_timeout_s=180,
    )
    assert (outcome.checkpoint.step, outcome.checkpoint.world_size, outcome.generations) == (10, 4, 3)
    meetings = [store.read_json(layout.rollcall(TRAINING, g))["nodes"] for g in (0, 1, 2)]
    assert [[node["node"] for node in meeting] for meeting in meetings] == [[0, 1, 2, 3], [1, 3], [0, 1, 2, 3]]
    said = [progress.sentence for progress in seen if "trains on" in progress.sentence]
    assert said[0].startswith("trains on 2 of 4 nodes (without node 0 (its run is Late), 2 (its run is Late)): 2 ranks")
    assert {rank for generation, rank in steps(store) if generation == 1} == {0, 1}


def test_a_gang_grows_after_a_checkpoint_when_a_node_comes_late(
    store: Store, tmp_path: Path, passed_s: list[float]
) -> None:
    seen: list[Progress] = []
    has_come, grown = tmp_path / "has-come", tmp_path / "grown"
    comes: list[bool] = []

    class Nodes(LocalNodes):
        """The second node of the first generation comes late."""

        def start(self, nodes: Collection[int]) -> None:
            super().start([node for node in nodes if self.launch.generation or node == 0])

        def news(self) -> list[News]:
            if comes and self.launch.generation == 0 and 1 not in self.nodes:
                super().start([1])
            said = super().news()
            if any(isinstance(one.message, Joined) for one in said):
                passed_s[0] = 100.0  # when the first has answered, the time is over
            return said

        def status(self, node: int) -> str:
            return "its run is Late"

    def hear(progress: Progress) -> None:
        seen.append(progress)
        if progress.step > 3:
            comes.append(True)
        if "has come" in progress.sentence:
            has_come.touch()
        if progress.generation == 1:
            grown.touch()

    wait = {**fault("wait", 0, step=10), "for": str(has_come)}
    outcome = run(
        store,
        {"steps": 40, "faults": [wait], "until": str(grown)},
        nodes=2,
        devices=1,
        train={"global_batch_size": 16},
        launch={"min_nodes": 1, "silence_s": 600},
        rollcall_timeout_s=90,
        retry={"preempted": 0},
        launcher=Launching(Nodes),
        on_progress=hear,
    )
    assert (outcome.checkpoint.step, outcome.checkpoint.world_size, outcome.generations) == (40, 2, 2)
    said = [progress.sentence for progress in seen]
    assert "trains on 1 of 2 nodes (without node 1 (its run is Late)): 1 ranks" in said
    assert said.count(f"node 1 ({os.uname().nodename}) has come: 2 nodes after the next checkpoint") == 1
    (sentence,) = ended(seen)
    assert sentence.startswith("generation 0 ended (preempted): Nodes that were missing have come. Continuing from")
    assert steps(store)[1, 1] == steps(store)[1, 0] != [], "both train on"


# The committed step after which it is stopped.
STOPPED = [5, *(pytest.param(step, marks=pytest.mark.sweep) for step in (10, 15, 20, 25))]


@pytest.mark.parametrize("at", STOPPED)
def test_a_node_of_an_older_generation_that_wakes_changes_nothing(
    at: int, store: Store, tmp_path: Path, passed_s: list[float]
) -> None:
    """Stopped with all that it started, so that nobody ends it, until its successor has trained on."""
    nodes: list[LocalNode] = []
    stopped: list[int] = []
    woken, succeeded = threading.Event(), tmp_path / "succeeded"

    class Nodes(LocalNodes):
        """Those of the first generation are elsewhere, where the conductor cannot kill them."""

        def news(self) -> list[News]:
            if self.launch.generation == 0:
                nodes[:] = self.nodes.values()
                # Only the silence of the node that is stopped is long.
                passed_s[0] += 10.0 if stopped else 0.0
            return super().news()

        def end(self, nodes: Collection[int]) -> None:
            if self.launch.generation:
                super().end(nodes)

    def stop_then_wake(progress: Progress) -> None:
        if progress.generation == 0 and progress.checkpoint_step >= at and not stopped:
            [node] = nodes
            stopped.extend(find_marked(node._mark))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        if progress.generation == 1:
            succeeded.touch()
        if progress.generation == 1 and progress.checkpoint_step >= at + 10 and not woken.is_set():
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            woken.set()

    try:
        wait = {**fault("wait", 0, step=at + 2), "for": str(succeeded)}
        fake = {"steps": 60, "step_s": 0.05, "faults": [wait]}
        outcome = run(store, fake, devices=1, launcher=Launching(Nodes), on_progress=stop_then_wake)
        assert woken.is_set()
        until(nodes[0].ended)
    finally:
        for node in nodes:
            with contextlib.suppress(OSError):
                node.kill()
    assert (outcome.checkpoint.step, outcome.checkpoint.generation) == (60, 1)
    latest = store.pointer(layout.latest(TRAINING)).read().value["checkpoints"]
    # Of generation 0 only what was committed before it was taken for lost.
    assert {entry["generation"] for entry in latest} == {1}
    assert store.read_json(layout.result(TRAINING))["generation"] == 1
    first = launch(store, 1)["resume"]["step"]
    assert steps(store)[1, 0] == list(range(first + 1, 61))
