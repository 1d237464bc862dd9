"""Gangs of fake ranks that recover: real supervisors, a real torchrun, a real store; faults are injected."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, Diverged, Hung, OutOfMemory, UserCodeError
from infra.gang.members import Progress
from infra.gang.node import Handle, local
from infra.processes.processes import find_marked, kill_marked, new_mark
from infra.store import Store, layout, open_store
from tests.support.conducting import TRAINING, run, steps
from tests.support.damage import overwrite

pytestmark = pytest.mark.warm


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mark = new_mark()
    monkeypatch.setenv("TRAINWRIGHT_MARK", mark)
    yield
    left = find_marked(mark)
    kill_marked(mark)
    assert not left


def fault(kind: str, rank: int = 1, step: int = 7, generation: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "rank": rank, "step": step, "generation": generation, **more}


def launch(store: Store, generation: int) -> dict[str, Any]:
    return store.read_json(layout.launch(TRAINING, generation))


def ended(seen: list[Progress]) -> list[str]:
    return [progress.sentence for progress in seen if progress.phase == "ended"]


QUICK = {"hang_s": 2, "silence_s": 3}
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
def test_a_hang_is_found_named_and_its_stacks_are_kept(kind: str, sentence: str, stack: str, store: Store) -> None:
    fake = {"faults": [fault(kind)], "steps": 2000, "step_s": 0.05}
    with pytest.raises(Hung) as caught:
        run(store, fake, launch=QUICK, retry={"hung": 0})
    assert caught.value.message.startswith(sentence.format(host=os.uname().nodename))
    assert (caught.value.details["rank"], caught.value.details["node"]) == (1, 0)
    stacks = caught.value.details["stacks"]
    assert stack in stacks["1"]
    assert "in main" in stacks["0"], "all ranks'"
    kept = store.read(layout.rank_log(TRAINING, 0, 0, 0)).decode()
    assert "in main" in kept
    exits = store.read_json(layout.node_exit(TRAINING, 0, 0))["ranks"]
    assert {entry["rank"]: entry["stack"] for entry in exits} == {0: stacks["0"], 1: stacks["1"]}


@pytest.mark.slow
def test_a_straggler_is_named_and_left_alone(store: Store) -> None:
    seen: list[Progress] = []
    fake = {"steps": 60, "step_s": 0.05, "own_s": {"0": 0.01, "1": 0.5, "2": 0.01}}
    outcome = run(store, fake, devices=3, on_progress=seen.append)
    assert outcome.generations == 1
    said = {progress.sentence for progress in seen if "straggler" in progress.sentence}
    assert len(said) == 1
    assert said.pop().startswith("rank 1 on node 0 ")


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


@pytest.mark.slow
def test_what_diverged_is_passed_over_by_this_conductor_and_by_the_next(store: Store) -> None:
    seen: list[Progress] = []
    faults = [fault("diverged", 0, after=5), fault("user", 0, generation=1, step=8)]
    with pytest.raises(UserCodeError):
        run(store, {"faults": faults, "steps": 20, "step_s": 0.05}, on_progress=seen.append)
    assert "(diverged): The loss is not a finite number. Samples 48 to 56 are passed over. Continuing" in ended(seen)[0]
    assert [launch(store, g)["skip"] for g in (0, 1)] == [[], [[48, 56]]]
    again = [fault("diverged", 0, generation=g, step=8) for g in (2, 3, 4, 5)]
    with pytest.raises(Diverged):
        run(store, {"faults": again, "steps": 20, "step_s": 0.05})
    assert [len(launch(store, g)["skip"]) for g in (2, 3, 4)] == [1, 2, 3], "three times in one training"
    assert not store.exists(layout.launch(TRAINING, 5))


class Nowhere:
    """A node that never answers."""

    def ended(self) -> None: ...
    def log(self) -> str:
        return ""

    def status(self) -> str:
        return "its run is Late"

    def kill(self) -> None: ...


def some(store: Store, there: Callable[[int, int], bool]) -> Callable[[int, int], Handle]:
    """Starts the nodes that `there(generation, node)` names; the others never answer."""
    start = local(store.uri, {}, TRAINING)
    return lambda generation, node: start(generation, node) if there(generation, node) else Nowhere()


def test_a_gang_shrinks_to_those_that_are_left_and_grows_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.gang.conductor.REGATHER_S", 5.0)
    seen: list[Progress] = []
    # Of generation 1 nodes 0 and 2 are missing. Rank 0 alone makes checkpoints, so each continues from step 5.
    faults = [fault("kill node", 0, after=5), fault("kill node", 0, generation=1, step=8)]
    fake = {"faults": faults, "steps": 10, "step_s": 0.05}
    outcome = run(
        store,
        fake,
        nodes=4,
        devices=1,
        train={"global_batch_size": 16},
        launch={"min_nodes": 2},
        start=some(store, lambda generation, node: generation != 1 or node in (1, 3)),
        on_progress=seen.append,
    )
    assert (outcome.checkpoint.step, outcome.checkpoint.world_size, outcome.generations) == (10, 4, 3)
    meetings = [store.read_json(layout.rollcall(TRAINING, g))["nodes"] for g in (0, 1, 2)]
    assert [[node["node"] for node in meeting] for meeting in meetings] == [[0, 1, 2, 3], [1, 3], [0, 1, 2, 3]]
    said = [progress.sentence for progress in seen if "trains on" in progress.sentence]
    assert said[0].startswith("trains on 2 of 4 nodes (without node 0 (its run is Late), 2 (its run is Late)): 2 ranks")
    assert {rank for generation, rank in steps(store) if generation == 1} == {0, 1}


class Late:
    """A node that is started once the others train."""

    def __init__(self, store: Store, begin: Callable[[], Handle]) -> None:
        self.inner: Handle | None = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.come, args=(store, begin))
        self.thread.start()

    def come(self, store: Store, begin: Callable[[], Handle]) -> None:
        while not self.over.wait(0.05):
            if len(steps(store).get((0, 0), [])) > 3:
                self.inner = begin()
                return

    def ended(self) -> str | None:
        return self.inner.ended() if self.inner else None

    def log(self) -> str:
        return ""

    def status(self) -> str:
        return "its run is Late"

    def kill(self) -> None:
        self.over.set()
        self.thread.join()
        if self.inner is not None:
            self.inner.kill()


def test_a_gang_grows_after_a_checkpoint_when_a_node_comes_late(store: Store) -> None:
    seen: list[Progress] = []
    begin = local(store.uri, {}, TRAINING)

    def start(generation: int, node: int) -> Handle:
        return Late(store, lambda: begin(0, 1)) if (generation, node) == (0, 1) else begin(generation, node)

    outcome = run(
        store,
        {"steps": 40, "step_s": 0.1},
        nodes=2,
        devices=1,
        train={"global_batch_size": 16},
        launch={"min_nodes": 1},
        rollcall_timeout_s=10,
        retry={"preempted": 0},
        start=start,
        on_progress=seen.append,
    )
    assert (outcome.checkpoint.step, outcome.checkpoint.world_size, outcome.generations) == (40, 2, 2)
    said = [progress.sentence for progress in seen]
    assert "trains on 1 of 2 nodes (without node 1 (its run is Late)): 1 ranks" in said
    assert said.count(f"node 1 ({os.uname().nodename}) has come: 2 nodes after the next checkpoint") == 1
    (sentence,) = ended(seen)
    assert sentence.startswith("generation 0 ended (preempted): Nodes that were missing have come. Continuing from")
    assert steps(store)[1, 1] == steps(store)[1, 0] != [], "both train on"


@pytest.mark.slow
def test_a_node_that_failed_twice_is_left_out_and_named(store: Store) -> None:
    seen: list[Progress] = []
    faults = [fault("kill node", 0, after=5), fault("kill node", 0, generation=1, step=8)]
    fake = {"faults": faults, "steps": 10, "step_s": 0.05}
    outcome = run(
        store,
        fake,
        nodes=2,
        devices=1,
        train={"global_batch_size": 16},
        launch={"min_nodes": 1},
        on_progress=seen.append,
    )
    host = os.uname().nodename
    assert (outcome.checkpoint.world_size, outcome.generations) == (1, 3)
    assert f"Node 0 ({host}) failed 2 times and is left out." in ended(seen)[1]
    assert outcome.happened == [f"node 0 ({host}) failed 2 times and is left out"]
    assert "trains on 1 of 2 nodes: 1 ranks" in [progress.sentence for progress in seen]


def test_an_error_before_a_generation_begins_is_not_tried_again(store: Store) -> None:
    with pytest.raises(UserCodeError):
        run(store, {"faults": [fault("user", 0, after=5)], "steps": 20})
    for path in Path(store.uri).rglob("state.json"):
        overwrite(path, b"spoilt")
    with pytest.raises(CorruptError, match=r"No committed checkpoint of trainings/k-0 is whole"):
        run(store, {"steps": 20})
    assert not store.exists(layout.launch(TRAINING, 1))


def test_a_checkpoint_that_a_rank_refuses_is_quarantined_and_the_one_before_is_used(store: Store) -> None:
    faults = [fault("sigkill", 0, 12, after=10), fault("refuses", 0, 10, 1)]
    seen: list[Progress] = []
    outcome = run(store, {"faults": faults, "steps": 15}, on_progress=seen.append)
    assert [launch(store, generation)["resume"]["step"] for generation in (1, 2)] == [10, 5]
    assert (outcome.checkpoint.step, outcome.generations) == (15, 3)
    reason = store.read_json(layout.quarantined(layout.checkpoint(TRAINING, 10, 0)))["reason"]
    assert reason == "The checkpoint holds weights that are not finite."
    assert ended(seen)[1] == f"generation 1 ended (corrupt): {reason} It is quarantined. Continuing from step 5."


def test_where_every_checkpoint_is_refused_the_training_is_corrupt(store: Store) -> None:
    faults = [fault("sigkill", 0, 7, after=5), fault("refuses", 0, 5, 1)]
    with pytest.raises(CorruptError, match=r"^The checkpoint holds weights that are not finite"):
        run(store, {"faults": faults, "steps": 15})
    assert store.exists(layout.quarantined(layout.checkpoint(TRAINING, 5, 0)))
    assert not store.exists(layout.launch(TRAINING, 2))


# The committed step after which it is stopped.
STOPPED = [5, *(pytest.param(step, marks=pytest.mark.sweep) for step in (10, 15, 20, 25))]


class Unreached:
    """A node elsewhere, which its conductor cannot kill."""

    def __init__(self, handle: Handle, alive: list[Any]) -> None:
        self.handle, self.alive = handle, alive

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def kill(self) -> None:
        self.alive.append(self.handle)


@pytest.mark.parametrize("at", STOPPED)
def test_a_node_of_an_older_generation_that_wakes_changes_nothing(at: int, store: Store) -> None:
    """Stopped with all that it started, so that nobody ends it, until its successor has trained on."""
    alive: list[Any] = []
    nodes: list[Any] = []
    stopped: list[int] = []
    woken = threading.Event()
    start = local(store.uri, {}, TRAINING)

    def launching(generation: int, node: int) -> Handle:
        handle = start(generation, node)
        if generation != 0:
            return handle
        nodes.append(handle)
        return Unreached(handle, alive)  # type: ignore[return-value]

    def stop_then_wake(progress: Progress) -> None:
        if progress.generation == 0 and progress.checkpoint_step >= at and not stopped:
            [node] = nodes
            stopped.extend(find_marked(node._mark))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        if progress.generation == 1 and progress.checkpoint_step >= at + 10 and not woken.is_set():
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            woken.set()

    try:
        fake = {"steps": 60, "step_s": 0.05}
        outcome = run(store, fake, devices=1, launch={"silence_s": 1.5}, start=launching, on_progress=stop_then_wake)
        assert woken.is_set()
        until = time.monotonic() + 30
        while nodes[0].ended() is None:
            assert time.monotonic() < until, "it ends by itself"
            time.sleep(0.02)
    finally:
        for handle in alive:
            with contextlib.suppress(OSError):
                handle.kill()
    assert (outcome.checkpoint.step, outcome.checkpoint.generation) == (60, 1)
    latest = store.pointer(layout.latest(TRAINING)).read().value["checkpoints"]
    # Of generation 0 only what was committed before it was taken for lost.
    assert {entry["generation"] for entry in latest} == {1}
    assert store.read_json(layout.result(TRAINING))["generation"] == 1
    first = launch(store, 1)["resume"]["step"]
    assert steps(store)[1, 0] == list(range(first + 1, 61))
