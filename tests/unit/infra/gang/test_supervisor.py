"""One node's supervisor, told by hand what a conductor would tell it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import StorageUnavailable
from data_contracts.messages.gang import Launch
from infra import scratch
from infra.code_bundle import pack
from infra.gang import supervisor as node_module
from infra.gang.node import LocalNode, local
from infra.gang.supervisor import Publisher, run_node
from infra.processes.processes import find_marked, kill_marked, marked_env
from infra.store import Lease, Store, layout, open_store
from tests.support.coded import publish
from tests.support.conducting import TRAINING, steps
from tests.support.pool import until

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("mark")]

PARENT = """
import sys, time
from infra.gang.node import LocalNode
node = LocalNode([sys.argv[1], "trainings/k-0", "0", "0"], {}, with_parent=sys.argv[2] == "True")
time.sleep(600)
"""


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
            "lease_silence_s": 600,
            "train": {"fake": {"steps": 10, "every": 5, "trace": trace, **fake}},
        }
        publish(store, layout.launch(TRAINING, 0), Launch(training=TRAINING, **{**told, **changes}).to_json())

    return write


def start(store: Store) -> LocalNode:
    return local(store.uri, {}, TRAINING)(0, 0)


def join(store: Store) -> dict[str, Any]:
    """The node's answer to the roll-call."""
    path = layout.joined(TRAINING, 0, 0)
    return until(lambda: store.exists(path) and store.read_json(path))


def meet(store: Store, **changes: Any) -> None:
    """Tell the node that it trains."""
    joined = join(store)
    publish(store, layout.rollcall(TRAINING, 0), {**joined, "nodes": [{**joined, **changes}]})


@pytest.fixture
def trains(store: Store, launch: Callable[..., None]) -> Callable[..., LocalNode]:
    """Launches a node, and tells it that it trains."""

    def begin(fake: dict[str, Any], **changes: Any) -> LocalNode:
        launch(fake, **changes)
        node = start(store)
        meet(store)
        return node

    return begin


def beats(store: Store) -> list[str]:
    return sorted(name for name in store.list(layout.node(TRAINING, 0, 0)) if name.startswith("beat-"))


def in_a_thread(store: Store) -> list[int]:
    """Run the node in this process, where the store can be taken away; its exit code."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run_node(store.uri, {}, TRAINING, 0, 0)))
    thread.start()
    meet(store)
    thread.join()
    return codes


def finished(store: Store, node: LocalNode) -> tuple[str, dict[str, Any]]:
    ended = until(node.ended)
    record = store.read_json(layout.node_exit(TRAINING, 0, 0))
    node.kill()
    return ended, record


@pytest.mark.warm(False)  # a fork has imported json
def test_a_node_runs_the_users_code_from_its_bundle_and_keeps_the_log(
    store: Store, trains: Callable[..., LocalNode], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text("x = 1")
    # A folder of this name in the working directory must not hide the real rank, nor a library.
    (project / "json.py").write_text("raise SystemExit('the wrong json')")
    bundle = pack(project, store)
    node = trains({}, code=bundle.ref.to_json(), devices=2)
    assert finished(store, node)[0] == "ended with exit code 0"
    assert steps(store)[0, 1] == list(range(1, 11))
    text = store.read(layout.rank_log(TRAINING, 0, 0, 1)).decode()
    assert "rank 1 of 2 in " in text
    assert "/project with " in text
    assert beats(store) == sorted(f"beat-{number}.json" for number in range(len(beats(store))))


# The step after which it is started again.
TWICE = [0, *(pytest.param(step, marks=pytest.mark.sweep) for step in (1, 3, 5, 8))]


@pytest.mark.parametrize("step", TWICE)
def test_a_node_started_twice_runs_once(step: int, store: Store, launch: Callable[..., None], tmp_path: Path) -> None:
    goes_on = tmp_path / "goes-on"
    launch({"until": str(goes_on)})
    first = start(store)
    join(store)
    if step:
        meet(store)
        until(lambda: len(steps(store).get((0, 0), [])) >= step)
    assert run_node(store.uri, {}, TRAINING, 0, 0) == 5
    assert first.ended() is None
    assert not store.exists(layout.node_exit(TRAINING, 0, 0))
    if not step:
        meet(store)
    goes_on.touch()
    assert finished(store, first)[1]["status"] == "done"
    assert steps(store)[0, 0] == list(range(1, 11))


def test_asked_to_leave_before_the_start_it_leaves(store: Store, launch: Callable[..., None], mark: str) -> None:
    launch({})
    node = start(store)
    join(store)
    os.kill(node.pid, signal.SIGTERM)
    ended, record = finished(store, node)
    assert ended == "ended with exit code 5"
    assert record["error"]["cause"] == "preempted"
    assert steps(store) == {}


def test_ranks_that_do_not_stop_in_time_are_ended(store: Store, trains: Callable[..., LocalNode], mark: str) -> None:
    node = trains({"faults": [{"generation": 0, "rank": 0, "step": 3, "kind": "hang"}]}, grace_s=0.5)
    until(lambda: len(steps(store).get((0, 0), [])) == 3)
    os.kill(node.pid, signal.SIGTERM)
    ended, record = finished(store, node)
    assert ended == "ended with exit code 5"
    assert record["error"]["cause"] == "preempted"
    assert record["error"]["message"] == "Node 0 was asked to stop and its ranks wrote no checkpoint in time."
    assert find_marked(mark) == []


# what the node is told, and in the roll-call; how it ends; what it says
NEVER_TRAIN = {
    "a roll-call that goes on without it": (
        {"nodes": 2}, {"node": 1}, "ended with exit code 5", "Generation 0 of trainings/k-0 continues without node 0."
    ),
    "ranks that cannot be imported": (
        {"entry": "tests.support.no_such_rank"}, {},
        "ended with exit code 1", "No module named tests.support.no_such_rank",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NEVER_TRAIN)
def test_a_node_that_does_not_train_says_why(case: str, store: Store, launch: Callable[..., None]) -> None:
    changes, meeting, ends, message = NEVER_TRAIN[case]
    launch({}, **changes)
    node = start(store)
    meet(store, **meeting)
    ended, record = finished(store, node)
    assert ended == ends
    assert message in record["error"]["message"]
    assert steps(store) == {}


def test_a_checkpoint_on_its_way_may_arrive_although_a_rank_raised(
    store: Store, trains: Callable[..., LocalNode]
) -> None:
    faults = [{"generation": 0, "rank": 0, "step": 4, "kind": "slow save"}]
    faults += [{"generation": 0, "rank": 1, "step": 4, "kind": "user meanwhile"}]
    _, record = finished(store, trains({"faults": faults, "every": 100}, devices=2))
    assert record["error"]["cause"] == "user_code"
    assert [one["step"] for one in record["ranks"][0]["report"]["checkpoints"]] == [7]


def test_a_cancel_marker_ends_a_node(store: Store, trains: Callable[..., LocalNode], mark: str) -> None:
    node = trains({"steps": 10_000})
    until(lambda: steps(store))
    store.create_json(layout.cancel(TRAINING, 0), {})
    ended, record = finished(store, node)
    assert ended == "ended with exit code 130"
    assert record["error"]["cause"] == "cancelled"
    assert find_marked(mark) == []


@pytest.mark.warm(False)
def test_a_killed_supervisor_takes_its_ranks_with_it(store: Store, trains: Callable[..., LocalNode], mark: str) -> None:
    node = trains({"steps": 10_000}, devices=2)
    until(lambda: len(steps(store)) == 2)
    os.kill(node._process.pid, signal.SIGKILL)
    until(lambda: find_marked(mark) == [])
    assert node.ended() == "was ended by SIGKILL"
    node.kill()


@pytest.mark.warm(False)
@pytest.mark.parametrize("with_parent", [True, False])
def test_a_node_that_minds_its_parent_ends_with_it_and_another_does_not(
    with_parent: bool, store: Store, launch: Callable[..., None], mark: str, tmp_path: Path
) -> None:
    # Ranks with a process in a session of its own, which no signal reaches.
    launch({"steps": 5, "faults": [{"generation": 0, "rank": 0, "step": 3, "kind": "hang"}]})
    command = [sys.executable, "-c", PARENT, store.uri, str(with_parent)]
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    parent = subprocess.Popen(command, env=marked_env(mark, {"TMPDIR": str(tmp)}), start_new_session=True)
    meet(store)
    # Parent, supervisor, torchrun, rank, and what the rank started.
    until(lambda: len(find_marked(mark)) >= 5)
    parent.kill()
    parent.wait()
    if with_parent:
        until(lambda: not find_marked(mark))
    else:
        count = len(beats(store))
        until(lambda: len(beats(store)) >= count + 4)
        assert len(find_marked(mark)) >= 4
    # The folder with the copy of the project goes with the next that makes one on this machine, once nothing uses it.
    [left] = tmp.iterdir()
    os.utime(left / scratch.NOTE, (0, 0))
    scratch.make("test").close()
    if not with_parent:
        assert left.exists()
        kill_marked(mark)
    # The kernel closes a process's files, and so frees the folder's lock, a moment after its environment is gone.
    until(lambda: scratch.make("test").close() or not left.exists())
    assert list(tmp.iterdir()) == []


def test_a_torchrun_that_fails_shows_its_log(store: Store, launch: Callable[..., None]) -> None:
    launch({})
    node = start(store)
    publish(store, layout.rollcall(TRAINING, 0), {**join(store), "port": 99999, "nodes": [join(store)]})
    _, record = finished(store, node)
    assert record["error"]["cause"] == "node_lost"
    assert "torchrun on node 0 ended with exit code 1" in record["error"]["message"]
    assert "port" in record["error"]["details"]["log"]


def test_a_store_that_is_away_delays_beats_but_loses_none(
    store: Store, launch: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank trains on, and beats are numbered without a gap."""
    all_beats = tmp_path / "all-beats"
    launch({"until": str(all_beats)})
    mine = open_store(store.uri)
    real, failures = mine.create_json, [3]

    def sometimes(path: str, value: Any) -> None:
        if "beat-1.json" in path and failures[0] > 0:
            failures[0] -= 1
            raise StorageUnavailable("the store is away.")
        real(path, value)
        if "beat-1.json" in path:
            all_beats.touch()

    monkeypatch.setattr(mine, "create_json", sometimes)
    monkeypatch.setattr(node_module, "open_store", lambda *_, **__: mine)
    assert (in_a_thread(store), failures) == ([0], [0])
    assert beats(store) == sorted(f"beat-{number}.json" for number in range(len(beats(store))))
    assert store.read_json(layout.node_exit(TRAINING, 0, 0))["status"] == "done"


@pytest.mark.parametrize("owner", [node_module, Publisher])
def test_heartbeats_go_on_while_a_node_ends(
    owner: Any, store: Store, launch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is silent is lost, however long it takes to kill what hangs and to store the logs."""
    counts: list[int] = []
    real = owner.end  # of the module: what ends processes; of Publisher: what writes how the node ended

    def slow(*told: Any) -> Any:
        counts.append(len(beats(store)))
        until(lambda: len(beats(store)) >= counts[0] + 3)
        counts.append(len(beats(store)))
        return real(*told)

    monkeypatch.setattr(owner, "end", slow)
    launch({"steps": 3})
    in_a_thread(store)
    assert counts[1] - counts[0] >= 3
