"""A node that minds its parent ends with it, whatever ended that; one of the launcher `local` does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.messages.gang import Launch
from infra import scratch
from infra.processes.processes import find_marked, kill_marked, marked_env
from infra.store import Lease, Store, layout
from tests.support.pool import until

TRAINING = "trainings/k-0"
PARENT = """
import sys, time
from infra.gang.node import LocalNode
node = LocalNode([sys.argv[1], "trainings/k-0", "0", "0"], {}, with_parent=sys.argv[2] == "True")
time.sleep(600)
"""


@pytest.mark.parametrize("with_parent", [True, False])
def test_a_killed_parent_takes_the_node_with_it(with_parent: bool, store: Store, mark: str, tmp_path: Path) -> None:
    Lease.take(store, layout.lease(TRAINING), "test")
    # Ranks with a process in a session of its own, which no signal reaches.
    hang = {"steps": 5, "every": 5, "trace": f"{store.uri}/../trace"}
    hang["faults"] = [{"generation": 0, "rank": 0, "step": 3, "kind": "hang"}]
    rank = {"entry": "tests.support.fake_rank", "train": {"fake": hang}, "heartbeat_s": 0.2}
    store.create_json(layout.launch(TRAINING, 0), Launch(training=TRAINING, nodes=1, devices=1, **rank).to_json())
    command = [sys.executable, "-c", PARENT, store.uri, str(with_parent)]
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    parent = subprocess.Popen(command, env=marked_env(mark, {"TMPDIR": str(tmp)}), start_new_session=True)
    until(lambda: store.exists(layout.joined(TRAINING, 0, 0)), 60)
    mine = store.read_json(layout.joined(TRAINING, 0, 0))
    meeting = {"schema_version": 1, "address": mine["address"], "port": mine["port"], "nodes": [mine]}
    store.create_json(layout.rollcall(TRAINING, 0), meeting)
    # Parent, supervisor, torchrun, rank, and what the rank started.
    until(lambda: len(find_marked(mark)) >= 5, 60)
    parent.kill()
    parent.wait()
    if with_parent:
        until(lambda: not find_marked(mark), 60)
    else:
        beats = len(store.list(layout.node(TRAINING, 0, 0)))
        until(lambda: len(store.list(layout.node(TRAINING, 0, 0))) >= beats + 4, 60)
        assert len(find_marked(mark)) >= 4
    # The folder with the copy of the project goes with the next that makes one on this machine, once nothing uses it.
    [left] = tmp.iterdir()
    os.utime(left / scratch.NOTE, (0, 0))
    scratch.make("test").close()
    if not with_parent:
        assert left.exists()
        kill_marked(mark)
    # The kernel closes a process's files, and so frees the folder's lock, a moment after its environment is gone.
    until(lambda: scratch.make("test").close() or not left.exists(), 60)
    assert list(tmp.iterdir()) == []
