"""The supervisor of one node of a gang: `python -m infra.gang.supervisor STORE TRAINING GENERATION NODE`.

It answers the roll-call, lays out code, environment and dataset, starts torchrun, sends a heartbeat per interval, and
in the end writes `exit.json` and says the same. It ends everything it started: at the end, on a cancel marker, on
SIGTERM, and when its conductor is gone. All the while it probes which other nodes it can reach, to distinguish a cut
link from a hung rank. It uses neither torch nor the orchestrator, and makes no decisions for the gang. STORE_OPTIONS,
STORE_POINTERS and ADDRESS (see `infra.gang.rank_files`) complete its arguments.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from data_contracts.costs import Resources
from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Fenced,
    NodeLost,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.messages.gang import Heartbeat, Joined, Launch, NodeExit, Place, RankEnd
from data_contracts.quoting import LOG, PROJECT
from infra import scratch, stopping
from infra.child import log_tail
from infra.code_bundle import unpack
from infra.environments.cache import interpreter
from infra.gang import ranks
from infra.gang.autopsy import node_error
from infra.gang.hub import Line
from infra.gang.rank_files import (
    ADDRESS,
    DATASET,
    LAUNCH,
    NO_CODES,
    NODE_KEY,
    SCRATCH,
    STORE,
    Codes,
    RankFiles,
    stop_file,
    store_env,
    store_options,
    write_key,
    write_launch,
)
from infra.gang.ranks import RankLogs, RankWatch, take_stacks
from infra.gpus import EnergyMeter, gpu_readings, installed_nvml
from infra.machine import num_gpus, threads_per_process
from infra.processes.child_main import PARENT, end_with_parent
from infra.processes.environment import explain, for_user_code, new_log
from infra.processes.processes import end, marked_env, new_mark, uninterrupted
from infra.processes.this_process import COUNTERS, now_s
from infra.records.handoffs import local_dataset, mixed
from infra.records.nodes import import_places, note_environment, this_node
from infra.store import Store, layout, open_store
from infra.store.lease import ConductorWatch, patiently
from infra.telemetry import begin_json_logs

T = TypeVar("T")
PROBE_S = 2.0
# Two failed probes in a row: the first packet of a connection may be lost once and is resent after a second.
MISSES = 2
# After a rank failed, its peers get this long to end by themselves, so that their logs say why.
SETTLE_S = 1.0
# The exit code of a process that another one is the same node as.
TAKEN = 75
# How long a node that ends tries to store how it ended, and then to tell its conductor.
STORED_S, HEARD_S = 30.0, 30.0


def run_node(
    store_uri: str,
    options: Mapping[str, Any],
    training: str,
    generation: int,
    node: int,
    *,
    address: str = "127.0.0.1",
    codes: Codes = NO_CODES,
) -> int:
    """Supervise node `node` of a generation until it ends; returns the error's exit code, 0 when done.

    SIGTERM, or a marker that says so, asks the ranks for a checkpoint and ends with Preempted. A cancel marker, a newer
    token or a lease that stood still for `lease_silence_s` ends everything at once. The result is in `exit.json`.

    Args:
        address: under which the other nodes reach this host.
        codes: of the generation: the node takes no launch without a right code.
    """
    store = patiently(lambda: open_store(store_uri, options, create=False))
    try:
        supervisor = _Supervisor(store, training, generation, node, address, codes)
    except CorruptError as error:
        # The conductor gives the cause: a node that only ended would be started again.
        path = layout.node_exit(training, generation, node)
        record = codes.coded(path, NodeExit(status="failed", error=error.to_json()).to_json())
        patiently(lambda: store.create_once(path, record))
        return error.exit_code
    if threading.current_thread() is not threading.main_thread():
        return supervisor.run()
    before = signal.signal(signal.SIGTERM, lambda *_: supervisor.ask_to_stop())
    try:
        return supervisor.run()
    finally:
        signal.signal(signal.SIGTERM, before)


class _Supervisor:
    def __init__(self, store: Store, training: str, generation: int, node: int, address: str, codes: Codes) -> None:
        self.store, self.training, self.generation, self.node = store, training, generation, node
        self.address, self.place, self.codes = address, (training, generation, node), codes
        path = layout.launch(training, generation)
        self.launch = patiently(lambda: store.read_as(path, codes.checking(path, Launch.from_json)))
        self.poll_s, self.grace_s, self.devices = self.launch.poll_s, self.launch.grace_s, self.launch.devices
        self.listener: socket.socket | None = None
        self.stacks: dict[int, str] = {}
        self.conductor = ConductorWatch(store, self.launch)
        self.mark = new_mark()
        # Given by a launcher that outlives this process and removes the folder in any case.
        given = os.environ.get(SCRATCH)
        self.own_scratch = None if given else scratch.make("node", mark=self.mark)
        self.scratch = self.own_scratch.path if self.own_scratch is not None else Path(given or "")
        self.scratch.mkdir(parents=True, exist_ok=True)
        # Until the roll-call fixes the order of the nodes.
        self.ranks = self._ranks_at(node)
        self.publisher = Publisher(store, self.place, self.launch.beat_s, self.ranks, codes)
        self.line: Line | None = None
        # The first node of the gang reads from the store, too, whether the conductor is still the one that counts.
        self.is_first = False
        self.stop_asked: float | None = None

    def run(self) -> int:
        """Run everything from the roll-call to `exit.json`."""
        started = now_s()
        error: TrainwrightError | None = None
        try:
            self._join()
            inputs = in_background(self._lay_out)
            place = self._roll_call(inputs)
            self._train(place, inputs.result())
        except TrainwrightError as caught:
            error = caught
        except KeyboardInterrupt:
            error = Cancelled(f"Node {self.node} was interrupted.")
        except Exception as caught:
            traceback.print_exc()
            error = TrainwrightError(f"The supervisor of node {self.node} failed: {type(caught).__name__}: {caught}.")
        self._stop_listening()
        if error is not None:
            error.details.setdefault("node", self.node)
            if isinstance(error, Preempted) and stopping.is_planned():
                error.details["planned"] = True
        with self.publisher.beating():
            self.publisher.end(started, error, self.stacks, 0.0 if self.conductor.is_gone else HEARD_S)
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.own_scratch is not None:
            self.own_scratch.close()
        if error is None:
            return 0
        return TAKEN if error.details.get("taken") else error.exit_code

    def ask_to_stop(self) -> None:
        """Ask the ranks for one consistent checkpoint; called from a signal handler, so it only sets a flag."""
        self.stop_asked = self.stop_asked or time.monotonic()

    def _join(self) -> None:
        """Answer the roll-call."""
        conductor = self.launch.conductor
        if conductor is None:
            raise UsageError(
                f"{layout.launch(self.training, self.generation)} was written by an earlier Trainwright.",
                remedy="Use the same version for the conductor and its nodes.",
            )
        self.listener = ranks.listen(self.address)
        if self.launch.nodes > 1:
            self.publisher.probe = PeerProbe(self.address)
        mine = Joined(
            node=self.node,
            address=self.address,
            port=self.listener.getsockname()[1],
            host=this_node(),
            pid=os.getpid(),
            instance=self.mark,
            time=now_s(),
            links=None if self.publisher.probe is None else self.publisher.probe.port,
        )
        self.line = self.publisher.line = Line(conductor, mine, self.codes)
        self.line.start()

    def _roll_call(self, inputs: Future[Inputs]) -> Place:
        """Wait until this node has its place and `inputs` are laid out; Preempted if it is asked to stop meanwhile."""
        assert self.line is not None, "it has joined"
        while self.line.place is None or not inputs.done():
            self._tick()
            if self.stop_asked is not None:
                raise Preempted(f"Node {self.node} was asked to stop before it had begun.")
            time.sleep(self.poll_s)
        inputs.result()  # raises an error of laying out
        place = self.line.place
        self.is_first = place.place == 0
        self.ranks = self.publisher.ranks = self._ranks_at(place.place)
        if self.publisher.probe is not None:
            self.publisher.probe.meet(place.peers)
        return place

    def _train(self, place: Place, inputs: Inputs) -> None:
        listener = self.listener if self.is_first else None
        command = ranks.torchrun(self.launch, place, self.address, self.scratch, listener, inputs.python)
        environ = for_user_code(os.environ, {"store": self.store.address.to_json()})
        log = self.scratch / "torchrun.txt"
        if self.launch.withhold:
            log.symlink_to(new_log(f"g{self.generation}-node-{self.node}"))
        watch = self.publisher.watch = ranks.RankWatch(self.ranks)
        watch.start()
        process: subprocess.Popen[bytes] | None = None
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    cwd=inputs.project,
                    env=marked_env(self.mark, self._env(place, inputs, log), environ),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=[] if listener is None else [listener.fileno()],
                )
            # Only torchrun keeps the socket, so that connections are refused once it has ended.
            self._stop_listening()
            self._follow(process, watch, alone=place.nodes == 1)
        except Cancelled as error:
            if error.details.get("stacks"):
                self.stacks = take_stacks(self.ranks)
            raise
        finally:
            if self.publisher.probe is not None:
                self.publisher.probe.stop()
            with uninterrupted(), self.publisher.beating():
                cause = watch.cause(log)  # before the other ranks are ended, too
                code = end(self.mark, process)
                watch.stop()
        try:
            self._judge(code, watch, log, cause or watch.first)
        except UserCodeError as error:
            explain(error, environ)
            raise

    def _follow(self, process: subprocess.Popen[bytes], watch: ranks.RankWatch, *, alone: bool) -> None:
        """Tick until torchrun ends, or until the deadline after a failure, a stop or the answers."""
        deadline: float | None = None
        while process.poll() is None:
            self._tick()
            if deadline is None and self.stop_asked is not None:
                stop_file(self.scratch).touch()
                deadline = self.stop_asked + self.grace_s
            if watch.first is not None and not isinstance(watch.first, Preempted):
                # A dead rank can take part in no checkpoint.
                saving = not isinstance(watch.first, NodeLost) and watch.saving()
                settle_s = ranks.SAVED_WITHIN_S if saving else SETTLE_S
                deadline = min(deadline or float("inf"), time.monotonic() + settle_s)
            elif watch.first is not None:
                # Peers are still saving the same checkpoint.
                deadline = deadline or time.monotonic() + self.grace_s
            elif watch.all_done():
                deadline = deadline or time.monotonic() + self.grace_s
                # Without other nodes, torchrun is no longer needed; its own end would take half a second.
                if alone and not watch.running():
                    return
            if deadline is not None and time.monotonic() > deadline:
                return
            # Not Popen.wait, which polls a hundred times a second on a core that the ranks need.
            time.sleep(self.poll_s)

    def _judge(self, returncode: int | None, watch: ranks.RankWatch, log: Path, cause: TrainwrightError | None) -> None:
        """Raise the error that ended the ranks, if they did not end well."""
        if cause is None and watch.all_done():
            return
        error = node_error(self.node, cause, asked_to_stop=self.stop_asked is not None)
        if error is not None:
            # Paths as the author knows them: from the project's root, not from this node's copy of it.
            error.user_traceback = error.user_traceback.replace(f"{self.scratch / 'project'}{os.sep}", "")
            raise error
        how = "was killed and does not end" if returncode is None else f"ended with exit code {returncode}"
        details = {"log": log_tail(log)}
        raise NodeLost(f"torchrun on node {self.node} {how} before its ranks had answered.", details=details)

    def _tick(self) -> None:
        """One round: check whether the conductor still wants this node to run, and send a due heartbeat.

        Raises: Fenced if another process is this node; Cancelled; and what `ConductorWatch.look` raises.
        """
        line = self.line
        assert line is not None, "it has joined"
        if line.is_taken:
            sentence = f"Node {self.node} of generation {self.generation} of {self.training} runs already."
            raise Fenced(sentence, details={"taken": True})
        if line.marker is not None:
            self.conductor.heed(line.marker)
        if line.is_cut or self.is_first:
            self.conductor.look(hears=not line.is_cut)
        if self.conductor.wants_end:
            self.ask_to_stop()
        self.publisher.beat_if_due()

    def _env(self, place: Place, inputs: Inputs, log: Path) -> dict[str, str]:
        write_key(self.scratch, self.codes)
        # A rank that scores has as many threads as one process does.
        threads = threads_per_process(1 if self.launch.remote_job else self.devices * place.on_host)
        return {
            "OMP_NUM_THREADS": str(self.launch.threads or os.environ.get("OMP_NUM_THREADS", threads)),
            **ranks.network_env(self.address),
            **scratch.variables(scratch.default_root() if self.own_scratch is None else self.own_scratch.path),
            **ranks.origin_env(self.launch, self.node),
            LAUNCH: str(write_launch(self.scratch, self.launch)),
            STORE: self.store.uri,
            **store_env(self.store.storage_options, self.store.pointers),
            SCRATCH: str(self.scratch),
            PROJECT: str(inputs.project),
            DATASET: str(inputs.dataset or ""),
            LOG: str(log.resolve()) if log.is_symlink() else "",
        }

    def _lay_out(self) -> Inputs:
        return lay_out_inputs(self.store, self.launch, self.scratch / "project")

    def _ranks_at(self, place: int) -> list[RankFiles]:
        """The ranks of the node that comes at `place` in the order of the nodes."""
        return [RankFiles(self.scratch, rank) for rank in range(place * self.devices, (place + 1) * self.devices)]

    def _stop_listening(self) -> None:
        if self.listener is not None:
            self.listener.close()


@dataclass(frozen=True)
class Inputs:
    """What a node's ranks need.

    Attributes:
        project: folder of the user's code.
        python: the interpreter of its environment.
        dataset: folder of the dataset; None with external data.
    """

    project: Path
    python: str
    dataset: Path | None


def lay_out_inputs(store: Store, launch: Launch, project: Path) -> Inputs:
    """Unpack the code into the new folder `project`, make its environment if needed, and lay out the dataset.

    Raises:
        CorruptError: the dataset is gone, or it or the code is not what was sealed.
        UsageError: the packages of the environment cannot be installed here.
    """
    project.mkdir()
    if (code := launch.code) is not None:
        patiently(lambda: unpack(store, code, project, code_digest=launch.code_digest))
    python = patiently(lambda: interpreter(project))
    note_environments(store, launch, sys.executable, *import_places(project))
    if launch.dataset is None:
        return Inputs(project, python, None)
    sealed = mixed(launch.dataset, launch.mixture)
    try:
        return Inputs(project, python, patiently(lambda: local_dataset(store, sealed)))
    except FileNotFoundError as error:
        raise CorruptError(f"The dataset {sealed.ref.uri} is missing.") from error


def note_environments(store: Store, launch: Launch, *places: str) -> None:
    """Write down for the launch's run what this node's processes import from, before they begin; a game has no run."""
    run_id = launch.provenance.get("run_id") or layout.run_of_remote_job(launch.training)
    for place in set(places) if run_id is not None else ():
        patiently(partial(note_environment, store, str(run_id), place))


def in_background(work: Callable[[], T]) -> Future[T]:
    """Begin work in a daemon thread, so that the thread that waits for it can keep watching meanwhile."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class Publisher:
    """Says what one node's ranks report.

    Args:
        number: training, generation and number of the node.
        interval_s: between two heartbeats.
        codes: of the generation.

    Attributes:
        ranks: the node's ranks, as far as they are known.
        watch: reads their reports, once they are started.
        probe: knows which other nodes this one reaches; None in a gang of one node.
        line: to the conductor; None before the node joins.
    """

    def __init__(
        self, store: Store, number: tuple[str, int, int], interval_s: float, ranks: Sequence[RankFiles], codes: Codes
    ) -> None:
        self.ranks = ranks
        self.watch: RankWatch | None = None
        self.probe: PeerProbe | None = None
        self.line: Line | None = None
        self._store, self._number, self._interval_s, self._codes = store, number, interval_s, codes
        self._logs = RankLogs(store, number)
        self._energy, self._nvml = EnergyMeter(), installed_nvml()
        self._next = 0.0

    def beat_if_due(self) -> None:
        """Send a heartbeat if the interval since the last one is over; the first node stores what its ranks print."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval_s
            self._beat()
            if any(rank.rank == 0 for rank in self.ranks):
                with contextlib.suppress(StorageUnavailable):
                    self._logs.add(self.ranks)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Keep sending heartbeats: killing a hung rank and storing the logs may take longer than `silence_s`."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self._interval_s):
                self._beat()

        thread = threading.Thread(target=beat, name="beating", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def end(self, started: float, error: TrainwrightError | None, stacks: Mapping[int, str], patience_s: float) -> None:
        """Store the ranks' logs and `exit.json`, then tell the conductor, so that it finds everything else.

        Args:
            started: when the node began, in seconds since the epoch.
            stacks: the ranks' stacks, by rank.
            patience_s: how long the conductor is looked for, if the connection is cut.
        """
        ends = [
            RankEnd(rank=rank.rank, report=rank.report(), done=rank.answer(), stack=stacks.get(rank.rank, ""))
            for rank in self.ranks
        ]
        self._logs.end(self.ranks)
        record = NodeExit(
            status="done" if error is None else "failed",
            error=None if error is None else error.to_json(),
            started=started,
            released=now_s(),
            ranks=ends,
            used=self._used(),
            gpus=num_gpus(),
        )
        self._energy.close()
        fenced = isinstance(error, Fenced)
        if not fenced:
            path = layout.node_exit(*self._number)
            with contextlib.suppress(StorageUnavailable):  # the conductor hears it in any case
                patiently(lambda: self._store.create_once(path, self._codes.coded(path, record.to_json())), STORED_S)
        if self.line is not None:
            self.line.end(None if fenced else record, patience_s)

    def _beat(self) -> None:
        beat = Heartbeat(
            time=now_s(),
            ranks=[] if self.watch is None else self.watch.reports(),
            unreachable=[] if self.probe is None else self.probe.unreachable,
            used=self._used(),
            sensors=gpu_readings(self._nvml),
        )
        if self.line is not None:
            self.line.say(beat)

    def _used(self) -> Resources:
        """What this process has used so far, with the machine's energy."""
        COUNTERS.add(self._energy.sample())
        return COUNTERS.total()


class PeerProbe(threading.Thread):
    """Listens for the other nodes, and probes each in turn.

    Attributes:
        port: the port on which this node listens.
    """

    def __init__(self, address: str) -> None:
        super().__init__(name="peer probe", daemon=True)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=64)
        self.port: int = self._server.getsockname()[1]
        self._peers: list[Joined] = []
        self._missed: dict[int, int] = {}
        self._stopped = threading.Event()

    def meet(self, nodes: Sequence[Joined]) -> None:
        """Begin to probe these nodes."""
        self._peers = [peer for peer in nodes if peer.links is not None]
        threading.Thread(target=self._answer, name="answer probes", daemon=True).start()
        self.start()

    @property
    def unreachable(self) -> list[int]:
        """Nodes that do not answer. A node that refuses a connection is alive; its own heartbeats report its state."""
        return sorted(node for node, missed in list(self._missed.items()) if missed >= MISSES)

    def run(self) -> None:
        """Probe the other nodes until `stop`."""
        while not self._stopped.wait(PROBE_S):
            for peer in self._peers:
                reached = self._reaches(peer)
                self._missed[peer.node] = 0 if reached else self._missed.get(peer.node, 0) + 1

    def stop(self) -> None:
        """Stop probing and listening."""
        self._stopped.set()
        self._server.close()

    def _reaches(self, peer: Joined) -> bool:
        try:
            with socket.create_connection((peer.address, peer.links), timeout=PROBE_S):
                return True
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._server.accept()[0].close()


def main() -> None:
    """Run the node that the command line names."""
    if os.environ.get(PARENT):
        end_with_parent()
    store, training, generation, node = sys.argv[1:]
    begin_json_logs(generation=int(generation), node=int(node))
    address = os.environ.get(ADDRESS, "127.0.0.1")
    key = os.environ.pop(NODE_KEY, "")
    codes = Codes((bytes.fromhex(key),)) if key else NO_CODES
    sys.exit(run_node(store, store_options(), training, int(generation), int(node), address=address, codes=codes))


if __name__ == "__main__":
    main()
