"""One node's supervisor, told by hand what a conductor would tell it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import StorageUnavailable
from data_contracts.messages.gang import CancelMarker, Launch, NodeExit
from infra import scratch
from infra.code_bundle import pack
from infra.gang import supervisor as node_module
from infra.gang.node import LocalNode, LocalNodes
from infra.gang.rank_files import codes_of_generation
from infra.gang.supervisor import TAKEN, Publisher, run_node
from infra.processes.processes import find_marked, kill_marked, marked_env
from infra.store import Lease, Store, layout, open_store
from tests.support.by_hand import ByHand
from tests.support.conducting import TRAINING, steps
from tests.support.pool import until

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("mark")]

PARENT = """
import sys, time
from infra.gang.node import LocalNode
key = {"TRAINWRIGHT_NODE_KEY": sys.argv[3]}
node = LocalNode([sys.argv[1], "trainings/k-0", "0", "0"], key, with_parent=sys.argv[2] == "True")
time.sleep(600)
"""


@pytest.fixture
def launch(store: Store) -> Iterator[Callable[..., ByHand]]:
    """Writes what generation 0 is told, with the lease held by this test, which conducts it."""
    Lease.take(store, layout.lease(TRAINING), "test")
    open_ones = contextlib.ExitStack()

    def write(fake: dict[str, Any], **changes: Any) -> ByHand:
        trace = str(Path(store.uri).parent / "trace")
        told: dict[str, Any] = {
            "entry": "tests.support.fake_rank",
            "nodes": 1,
            "devices": 1,
            "heartbeat_s": 0.1,
            "lease_silence_s": 600,
            "train": {"fake": {"steps": 10, "every": 5, "trace": trace, **fake}},
        }
        return open_ones.enter_context(ByHand(store, Launch(training=TRAINING, **{**told, **changes})))

    with open_ones:
        yield write


def start(hand: ByHand, store: Store) -> LocalNode:
    nodes = LocalNodes(store, hand.launch, hand.hub)
    nodes.start([0])
    return nodes.nodes[0]


@pytest.fixture
def trains(store: Store, launch: Callable[..., ByHand]) -> Callable[..., tuple[ByHand, LocalNode]]:
    """Launches a node, and tells it that it trains."""

    def begin(fake: dict[str, Any], **changes: Any) -> tuple[ByHand, LocalNode]:
        hand = launch(fake, **changes)
        node = start(hand, store)
        hand.meet()
        return hand, node

    return begin


def in_a_thread(hand: ByHand, store: Store) -> list[int]:
    """Run the node in this process, where the store can be taken away; its exit code."""
    codes: list[int] = []
    mine = codes_of_generation(store.uri, TRAINING, 0)
    thread = threading.Thread(target=lambda: codes.append(run_node(store.uri, {}, TRAINING, 0, 0, codes=mine)))
    thread.start()
    hand.meet()
    hand.until(lambda: not thread.is_alive())
    return codes


def finished(hand: ByHand, store: Store, node: LocalNode) -> tuple[str, dict[str, Any]]:
    ended = hand.until(node.ended)
    hand.hear()
    record = store.read_json(layout.node_exit(TRAINING, 0, 0))
    assert hand.exits[0] == NodeExit.from_json(record), "the conductor hears the same"
    node.kill()
    return ended, record


@pytest.mark.warm(False)  # a fork has imported json
def test_a_node_runs_the_users_code_from_its_bundle_and_keeps_the_log(
    store: Store, trains: Callable[..., tuple[ByHand, LocalNode]], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text("x = 1")
    # A folder of this name in the working directory must not hide the real rank, nor a library.
    (project / "json.py").write_text("raise SystemExit('the wrong json')")
    bundle = pack(project, store)
    hand, node = trains({}, code=bundle.ref.to_json(), devices=2)
    assert finished(hand, store, node)[0] == "ended with exit code 0"
    assert steps(store)[0, 1] == list(range(1, 11))
    text = store.read(layout.rank_log(TRAINING, 0, 0, 1)).decode()
    assert "rank 1 of 2 in " in text
    assert "/project with " in text
    assert hand.beats, "its ranks' reports were heard"


# The step after which it is started again.
TWICE = [0, *(pytest.param(step, marks=pytest.mark.sweep) for step in (1, 3, 5, 8))]


@pytest.mark.parametrize("step", TWICE)
def test_a_node_started_twice_runs_once(step: int, store: Store, launch: Callable[..., ByHand], tmp_path: Path) -> None:
    goes_on = tmp_path / "goes-on"
    hand = launch({"until": str(goes_on)})
    first = start(hand, store)
    hand.until(lambda: hand.joined)
    if step:
        hand.meet()
        until(lambda: len(steps(store).get((0, 0), [])) >= step)
    assert run_node(store.uri, {}, TRAINING, 0, 0, codes=codes_of_generation(store.uri, TRAINING, 0)) == TAKEN
    assert first.ended() is None
    assert not store.exists(layout.node_exit(TRAINING, 0, 0))
    if not step:
        hand.meet()
    goes_on.touch()
    assert finished(hand, store, first)[1]["status"] == "done"
    assert steps(store)[0, 0] == list(range(1, 11))


def test_asked_to_leave_before_the_start_it_leaves(store: Store, launch: Callable[..., ByHand], mark: str) -> None:
    hand = launch({})
    node = start(hand, store)
    hand.until(lambda: hand.joined)
    os.kill(node.pid, signal.SIGTERM)
    ended, record = finished(hand, store, node)
    assert ended == "ended with exit code 5"
    assert record["error"]["cause"] == "preempted"
    assert steps(store) == {}


def test_ranks_that_do_not_stop_in_time_are_ended(
    store: Store, trains: Callable[..., tuple[ByHand, LocalNode]], mark: str
) -> None:
    hand, node = trains({"faults": [{"generation": 0, "rank": 0, "step": 3, "kind": "hang"}]}, grace_s=0.5)
    until(lambda: len(steps(store).get((0, 0), [])) == 3)
    os.kill(node.pid, signal.SIGTERM)
    ended, record = finished(hand, store, node)
    assert ended == "ended with exit code 5"
    assert record["error"]["cause"] == "preempted"
    assert record["error"]["message"] == "Node 0 was asked to stop and its ranks wrote no checkpoint in time."
    assert find_marked(mark) == []


def test_a_node_whose_ranks_cannot_be_imported_says_why(
    store: Store, trains: Callable[..., tuple[ByHand, LocalNode]]
) -> None:
    hand, node = trains({}, entry="tests.support.no_such_rank")
    ended, record = finished(hand, store, node)
    assert ended == "ended with exit code 1"
    assert "No module named tests.support.no_such_rank" in record["error"]["message"]


def test_a_checkpoint_on_its_way_may_arrive_although_a_rank_raised(
    store: Store, trains: Callable[..., tuple[ByHand, LocalNode]]
) -> None:
    faults = [{"generation": 0, "rank": 0, "step": 4, "kind": "slow save"}]
    faults += [{"generation": 0, "rank": 1, "step": 4, "kind": "user meanwhile"}]
    hand, node = trains({"faults": faults, "every": 100}, devices=2)
    _, record = finished(hand, store, node)
    assert record["error"]["cause"] == "user_code"
    assert [one["step"] for one in record["ranks"][0]["report"]["checkpoints"]] == [7]


@pytest.mark.parametrize("hears", [True, False])
def test_a_cancel_marker_ends_a_node(
    hears: bool, store: Store, trains: Callable[..., tuple[ByHand, LocalNode]], mark: str
) -> None:
    """It is told; and the first node of a gang reads the store, too."""
    hand, node = trains({"steps": 10_000})
    until(lambda: steps(store))
    if hears:
        hand.tell(0, CancelMarker())
    else:
        store.create_json(layout.cancel(TRAINING, 0), {})
    ended, record = finished(hand, store, node)
    assert ended == "ended with exit code 130"
    assert record["error"]["cause"] == "cancelled"
    assert find_marked(mark) == []


@pytest.mark.warm(False)
def test_a_killed_supervisor_takes_its_ranks_with_it(
    store: Store, trains: Callable[..., tuple[ByHand, LocalNode]], mark: str
) -> None:
    _, node = trains({"steps": 10_000}, devices=2)
    until(lambda: len(steps(store)) == 2)
    os.kill(node._process.pid, signal.SIGKILL)
    until(lambda: find_marked(mark) == [])
    assert node.ended() == "was ended by SIGKILL"
    node.kill()


@pytest.mark.warm(False)
@pytest.mark.parametrize("with_parent", [True, False])
def test_a_node_that_minds_its_parent_ends_with_it_and_another_does_not(
    with_parent: bool, store: Store, launch: Callable[..., ByHand], mark: str, tmp_path: Path
) -> None:
    # Ranks with a process in a session of its own, which no signal reaches.
    hand = launch({"steps": 5, "faults": [{"generation": 0, "rank": 0, "step": 3, "kind": "hang"}]})
    key = codes_of_generation(store.uri, TRAINING, 0).keys[0].hex()
    command = [sys.executable, "-c", PARENT, store.uri, str(with_parent), key]
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    parent = subprocess.Popen(command, env=marked_env(mark, {"TMPDIR": str(tmp)}), start_new_session=True)
    hand.meet()
    # Parent, supervisor, torchrun, rank, and what the rank started.
    until(lambda: len(find_marked(mark)) >= 5)
    parent.kill()
    parent.wait()
    if with_parent:
        until(lambda: not find_marked(mark))
    else:
        count = len(hand.beats)
        hand.until(lambda: len(hand.beats) >= count + 4)
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


def test_a_torchrun_that_fails_shows_its_log(store: Store, launch: Callable[..., ByHand]) -> None:
    hand = launch({})
    node = start(hand, store)
    hand.meet(port=99999)
    _, record = finished(hand, store, node)
    assert record["error"]["cause"] == "node_lost"
    assert "torchrun on node 0 ended with exit code 1" in record["error"]["message"]
    assert "port" in record["error"]["details"]["log"]


def test_a_store_that_is_away_keeps_no_heartbeat_back(
    store: Store, launch: Callable[..., ByHand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank trains on, its conductor hears of it, and what the node wrote at its end is there."""
    goes_on, heard_away = tmp_path / "goes-on", list[int]()
    hand = launch({"until": str(goes_on)})
    mine = open_store(store.uri)
    real = mine.exists

    def away(path: str) -> bool:
        if path != layout.cancel(TRAINING, 0) or goes_on.exists():
            return real(path)
        hand.hear()
        heard_away.append(len(hand.beats))
        if heard_away[-1] >= heard_away[0] + 3:
            goes_on.touch()
        raise StorageUnavailable("the store is away.")

    monkeypatch.setattr(mine, "exists", away)
    monkeypatch.setattr(node_module, "open_store", lambda *_, **__: mine)
    assert in_a_thread(hand, store) == [0]
    assert goes_on.exists()
    assert store.read_json(layout.node_exit(TRAINING, 0, 0))["status"] == "done"


@pytest.mark.parametrize("owner", [node_module, Publisher])
def test_heartbeats_go_on_while_a_node_ends(
    owner: Any, store: Store, launch: Callable[..., ByHand], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is silent is lost, however long it takes to kill what hangs and to store the logs."""
    counts: list[int] = []
    real = owner.end  # of the module: what ends processes; of Publisher: what writes how the node ended

    def slow(*told: Any) -> Any:
        counts.append(len(hand.beats))
        hand.until(lambda: len(hand.beats) >= counts[0] + 3)
        counts.append(len(hand.beats))
        return real(*told)

    monkeypatch.setattr(owner, "end", slow)
    hand = launch({"steps": 3})
    in_a_thread(hand, store)
    assert counts[1] - counts[0] >= 3
