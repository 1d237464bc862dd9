"""Faults at a run of the whole line on hosts of its own, one after the other, and what must hold at its end."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.support.cluster import POOL, Cluster
from tests.support.pool import until
from tests.support.struck_line import BATCH, EVERY, NODES, ROW_BYTES, STEPS_PER_EPOCH, Line, check_samples, disk_of

HOSTS = 3
RECOVERED_S = 300.0
DISK_BYTES = 2**28
GOES_ON_S = 20.0


@dataclass(frozen=True)
class Outcome:
    """What a fault led to.

    Attributes:
        fault: its name; host: of the process or link.
        detected_s: from the fault to the end of its generation; None if training simply went on.
        recovered_s: from there to the first new step.
        lost_steps: taken before the fault and taken again.
        sentence: what the run said of the end of the generation; "" if training went on.
    """

    fault: str
    host: int
    detected_s: float | None
    recovered_s: float
    lost_steps: int
    sentence: str = ""


Undo = Callable[[], None]
Act = Callable[[Cluster, Line, random.Random], tuple[int, Undo]]


@dataclass(frozen=True)
class Fault:
    """What is done, and what the run must say of it.

    Attributes:
        told: of the generation's end, a regular expression with `{rank}` for the rank that is struck, whose node has
            the same number; "" where whoever would say it is what was struck.
        may_go_on: whether training may go on as if nothing had been.
    """

    act: Act
    told: str
    may_go_on: bool = False


def _nothing() -> None:
    pass


def _signal(what: str, number: int) -> Act:
    def act(cluster: Cluster, line: Line, draw: random.Random) -> tuple[int, Undo]:
        found = cluster.processes(what)
        # A host whose link was cut may still have the flow of a generation that is over.
        host = draw.choice(sorted(found.keys() & cluster.processes(RANK).keys()))
        found[host].send_signal(number)
        return host, _nothing

    return act


def _worker(number: int) -> Act:
    def act(cluster: Cluster, line: Line, draw: random.Random) -> tuple[int, Undo]:
        host = draw.choice(sorted(cluster.processes("infra.gang.rank_bootstrap")))
        process = cluster.worker(host)
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:  # as whoever runs services does
            process.kill()
            process.wait(180)
        return host, lambda: cluster.work(host)

    return act


def _conductor(number: int) -> Act:
    def act(cluster: Cluster, line: Line, draw: random.Random) -> tuple[int, Undo]:
        line.process.send_signal(number)
        line.process.wait(180)
        line.conduct()
        return -1, _nothing

    return act


def _link(one_way: bool = False, rendezvous: bool = False) -> Act:
    def act(cluster: Cluster, line: Line, draw: random.Random) -> tuple[int, Undo]:
        ranks = {
            host: process.environ()["RANK"] for host, process in cluster.processes("infra.gang.rank_bootstrap").items()
        }
        host = draw.choice([host for host, rank in ranks.items() if (rank == "0") == rendezvous])
        (cluster.hosts.cut_one_way if one_way else cluster.hosts.cut)(host)
        return host, lambda: cluster.hosts.mend(host)

    return act


def _late(cluster: Cluster, line: Line, draw: random.Random) -> tuple[int, Undo]:
    """A rank dies, and of all workers one alone is there at first for what follows."""
    hosts = cluster.working()
    draw.shuffle(hosts)
    held = [psutil.Process(cluster.worker(host).pid) for host in hosts[1:]]
    held = [child for process in held for child in [process, *process.children()] if "prefect" in str(child.cmdline())]
    host, _ = _signal("infra.gang.rank_bootstrap", signal.SIGKILL)(cluster, line, draw)
    for process in held:
        process.suspend()
    time.sleep(10)
    for process in held:
        process.resume()
    return host, _nothing


def _full(cluster: Cluster, line: Line, draw: random.Random) -> tuple[int, Undo]:
    """The store's disk is full until a save has met it."""
    generation, filler = line.generation(), line.disk / "filler"
    with filler.open("wb") as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(2**16))
            stream.flush()
    with contextlib.suppress(AssertionError):
        until(lambda: line.ended_at(generation) is not None, 30)
    filler.unlink()
    return -1, _nothing


def _memory(cluster: Cluster, line: Line, draw: random.Random) -> tuple[int, Undo]:
    """A rank may take no more memory than it has, but for half of what its micro-batch needs."""
    host, process = draw.choice(sorted(cluster.processes(RANK).items()))
    most = process.memory_info().vms + BATCH // NODES * ROW_BYTES // 2
    process.rlimit(psutil.RLIMIT_AS, (most, most))
    return host, _nothing


RANK, AGENT, FLOW, NODE = (
    "infra.gang.rank_bootstrap",
    "torch.distributed.run",
    "prefect.engine",
    "infra.gang.supervisor",
)
# One that died with its process, whoever noticed first.
_GONE = r"\(node_lost\): (The supervisor of node {rank} \(.*\) ended|Node {rank} \(.*\) has sent no heartbeat)"
_DIED = r"\(node_lost\): (Rank {rank} ended without an answer|torchrun on node {rank} )"
_LEFT = r"\(preempted\): "
_LINK = (
    r"\(node_lost\): The link between node 0 \(.*\) and node 1 \(.*\) is cut, while the heartbeats of both ends arrive"
)
FAULTS = {
    "SIGKILL of a rank": Fault(_signal(RANK, signal.SIGKILL), _DIED),
    "SIGTERM of a rank": Fault(_signal(RANK, signal.SIGTERM), _LEFT),
    "SIGSTOP of a rank": Fault(
        _signal(RANK, signal.SIGSTOP), r"\(hung\): Rank {rank} on node {rank} \(.*\) is stopped \(SIGSTOP\)"
    ),
    "SIGKILL of an agent": Fault(_signal(AGENT, signal.SIGKILL), _DIED),
    "SIGTERM of an agent": Fault(_signal(AGENT, signal.SIGTERM), _LEFT),
    "SIGKILL of a supervisor": Fault(_signal(NODE, signal.SIGKILL), _GONE),
    "SIGSTOP of a supervisor": Fault(_signal(NODE, signal.SIGSTOP), _GONE),
    "SIGKILL of a node flow": Fault(_signal(FLOW, signal.SIGKILL), _GONE),
    "SIGTERM of a node flow": Fault(_signal(FLOW, signal.SIGTERM), _LEFT),
    # A flow outlives its worker if that has no time to end it.
    "SIGKILL of a worker": Fault(_worker(signal.SIGKILL), _GONE, may_go_on=True),
    "SIGTERM of a worker": Fault(_worker(signal.SIGTERM), _GONE, may_go_on=True),
    "SIGKILL of the conductor": Fault(_conductor(signal.SIGKILL), ""),
    "SIGTERM of the conductor": Fault(_conductor(signal.SIGTERM), ""),
    "link cut": Fault(_link(), _LINK),
    "link cut one way": Fault(_link(one_way=True), _LINK),
    "rendezvous cut off": Fault(_link(rendezvous=True), _LINK),
    "node late": Fault(_late, _DIED),
    # A save waits for a disk.
    "disk full": Fault(_full, r"\(storage\): ", may_go_on=True),
    "memory limit": Fault(_memory, r"\(out_of_memory\): "),
}
# Its next generation takes half the micro-batch: the same numbers but for the order of sums.
ROUNDED, TOLERANCE = "memory limit", 1e-4


def strike(name: str, cluster: Cluster, line: Line, draw: random.Random) -> Outcome:
    """Inject a fault once training is under way, and wait until it is again."""
    generation = line.generation()
    began = len(line.taken(generation))
    until(lambda: len(line.taken(generation)) > began + draw.randrange(EVERY), RECOVERED_S, line.said)
    until(lambda: len(cluster.processes(RANK)) == NODES, RECOVERED_S, line.said)
    ranks = {host: process.environ()["RANK"] for host, process in cluster.processes(RANK).items()}
    struck, fault = time.time(), FAULTS[name]
    host, undo = fault.act(cluster, line, draw)
    acted = time.time()
    # Where training goes on as if nothing had been, that is clear two checkpoints later, when silence is noticed, too.
    enough = line.taken(generation)[-1][0] + 2 * EVERY

    def over() -> bool:
        may = fault.may_go_on and line.generation() == generation
        went_on = may and line.taken(generation)[-1][0] > enough and time.time() > acted + GOES_ON_S
        return went_on or any(line.taken(later) for later in range(generation + 1, line.generation() + 1))

    until(over, RECOVERED_S, lambda: f"{name}: {line.said()}")
    undo()
    newest = line.generation()
    if newest == generation:
        return Outcome(name, host, None, 0.0, 0)
    first = next(number for number in range(generation + 1, newest + 1) if line.taken(number))
    # A full disk does not take the marker either: it is over when there is room again.
    marked = line.ended_at(generation)
    ended, struck = (acted, acted) if marked is None else (marked, struck)
    resumed = line.taken(first)[0][1]
    sentence = line.end_of(generation)
    assert re.match(fault.told.format(rank=ranks.get(host, "")), sentence), f"{name}: {sentence}\n{line.said()}"
    lost = max(step for step, _, _ in line.taken(generation)) - line.resumed(first)
    return Outcome(name, host, max(0.0, ended - struck), resumed - ended, lost, sentence)


def soak(folder: Path, faults: list[str], seed: int, say: Callable[[str], None] = print) -> list[Outcome]:
    """Strike a run with these faults one after the other; checked at the end against the same run with none.

    The weights must be the same to the bit, or within TOLERANCE if one of the faults is ROUNDED: then without dropout,
    whose random numbers have no counterpart with another micro-batch.
    """
    draw = random.Random(seed)
    outcomes = []
    dropout = 0.0 if ROUNDED in faults else 0.1
    with _disk(disk_of(folder / "struck")), _cluster(folder / "cluster") as cluster:
        line = Line(folder / "struck", cluster, epochs=max(6, 8 * len(faults)), hurried=False, dropout=dropout)
        try:
            line.conduct()
            until(lambda: line.taken(0), RECOVERED_S, line.said)
            for name in faults:
                outcomes.append(strike(name, cluster, line, draw))
                say(json.dumps(asdict(outcomes[-1])))
            line.hurry()
            line.process.wait(RECOVERED_S + line.total)
            assert line.process.returncode == 0, line.said()
            until(lambda: not cluster.left(RANK, NODE), what=lambda: cluster.left(RANK, NODE))
            until(lambda: cluster.site.slots(POOL) == 0, 150)
            check_samples(line)
            found = line.weights()
        finally:
            line.close()
    epochs = line.total // STEPS_PER_EPOCH
    undisturbed = Line(folder / "undisturbed", None, epochs=epochs, hurried=True, dropout=dropout)
    undisturbed.alone()
    expected = undisturbed.weights()
    assert expected.keys() == found.keys()
    most = max(float((value.double() - found[name].double()).abs().max()) for name, value in expected.items())
    say(f"weights differ from those of an undisturbed run by {most:g} at most")
    assert most <= (TOLERANCE if ROUNDED in faults else 0.0)
    return outcomes


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """A disk of its own for a folder, there before the hosts are: they see what was mounted when they began."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "store", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False, capture_output=True)


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Cluster]:
    folder.mkdir(parents=True)
    cluster = Cluster(folder, HOSTS, slots=2 * NODES)
    try:
        yield cluster
    finally:
        cluster.close()
