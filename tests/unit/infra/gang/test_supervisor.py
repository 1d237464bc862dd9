"""One node's supervisor, told by hand what a conductor would tell it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import StorageUnavailable
from data_contracts.messages.gang import Launch
from infra.code_bundle import pack
from infra.gang import node as local_module
from infra.gang import supervisor as node_module
from infra.gang.node import LocalNode, local
from infra.gang.supervisor import Publisher, run_node
from infra.processes import processes
from infra.processes.processes import find_marked, kill_marked, new_mark
from infra.store import Lease, Store, layout, open_store
from tests.support.coded import publish
from tests.support.conducting import steps

TRAINING = "trainings/k-0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    mark = new_mark()
    monkeypatch.setenv("TRAINWRIGHT_MARK", mark)
    yield mark
    left = find_marked(mark)
    kill_marked(mark)
    assert not left


@pytest.fixture
def launch(store: Store) -> Callable[..., None]:
    """Writes what generation 0 is told, with the lease held by this test."""
    Lease.take(store, layout.lease(TRAINING), "test")

    def write(fake: dict[str, Any], **changes: Any) -> None:
        trace = str(Path(store.uri).parent / "trace")
        told: dict[str, Any] = {
            "entry": "tests.support.fake_rank",
            "nodes": 1,
            "devices": 1,
            "heartbeat_s": 0.1,
            "train": {"fake": {"steps": 10, "every": 5, "trace": trace, **fake}},
        }
        publish(store, layout.launch(TRAINING, 0), Launch(training=TRAINING, **{**told, **changes}).to_json())

    return write


def start(store: Store) -> LocalNode:
    node = local(store.uri, {}, TRAINING)(0, 0)
    assert isinstance(node, LocalNode)
    return node


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def meet(store: Store, node: LocalNode) -> None:
    """Answer the node's roll-call."""
    path = layout.joined(TRAINING, 0, 0)
    until(lambda: store.exists(path) or node.ended(), "the node answers the roll-call")
    joined = store.read_json(path)
    publish(store, layout.rollcall(TRAINING, 0), {**joined, "nodes": [joined]})


def finished(store: Store, node: LocalNode) -> tuple[str, dict[str, Any]]:
    ended = until(node.ended, "the node ends")
    record = store.read_json(layout.node_exit(TRAINING, 0, 0))
    node.kill()
    return ended, record


def test_a_node_runs_the_users_code_from_its_bundle_and_keeps_the_log(
    store: Store, launch: Callable[..., None], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text("x = 1")
    # A folder of this name in the working directory must not hide the real rank, nor a library.
    (project / "json.py").write_text("raise SystemExit('the wrong json')")
    bundle = pack(project, store)
    launch({}, code=bundle.ref.to_json(), devices=2)
    node = start(store)
    meet(store, node)
    assert finished(store, node)[0] == "ended with exit code 0"
    assert steps(store)[0, 1] == list(range(1, 11))
    text = store.read(layout.rank_log(TRAINING, 0, 0, 1)).decode()
    assert "rank 1 of 2 in " in text
    assert "/project with " in text
    beats = [name for name in store.list(layout.node(TRAINING, 0, 0)) if name.startswith("beat-")]
    assert sorted(beats) == sorted(f"beat-{number}.json" for number in range(len(beats)))


# The step after which it is started again.
TWICE = [0, *(pytest.param(step, marks=pytest.mark.sweep) for step in (1, 3, 5, 8))]


@pytest.mark.parametrize("step", TWICE)
def test_a_node_started_twice_runs_once(step: int, store: Store, launch: Callable[..., None]) -> None:
    launch({"step_s": 0.2 if step else 0.01})
    first = start(store)
    until(lambda: store.exists(layout.joined(TRAINING, 0, 0)), "the first joins")
    if step:
        meet(store, first)
        until(lambda: len(steps(store).get((0, 0), [])) >= step, "the first trains")
    assert run_node(store.uri, {}, TRAINING, 0, 0) == 5
    assert first.ended() is None
    assert not store.exists(layout.node_exit(TRAINING, 0, 0))
    if not step:
        meet(store, first)
    assert finished(store, first)[1]["status"] == "done"
    assert steps(store)[0, 0] == list(range(1, 11))


def test_asked_to_leave_before_the_start_it_leaves(store: Store, launch: Callable[..., None], mark: str) -> None:
    launch({})
    node = start(store)
    until(lambda: store.exists(layout.joined(TRAINING, 0, 0)), "the node joins")
    os.kill(find_marked(mark)[0], signal.SIGTERM)
    ended, record = finished(store, node)
    assert ended == "ended with exit code 5"
    assert record["error"]["cause"] == "preempted"
    assert steps(store) == {}


def test_ranks_that_do_not_stop_in_time_are_ended(store: Store, launch: Callable[..., None], mark: str) -> None:
    launch({"faults": [{"generation": 0, "rank": 0, "step": 3, "kind": "hang"}]}, grace_s=0.5)
    node = start(store)
    meet(store, node)
    until(lambda: len(steps(store).get((0, 0), [])) == 3, "the rank hangs")
    os.kill(find_marked(mark)[0], signal.SIGTERM)
    ended, record = finished(store, node)
    assert ended == "ended with exit code 5"
    assert record["error"]["cause"] == "preempted"
    assert record["error"]["message"] == "Node 0 was asked to stop and its ranks wrote no checkpoint in time."
    assert find_marked(mark) == []


def test_a_node_that_the_roll_call_goes_on_without_leaves(store: Store, launch: Callable[..., None]) -> None:
    launch({}, nodes=2)
    node = start(store)
    until(lambda: store.exists(layout.joined(TRAINING, 0, 0)), "the node joins")
    other = {**store.read_json(layout.joined(TRAINING, 0, 0)), "node": 1}
    publish(store, layout.rollcall(TRAINING, 0), {**other, "nodes": [other]})
    ended, record = finished(store, node)
    assert ended == "ended with exit code 5"
    assert record["error"]["message"] == "Generation 0 of trainings/k-0 continues without node 0."
    assert steps(store) == {}


def test_a_checkpoint_on_its_way_may_arrive_although_a_rank_raised(store: Store, launch: Callable[..., None]) -> None:
    faults = [{"generation": 0, "rank": 0, "step": 4, "kind": "slow save"}]
    faults += [{"generation": 0, "rank": 1, "step": 4, "kind": "user meanwhile"}]
    launch({"faults": faults, "every": 100}, devices=2)
    node = start(store)
    meet(store, node)
    _, record = finished(store, node)
    assert record["error"]["cause"] == "user_code"
    assert [one["step"] for one in record["ranks"][0]["report"]["checkpoints"]] == [7]


def test_a_cancel_marker_ends_a_node(store: Store, launch: Callable[..., None], mark: str) -> None:
    launch({"steps": 10_000})
    node = start(store)
    meet(store, node)
    until(lambda: steps(store), "the rank trains")
    store.create_json(layout.cancel(TRAINING, 0), {})
    ended, record = finished(store, node)
    assert ended == "ended with exit code 130"
    assert record["error"]["cause"] == "cancelled"
    assert find_marked(mark) == []


def test_a_killed_supervisor_takes_its_ranks_with_it(store: Store, launch: Callable[..., None], mark: str) -> None:
    launch({"steps": 10_000}, devices=2)
    node = start(store)
    meet(store, node)
    until(lambda: len(steps(store)) == 2, "both ranks train")
    os.kill(node._process.pid, signal.SIGKILL)
    until(lambda: find_marked(mark) == [], "torchrun and ranks end with nobody left to end them")
    assert node.ended() == "was ended by SIGKILL"
    node.kill()


def test_a_rank_that_cannot_be_imported_says_why(store: Store, launch: Callable[..., None]) -> None:
    launch({}, entry="tests.support.no_such_rank")
    node = start(store)
    meet(store, node)
    ended, record = finished(store, node)
    assert ended == "ended with exit code 1"
    assert "No module named tests.support.no_such_rank" in record["error"]["message"]


def test_a_torchrun_that_fails_shows_its_log(store: Store, launch: Callable[..., None]) -> None:
    launch({})
    node = start(store)
    until(lambda: store.exists(layout.joined(TRAINING, 0, 0)), "the node joins")
    joined = store.read_json(layout.joined(TRAINING, 0, 0))
    publish(store, layout.rollcall(TRAINING, 0), {"address": "127.0.0.1", "port": 99999, "nodes": [joined]})
    _, record = finished(store, node)
    assert record["error"]["cause"] == "node_lost"
    assert "torchrun on node 0 ended with exit code 1" in record["error"]["message"]
    assert "port" in record["error"]["details"]["log"]


def test_a_store_that_is_away_delays_beats_but_loses_none(
    store: Store, launch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where the store can be taken away: the rank trains on, and beats are numbered without a gap."""
    launch({"steps": 30, "step_s": 0.05})
    mine = open_store(store.uri)
    real, failures = mine.create_json, [3]

    def sometimes(path: str, value: Any) -> None:
        if "beat-1.json" in path and failures[0] > 0:
            failures[0] -= 1
            raise StorageUnavailable("the store is away.")
        real(path, value)

    monkeypatch.setattr(mine, "create_json", sometimes)
    monkeypatch.setattr(node_module, "open_store", lambda *_, **__: mine)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run_node(store.uri, {}, TRAINING, 0, 0)))
    thread.start()
    until(lambda: store.exists(layout.joined(TRAINING, 0, 0)), "the node joins")
    joined = store.read_json(layout.joined(TRAINING, 0, 0))
    publish(store, layout.rollcall(TRAINING, 0), {**joined, "nodes": [joined]})
    thread.join()
    assert codes == [0]
    assert failures == [0]
    beats = [name for name in store.list(layout.node(TRAINING, 0, 0)) if name.startswith("beat-")]
    assert sorted(beats) == sorted(f"beat-{number}.json" for number in range(len(beats)))
    assert store.read_json(layout.node_exit(TRAINING, 0, 0))["status"] == "done"


@pytest.mark.parametrize("owner", [node_module, Publisher])
def test_heartbeats_go_on_while_a_node_ends(
    owner: Any, store: Store, launch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is silent is lost, however long it takes to kill what hangs and to store the logs."""

    def beats() -> int:
        return sum(name.startswith("beat-") for name in store.list(layout.node(TRAINING, 0, 0)))

    counts: list[int] = []
    real = owner.end  # of the module: what ends processes; of Publisher: what writes how the node ended

    def slow(*told: Any) -> Any:
        counts.append(beats())
        time.sleep(1)
        counts.append(beats())
        return real(*told)

    monkeypatch.setattr(owner, "end", slow)
    launch({"steps": 3})
    path = layout.joined(TRAINING, 0, 0)
    thread = threading.Thread(target=lambda: run_node(store.uri, {}, TRAINING, 0, 0))
    thread.start()
    joined = until(lambda: store.exists(path) and store.read_json(path), "the node joins")
    publish(store, layout.rollcall(TRAINING, 0), {**joined, "nodes": [joined]})
    thread.join()
    assert counts[1] - counts[0] >= 3


def test_a_node_that_cannot_be_killed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        local_module, "module_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    node = LocalNode([], {})
    with monkeypatch.context() as patch:
        patch.setattr(processes.os, "kill", lambda pid, number: None)
        patch.setattr(processes, "UNKILLABLE_AFTER_S", 0)
        patch.setattr(processes, "REAP_S", 0.01)
        node.kill()
        assert node.ended() is None
    node.kill()
    assert node.ended() == "was ended by SIGKILL"
