"""The ranks of one node: the command that starts them, and the files in its scratch through which they report.

rank-<r>.json        how far the rank is; rewritten as it goes
rank-<r>.error.json  the error that ended it
rank-<r>.done.json   what it answers at the end
stop                 written here: write a checkpoint and end
"""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data_contracts.errors import NodeLost, OutOfMemory, TrainwrightError, UsageError, from_json
from infra.launch.child import log_tail
from infra.launch.processes import is_alive, module_command, oom_kills, state

SCRATCH = "TRAINWRIGHT_SCRATCH"
WATCH_S = 0.05
# When a rank raised, its peers' threads may still bring a checkpoint that was on its way to its end.
SAVED_WITHIN_S = 10.0
# Below the range from which systems take ports for outgoing connections, so that one found free stays free.
_PORTS = range(20_000, 32_000)


def report_file(scratch: Path, rank: int) -> Path:
    """How far a rank is."""
    return scratch / f"rank-{rank}.json"


def error_file(scratch: Path, rank: int) -> Path:
    """The error that ended a rank."""
    return scratch / f"rank-{rank}.error.json"


def done_file(scratch: Path, rank: int) -> Path:
    """A rank's answer at the end."""
    return scratch / f"rank-{rank}.done.json"


def pid_file(scratch: Path, rank: int) -> Path:
    """A rank's process id."""
    return scratch / f"pid-{rank}.json"


def log_file(scratch: Path, rank: int) -> Path:
    """What a rank and its libraries print."""
    return scratch / f"log-rank-{rank}.txt"


def stop_file(scratch: Path) -> Path:
    """Asks the ranks to write a checkpoint and end."""
    return scratch / "stop"


def torchrun(launch: dict[str, Any], rendezvous: dict[str, Any], place: int, address: str, scratch: Path) -> list[str]:
    """The command that starts this node's ranks once the roll-call fixed where they meet and in which order.

    A static rendezvous: the roll-call already is one, and it was 0.3 s faster than torchrun's c10d. No restarts:
    the conductor decides what follows a failure.
    """
    arguments = {
        "nnodes": len(rendezvous["nodes"]),
        "nproc-per-node": launch["devices"],
        "node-rank": place,
        "rdzv-backend": "static",
        "rdzv-endpoint": f"{rendezvous['address']}:{rendezvous['port']}",
        "local-addr": address,
        "max-restarts": 0,
        "shutdown-timeout": max(1, round(launch["grace_s"])),
        # Else it makes a folder of its own that a kill leaves behind.
        "log-dir": scratch / "torchelastic",
    }
    options = [f"--{name}={value}" for name, value in arguments.items()]
    # --no-python, because -m would put the working directory, the user's project, first on the import path.
    return [
        *module_command("infra.launch.leash", "torch.distributed.run"),
        *options,
        "--no-python",
        *module_command("infra.launch.entry", launch["entry"]),
    ]


def threads_per_rank(devices: int) -> int:
    """OMP_NUM_THREADS: the cores this process may use, divided among the ranks of this machine; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, devices))


def network_env(address: str) -> dict[str, str]:
    """Variables that make gloo and NCCL use the interface that has `address`; {} if none has.

    Left alone they take the one that the host's name resolves to, which may be none of those between the nodes.
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            wanted = {"GLOO_SOCKET_IFNAME": name, "TP_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
            return {key: value for key, value in wanted.items() if key not in os.environ}
    return {}


def free_port(address: str) -> int:
    """A port on `address` that nothing listens on and that no outgoing connection will be given.

    UsageError if this host does not have the address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in random.sample(_PORTS, 100):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                    raise UsageError(
                        f"{socket.gethostname()} has no address {address} ({error.strerror}).",
                        remedy="Set TRAINWRIGHT_ADDRESS to the address under which the other nodes reach it.",
                    ) from error
                continue
            return port
    raise NodeLost(f"No free port was found on {address} for the rendezvous.")


def read_json(path: Path) -> Any:
    """What a rank wrote, or None if it has not yet."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


class RankWatch(threading.Thread):
    """Notices the first rank that fails: one that wrote an error, or one that is gone without an answer.

    A thread of its own, so that a slow store does not blur the order: the first failure is the cause, what follows
    in other ranks (lost connections, torchrun ending them) is its consequence.
    """

    def __init__(self, scratch: Path, ranks: Iterable[int]) -> None:
        super().__init__(daemon=True)
        self.scratch = scratch
        self.ranks = list(ranks)
        self.first: TrainwrightError | None = None
        self._kills = oom_kills()
        self._pids: dict[int, int] = {}
        self._stopped = threading.Event()

    def run(self) -> None:
        """Look until there is a failure or `stop`."""
        while not self._stopped.wait(WATCH_S):
            if self.look() is not None:
                return

    def stop(self) -> None:
        """End the thread; look once more, for what happened since."""
        self._stopped.set()
        if self.is_alive():
            self.join()
        self.look()

    def look(self) -> TrainwrightError | None:
        """The first failure, if there was one by now."""
        if self.first is None:
            # The dead before the errors: a killed rank's peers raise within milliseconds of its death, whereas
            # torchrun ends peers only a monitoring interval after a rank that raised.
            lost = [rank for rank in self.ranks if self._lost(rank)]
            raised = [rank for rank in self.ranks if error_file(self.scratch, rank).exists()]
            if lost:
                self.first = self._loss(lost[0])
            elif raised:
                self.first = self._raised(raised)
        return self.first

    def saving(self) -> bool:
        """Whether a rank has a checkpoint on its way."""
        return any(report.get("saving", False) for report in self.reports())

    def reports(self) -> list[dict[str, Any]]:
        """What the ranks last said of themselves, with the states of their processes."""
        found = []
        for rank in self.ranks:
            pid, report = self._pid(rank), read_json(report_file(self.scratch, rank))
            if report is not None:
                found.append({**report, "state": "" if pid is None else state(pid)})
        return found

    def running(self) -> bool:
        """Whether a rank's process is still there."""
        return any(pid is not None and is_alive(pid) for pid in map(self._pid, self.ranks))

    def answered(self, rank: int) -> bool:
        """Whether a rank wrote its answer or its error."""
        return done_file(self.scratch, rank).exists() or error_file(self.scratch, rank).exists()

    def _lost(self, rank: int) -> bool:
        pid = self._pid(rank)
        # First whether it lives, then whether it answered: it may have done so and ended in between.
        return pid is not None and not is_alive(pid) and not self.answered(rank)

    def _pid(self, rank: int) -> int | None:
        if rank not in self._pids and (known := read_json(pid_file(self.scratch, rank))) is not None:
            self._pids[rank] = known["pid"]
        return self._pids.get(rank)

    def _raised(self, ranks: list[int]) -> TrainwrightError:
        def when(rank: int) -> int:
            return error_file(self.scratch, rank).stat().st_mtime_ns

        rank = min(ranks, key=when)
        error = from_json(read_json(error_file(self.scratch, rank)))
        error.details.setdefault("rank", rank)
        error.details.setdefault("when", when(rank) / 1e9)
        if type(error) is TrainwrightError:
            error.details.setdefault("log", log_tail(log_file(self.scratch, rank)))
        return error

    def _loss(self, rank: int) -> TrainwrightError:
        details = {"rank": rank, "log": log_tail(log_file(self.scratch, rank))}
        if oom_kills() > self._kills:
            return OutOfMemory(f"The kernel killed rank {rank} because the machine ran out of memory.", details=details)
        return NodeLost(f"Rank {rank} ended without an answer.", details=details)
