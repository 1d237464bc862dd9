"""The ranks of one node: the command that starts them, the thread that notices which of them fails first, their logs.

What ranks print is stored chunk by chunk while they run, and the end of each log as one text when their node ends. For
a withheld log, the store keeps a sentence that says where the log is. Before ranks are killed, their stacks are taken:
what each of their threads was doing.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from data_contracts.errors import NodeLost, TrainwrightError, UsageError
from data_contracts.messages.gang import Launch, Place, RankReport
from infra.child import log_tail
from infra.gang.autopsy import RankFailure, ended, exit_codes, root_failure
from infra.gang.rank_files import ADDRESS, RankFiles
from infra.processes.processes import is_alive, module_command, oom_kills, state
from infra.processes.this_process import now_s
from infra.store import Store, layout
from infra.telemetry import TRACEPARENT, fields_env, parsed

# Neither a library nor Lightning uses SIGUSR2; batch systems warn with SIGUSR1.
SIGNAL = signal.SIGUSR2
# Ranks that are asked for their stacks get this long to print them, and print no more after this silence.
WAIT_S, QUIET_S = 5.0, 0.5
MOST_BYTES = 16_384
# How often a chunk of each log is stored, and how long a chunk and the end of a log may be.
EVERY_S = 30.0
CHUNK_BYTES = 2**14
END_BYTES = 2**20
WATCH_S = 0.05
# After a rank raised, its peers' threads get this long to finish a checkpoint that is being saved.
SAVED_WITHIN_S = 30.0
# Below the range from which systems take ports for outgoing connections.
_PORTS = range(20_000, 32_000)
# Every rank of a gang may connect at the same moment; the kernel has a limit of its own.
_BACKLOG = 4096


def torchrun(
    launch: Launch,
    place: Place,
    address: str,
    scratch: Path,
    listener: socket.socket | None,
    python: str = sys.executable,
) -> list[str]:
    """The command that starts this node's ranks, once the roll-call has fixed their meeting point and order.

    The rendezvous is static, because the roll-call has the same function; it was 0.3 s faster than torchrun's c10d.
    There are no restarts: the conductor decides what follows a failure.

    Args:
        listener: the rendezvous socket, on the first node; the command's process must inherit it.
        python: the interpreter of the user's environment.
    """
    arguments = {
        "nnodes": place.nodes,
        "nproc-per-node": launch.devices,
        "rdzv-backend": "bound",
        "rdzv-endpoint": f"{place.address}:{place.port}",
        "rdzv-conf": f"rank={place.place}" if listener is None else f"rank={place.place},fd={listener.fileno()}",
        "local-addr": address,
        "max-restarts": 0,
        "shutdown-timeout": max(1, round(launch.grace_s)),
        # Otherwise torchrun makes a folder of its own, which a kill leaves behind.
        "log-dir": scratch / "torchelastic",
    }
    options = [f"--{name}={value}" for name, value in arguments.items()]
    # --no-python, because -m would put the working directory, the user's project, first on the import path.
    return [
        *module_command("infra.processes.tied_to_parent", "training.fit.torchrun_agent", python=python),
        *options,
        "--no-python",
        *module_command("infra.gang.rank_bootstrap", launch.entry, python=python),
    ]


def network_env(address: str) -> dict[str, str]:
    """Variables that make gloo and NCCL use the interface that has `address`; {} if none has.

    Without them gloo and NCCL use the interface that the host's name resolves to, which may not connect the nodes.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            wanted = {"GLOO_SOCKET_IFNAME": name, "TP_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
            return {key: value for key, value in wanted.items() if key not in os.environ}
    return {}


def origin_env(launch: Launch, node: int) -> dict[str, str]:
    """The variables that name a node's span to its ranks, and what each line of their logs says of their origin."""
    above = parsed(launch.traceparent)
    trace = {} if above is None else {TRACEPARENT: str(above.child("node", launch.generation, node))}
    run = launch.provenance.get("run_id", "")
    return {**trace, **fields_env(run=run, generation=launch.generation, node=node)}


def listen(address: str) -> socket.socket:
    """A socket that listens on `address` alone, on a port that no outgoing connection is given.

    UsageError if this host does not have the address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in random.sample(_PORTS, 100):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(_BACKLOG)
            return listener
        except OSError as error:
            listener.close()
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise UsageError(
                    f"{socket.gethostname()} has no address {address} ({error.strerror}).",
                    remedy=f"Set {ADDRESS} to the address under which the other nodes reach it.",
                ) from error
    raise NodeLost(f"No free port was found on {address} for the rendezvous.")


class RankWatch(threading.Thread):
    """Detects the ranks that fail: those that wrote an error, or are gone without an answer.

    It is a thread of its own so that a slow store does not blur the order. The first failure that it sees ends the
    node; `cause` decides, by all that was seen until then, which of them caused the others (lost connections, torchrun
    ending them).

    Args:
        now: seconds since the epoch, by the clock of the ranks' files.
    """

    def __init__(self, ranks: Iterable[RankFiles], now: Callable[[], float] = now_s) -> None:
        super().__init__(daemon=True)
        self.ranks = list(ranks)
        self.first: TrainwrightError | None = None
        self._kills, self._killed_at, self._now = oom_kills(), 0.0, now
        self._pids: dict[int, int] = {}
        self._died: dict[int, float] = {}
        self._stopped = threading.Event()

    def run(self) -> None:
        """Look until `stop`."""
        while not self._stopped.wait(WATCH_S):
            self.look()

    def stop(self) -> None:
        """End the thread, then look once more for later failures."""
        self._stopped.set()
        if self.is_alive():
            self.join()
        self.look()

    def look(self) -> TrainwrightError | None:
        """The first failure so far; None if there is none."""
        # The dead before the errors: a killed rank's peers raise within milliseconds of its death, whereas torchrun
        # ends peers only a monitoring interval after a rank that raised.
        lost = [rank for rank in self.ranks if self._is_lost(rank)]
        if (kills := oom_kills()) > self._kills:
            self._kills, self._killed_at = kills, self._now()
        for rank in lost:
            self._died.setdefault(rank.rank, self._now())
        if self.first is None:
            raised = [rank for rank in self.ranks if rank.has_error]
            if lost:
                self.first = ended(self._failure(lost[0]), killed_at=self._killed_at)
            elif raised:
                self.first = self._failure(min(raised, key=lambda rank: rank.error_ns)).error
        return self.first

    def cause(self, torchrun_log: Path | None = None) -> TrainwrightError | None:
        """The failure that caused the others that were seen so far; None if there is none."""
        failures = [self._failure(rank) for rank in self.ranks if rank.has_error or rank.rank in self._died]
        # Read on this machine alone, also where the text is withheld.
        text = "" if torchrun_log is None else log_tail(torchrun_log.resolve())
        codes = exit_codes(text, min((rank.rank for rank in self.ranks), default=0))
        return root_failure(failures, killed_at=self._killed_at, codes=codes)

    def saving(self) -> bool:
        """Whether a rank is saving a checkpoint."""
        return any(report.saving for report in self.reports())

    def reports(self) -> list[RankReport]:
        """The last report of each rank, with the state of its process."""
        found = []
        for rank in self.ranks:
            pid, report = self._pid(rank), rank.report()
            if report is not None:
                found.append(report.model_copy(update={"state": "" if pid is None else state(pid)}))
        return found

    def running(self) -> bool:
        """Whether a rank's process is still there."""
        return any(pid is not None and is_alive(pid) for pid in map(self._pid, self.ranks))

    def all_done(self) -> bool:
        """Whether every rank wrote its answer."""
        return all(rank.is_done for rank in self.ranks)

    def _is_lost(self, rank: RankFiles) -> bool:
        pid = self._pid(rank)
        # First whether it lives, then whether it answered: it may answer and end in between.
        return pid is not None and not is_alive(pid) and not (rank.is_done or rank.has_error)

    def _pid(self, rank: RankFiles) -> int | None:
        if rank.rank not in self._pids and (pid := rank.pid()) is not None:
            self._pids[rank.rank] = pid
        return self._pids.get(rank.rank)

    def _failure(self, rank: RankFiles) -> RankFailure:
        error = rank.error()
        if error is None:
            printed, log = log_tail(rank.log.resolve()), log_tail(rank.log)
            return RankFailure(rank.rank, self._died[rank.rank], printed=printed, log=log)
        at = rank.error_ns / 1e9
        error.details.setdefault("rank", rank.rank)
        error.details.setdefault("when", at)
        if type(error) is TrainwrightError:
            error.details.setdefault("log", log_tail(rank.log))
        return RankFailure(rank.rank, at, error)


class RankLogs:
    """Stores the logs of one node's ranks.

    Args:
        place: training, generation and number of the node.
    """

    def __init__(self, store: Store, place: tuple[str, int, int]) -> None:
        self._store, self._place = store, place
        self._chunks: Counter[int] = Counter()
        self._read: Counter[int] = Counter()
        self._next = time.monotonic() + EVERY_S

    def add(self, ranks: Iterable[RankFiles]) -> None:
        """If it is time, store what was printed since; at most the newest CHUNK_BYTES. Raises StorageUnavailable."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        for files in ranks:
            rank, log = files.rank, files.log
            size = log.stat().st_size if log.exists() else 0
            if size == self._read[rank] or (log.is_symlink() and self._chunks[rank]):
                continue
            chunk = _chunk(log, max(self._read[rank], size - CHUNK_BYTES))
            self._store.create_once(layout.rank_log(*self._place, rank, self._chunks[rank]), chunk)
            self._chunks[rank] += 1
            self._read[rank] = size

    def end(self, ranks: Iterable[RankFiles]) -> None:
        """Store the end of each log; a log that cannot be stored is left out."""
        for files in ranks:
            if files.log.exists():
                path = layout.rank_log(*self._place, files.rank)
                with contextlib.suppress(TrainwrightError):
                    self._store.create_once(path, log_tail(files.log, END_BYTES).encode())


def _chunk(log: Path, start: int) -> bytes:
    if log.is_symlink():
        return log_tail(log).encode()
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read(CHUNK_BYTES)


def kept_log(store: Store, training: str, generation: int, node: int, rank: int) -> str | None:
    """The end of a rank's log, or the chunks stored so far; None if nothing was stored."""
    place = (training, generation, node)
    try:
        return store.read(layout.rank_log(*place, rank)).decode(errors="replace")
    except FileNotFoundError:
        pass
    chunks: list[bytes] = []
    with contextlib.suppress(FileNotFoundError):
        while True:
            chunks.append(store.read(layout.rank_log(*place, rank, len(chunks))))
    return b"".join(chunks).decode(errors="replace") if chunks else None


def answer_with_stacks(file: Path | None = None) -> None:
    """Make this process print the stacks of its threads when it receives SIGNAL, whatever it is doing.

    Args:
        file: receives the stacks if the process's log is withheld: faulthandler prints in chunks, and other threads
            print values in between. Default: its log.
    """
    if file is None:
        faulthandler.register(SIGNAL, all_threads=True)
    else:
        faulthandler.register(SIGNAL, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), all_threads=True)


def take_stacks(ranks: Iterable[RankFiles]) -> dict[int, str]:
    """Each rank's stacks as text, or why a rank gave none. A rank's log holds them too unless it is withheld."""
    found: dict[int, str] = {}
    asked: list[_Asked] = []
    for rank in ranks:
        pid = rank.pid()
        letter = "" if pid is None else state(pid)
        if pid is None or letter in ("", "Z", "X"):
            found[rank.rank] = "It has no process."
        elif letter == "T":
            found[rank.rank] = f"Process {pid} is stopped (SIGSTOP), so it cannot say."
        else:
            # A withheld log is a link, and the stacks have a file of their own.
            asked.append(_Asked(rank.rank, rank.stack if rank.log.is_symlink() else rank.log))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGNAL)
    return {**found, **_printed(asked)}


class _Asked:
    """A rank that was asked for its stacks, and what it has printed since."""

    def __init__(self, rank: int, file: Path) -> None:
        self.rank, self._file = rank, file
        self._before = self.size

    @property
    def size(self) -> int:
        return self._file.stat().st_size

    @property
    def has_printed(self) -> bool:
        return self.size > self._before

    def text(self) -> str:
        with self._file.open("rb") as printed:
            printed.seek(self._before)
            return printed.read(MOST_BYTES).decode(errors="replace").strip()


def _printed(ranks: list[_Asked]) -> dict[int, str]:
    """What the ranks have printed since, once they print no more."""
    until = time.monotonic() + WAIT_S
    sizes, quiet = [rank.size for rank in ranks], time.monotonic()
    while ranks and time.monotonic() < until:
        time.sleep(0.02)
        now = [rank.size for rank in ranks]
        if now != sizes:
            sizes, quiet = now, time.monotonic()
        elif all(rank.has_printed for rank in ranks) and time.monotonic() - quiet > QUIET_S:
            break
    return {rank.rank: rank.text() or "It did not say." for rank in ranks}
