"""What happens to a gang, whatever runs its nodes: the same cause, budget and first step, and no process is left.

Each script is tried with every launcher, by real processes, a real Prefect, Slurm and sshd, an API server of ours
for Kubernetes' client, and ranks that only count.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data_contracts.messages.gang import Latest, Launch
from infra.gang.ledger import generations
from infra.store import layout
from tests.support.clusters import Cluster, Here, KubernetesCluster, Pool, SlurmCluster, SshHosts, processes_left
from tests.support.conducted import Conducted
from tests.support.conducting import TRAINING
from tests.support.pool import site_with
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]
EVERY_NODE = (0, 1, 2)
STOOD = -1


def fault(kind: str, rank: int = 1, step: int = 7, generation: int = 0, after: int = 5) -> dict[str, Any]:
    """A fault of a rank, once the checkpoint of step 5 is committed."""
    return {"kind": kind, "rank": rank, "step": step, "generation": generation, "after": after}


@dataclass(frozen=True)
class Script:
    """What happens to a gang of three nodes that takes 20 steps, with a checkpoint each 5; and what is to come of it.

    Attributes:
        faults: of the ranks; options: of the request; held: whether the last step waits for a file `go`;
            disk_bytes: of the store's own disk, if it has one.
        act: what is done once step 5 is committed.
        causes: why generations ended; used: of the retry budgets.
        resumed: the step from which a second generation began, or STOOD: the last one of the first; 0: there is none.
        ends: the cause of the end; "" if it trains to the end.
    """

    faults: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    held: bool = False
    disk_bytes: int = 0
    act: Callable[[Cluster, Conducted, Path], Conducted | None] = lambda cluster, gang, folder: None
    causes: tuple[str, ...] = ()
    used: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    ends: str = ""


def again(cluster: Cluster, folder: Path) -> Conducted:
    """Another conductor of the same training."""
    return cluster.conduct(folder, {"steps": 20, "every": 5, "step_s": 0.05}, nodes=3)


def kill_conductor(cluster: Cluster, gang: Conducted, folder: Path) -> Conducted:
    gang.signal(signal.SIGKILL)
    gang.process.wait()
    until(lambda: not processes_left(gang.store), what=lambda: processes_left(gang.store))
    return again(cluster, folder)


def interrupt(cluster: Cluster, gang: Conducted, folder: Path) -> None:
    gang.signal(signal.SIGINT)


def lose(cluster: Cluster, gang: Conducted, folder: Path) -> None:
    cluster.lose(gang, 1)


def let_a_second_wait(cluster: Cluster, gang: Conducted, folder: Path) -> Conducted:
    second = again(cluster, folder)
    until(lambda: any("waiting for it" in line.get("sentence", "") for line in second.lines()), what=second.lines)
    (folder / "go").touch()
    assert gang.process.wait(PATIENCE_S) == 0
    return second


def cut(cluster: Cluster, gang: Conducted, folder: Path) -> None:
    """Reset every connection between the conductor and a node."""
    conductor = gang.store.read_as(layout.launch(TRAINING, 0), Launch.from_json).conductor
    assert conductor is not None
    killed = subprocess.run(
        ["ss", "-H", "-K", "sport", "=", str(conductor.port)], capture_output=True, text=True, check=True
    )
    assert killed.stdout.count("ESTAB") == 3, killed
    (folder / "go").touch()


def restart(cluster: Cluster, gang: Conducted, folder: Path) -> None:
    cluster.restart()
    (folder / "go").touch()


def fill(cluster: Cluster, gang: Conducted, folder: Path) -> None:
    """Leave no room on the disk of the store, until the rank that saves the next checkpoint has said so."""
    ballast = folder / "store" / "ballast"
    room = os.statvfs(folder / "store")
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize)
    (folder / "go").touch()
    gang.said(lambda line: "No space left on device" in line.get("sentence", ""))
    ballast.unlink()


# Rank 0 goes no further meanwhile: ranks that only count do not wait for each other.
WAITS = fault("wait", rank=0, step=9)
LOST = {"causes": ("node_lost",), "used": {"node_lost": 1}, "resumed": 5}
SCRIPTS: dict[str, Script] = {
    "nothing": Script(),
    # Slurm says nothing while the job's other nodes run.
    "the node's supervisor is killed": Script(
        faults=(WAITS, fault("kill node")), options={"launch": {"silence_s": 30}}, **LOST
    ),
    "preempted": Script(
        faults=tuple(fault("terminate node", rank) for rank in EVERY_NODE),
        causes=("preempted",),
        used={"preempted": 1},
        resumed=STOOD,
    ),
    "the conductor is killed": Script(faults=(WAITS,), act=kill_conductor, resumed=5),
    "the conductor is interrupted": Script(faults=(WAITS,), act=interrupt, ends="cancelled"),
    "a machine goes dark": Script(faults=(WAITS,), options={"launch": {"silence_s": 10}}, act=lose, **LOST),
    "a rank is killed": Script(faults=(WAITS, fault("sigkill")), **LOST),
    "a rank ends without an answer": Script(faults=(WAITS, fault("exit")), **LOST),
    "torchrun is killed": Script(faults=(WAITS, fault("kill agent")), **LOST),
    "torchrun is asked to end": Script(
        faults=(WAITS, fault("terminate agent")), causes=("preempted",), used={"preempted": 1}, resumed=5
    ),
    "a rank hangs": Script(
        faults=(WAITS, fault("hang")),
        options={"launch": {"hang_s": 20}},
        causes=("hung",),
        used={"hung": 1},
        resumed=5,
    ),
    "a rank is stopped": Script(
        faults=(WAITS, fault("stop")),
        options={"launch": {"hang_s": 20, "silence_s": 20}},
        causes=("hung",),
        used={"hung": 1},
        resumed=5,
    ),
    "out of memory": Script(
        faults=(WAITS, fault("oom")),
        options={"train": {"global_batch_size": 24}},
        causes=("out_of_memory",),
        used={"oom": 1},
        resumed=5,
    ),
    "the store is away": Script(faults=(WAITS, fault("storage")), causes=("storage",), used={"storage": 1}, resumed=5),
    "the user's code raises": Script(faults=(WAITS, fault("user")), ends="user_code"),
    "our code raises": Script(faults=(WAITS, fault("bug")), ends="internal"),
    "a second conductor waits": Script(act=let_a_second_wait, held=True),
    "connections are cut": Script(act=cut, held=True),
    "a daemon is restarted": Script(act=restart, held=True),
    # Real ranks wait for room; these do not.
    "the store's disk is full for a while": Script(
        faults=(WAITS,), act=fill, disk_bytes=2**23, causes=("storage",), used={"storage": 1}, resumed=5
    ),
}
DEFAULT = ("the node's supervisor is killed", "preempted", "the conductor is killed")
MARKS = {
    "slurm": [pytest.mark.root, *(pytest.mark.apt(name) for name in ("slurmctld", "slurmd", "munge"))],
    "ssh": [pytest.mark.root, pytest.mark.apt("openssh-server")],
}
LAUNCHERS = [
    pytest.param(name, marks=MARKS.get(name, [])) for name in ("local", "work-pool", "slurm", "ssh", "kubernetes")
]


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, state_folder: Path
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    if request.param == "work-pool":
        with site_with(folder, state_folder / "home") as site:
            yield Pool(site)
        return
    made: dict[str, Callable[[], Cluster]] = {
        "local": Here,
        "slurm": SlurmCluster,
        "ssh": lambda: SshHosts(folder),
        "kubernetes": lambda: KubernetesCluster(folder),
    }
    cluster = made[request.param]()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], None]]:
    """Makes a folder a disk of so many bytes, until the end of the test."""
    with contextlib.ExitStack() as stack:

        def make(folder: Path, num_bytes: int) -> None:
            folder.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "disk", folder], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", folder], check=True)

        yield make


@pytest.mark.parametrize("cluster", LAUNCHERS, indirect=True)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DEFAULT else pytest.mark.sweep) for name in SCRIPTS]
)
def test_the_same_happens_whatever_runs_the_nodes(
    name: str, cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    script = SCRIPTS[name]
    faults = [{**fault, "for": str(tmp_path / "go")} for fault in script.faults]
    fake = {"steps": 20, "every": 5, "step_s": 0.05, "faults": faults}
    fake |= {"until": str(tmp_path / "go")} if script.held else {}
    if script.disk_bytes:
        request.getfixturevalue("small_disk")(tmp_path / "store", script.disk_bytes)
    gang = cluster.conduct(tmp_path, fake, nodes=3, **script.options)
    gang.said(lambda line: line["checkpoint_step"] >= 5)
    gang = script.act(cluster, gang, tmp_path) or gang
    last = gang.ended()
    causes = tuple(line["cause"] for line in gang.lines() if line.get("phase") == "ended")
    store = gang.store
    used = Latest.from_json(store.pointer(layout.latest(TRAINING)).read().value).retries.used
    launches = [store.read_json(layout.launch(TRAINING, number)) for number in generations(store, TRAINING)]
    assert (last.get("cause", ""), causes, used) == (script.ends, script.causes, script.used)
    stood = gang.steps()[0, 0][-1]
    wanted = stood if script.resumed == STOOD else script.resumed
    assert [launch["resume"]["step"] for launch in launches[1:]] == ([wanted] if wanted else [])
    assert script.ends or last["step"] == 20
    until(lambda: not processes_left(store), what=lambda: processes_left(store))
