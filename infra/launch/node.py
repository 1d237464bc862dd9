"""The supervisor of one node of a gang: `python -m infra.launch.node STORE TRAINING GENERATION NODE`.

It answers the roll-call, lays code and dataset out, starts torchrun, publishes one numbered heartbeat per interval,
and ends everything it started: at the end, on a cancel marker, on SIGTERM, and when its conductor is gone. It knows
neither torch nor the orchestrator. TRAINWRIGHT_STORE_OPTIONS (JSON) and TRAINWRIGHT_ADDRESS complete its arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data_contracts.errors import Cancelled, CorruptError, Fenced, NodeLost, Preempted, TrainwrightError
from data_contracts.handoffs import Dataset, Ref
from infra.code import unpack
from infra.datasets import local_dataset, mixed
from infra.launch import ranks
from infra.launch.child import PARENT, end_with_parent, log_tail
from infra.launch.links import Links
from infra.launch.patience import Background, ConductorWatch, patiently
from infra.launch.processes import end, marked_env, new_mark, uninterrupted
from infra.launch.rank_logs import RankLogs
from infra.launch.ranks import SAVED_WITHIN_S, RankWatch, read_json
from infra.launch.stacks import take_stacks
from infra.store import Store, layout, open_store

STORE_OPTIONS = "TRAINWRIGHT_STORE_OPTIONS"
ADDRESS = "TRAINWRIGHT_ADDRESS"
# After a rank failed, its peers get this long to end by themselves, so that their logs say why.
SETTLE_S = 1.0


def run_node(
    store_uri: str,
    store_options: Mapping[str, Any],
    training: str,
    generation: int,
    node: int,
    *,
    address: str = "127.0.0.1",
) -> int:
    """Supervise node `node` of a generation until it is over; the exit code of what ended it, 0 when done.

    SIGTERM asks the ranks for a checkpoint and ends with Preempted; a cancel marker, a newer fencing token or a lease
    that stood still for `lease_silence_s` end everything at once. What happened is written to the node's `exit.json`.
    """
    store = patiently(lambda: open_store(store_uri, store_options, create=False))
    supervisor = _Supervisor(store, dict(store_options), training, generation, node, address)
    if threading.current_thread() is not threading.main_thread():
        return supervisor.run()
    before = signal.signal(signal.SIGTERM, lambda *_: supervisor.ask_to_stop())
    try:
        return supervisor.run()
    finally:
        signal.signal(signal.SIGTERM, before)


class _Supervisor:
    def __init__(
        self, store: Store, store_options: dict[str, Any], training: str, generation: int, node: int, address: str
    ) -> None:
        self.store, self.store_options, self.training = store, store_options, training
        self.generation, self.node, self.address = generation, node, address
        self.place = (training, generation, node)
        self.launch: dict[str, Any] = patiently(lambda: store.read_json(layout.launch(training, generation)))
        self.poll_s = float(self.launch["poll_s"])
        self.grace_s = float(self.launch["grace_s"])
        devices = int(self.launch["devices"])
        # Until the roll-call says in which order the nodes stand.
        self.ranks = range(node * devices, (node + 1) * devices)
        self.watch: RankWatch | None = None
        self.links: Links | None = None
        self.stacks: dict[int, str] = {}
        self.conductor = ConductorWatch(store, self.launch)
        self.mark = new_mark()
        # Given by a launcher that outlives this process and removes it whatever happens here.
        self.scratch = Path(os.environ.get(ranks.SCRATCH) or tempfile.mkdtemp(prefix="trainwright-node-"))
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.logs = RankLogs(store, self.place, self.scratch)
        self.stop_asked: float | None = None
        self.beats = 0
        self.next_beat = 0.0

    def ask_to_stop(self) -> None:
        """Ask the ranks for one consistent checkpoint; from a signal handler, so it only leaves a note."""
        self.stop_asked = self.stop_asked or time.monotonic()

    def run(self) -> int:
        """Everything from the roll-call to `exit.json`."""
        started = time.time()
        error: TrainwrightError | None = None
        try:
            meeting = self._roll_call()
            self._train(*meeting)
        except TrainwrightError as caught:
            error = caught
        except KeyboardInterrupt:
            error = Cancelled(f"Node {self.node} was interrupted.")
        except Exception as caught:
            traceback.print_exc()
            error = TrainwrightError(f"The supervisor of node {self.node} failed: {type(caught).__name__}: {caught}.")
        if error is not None:
            error.details.setdefault("node", self.node)
        with self._beating():
            self._report(started, error)
        shutil.rmtree(self.scratch, ignore_errors=True)
        return 0 if error is None else error.exit_code

    def _roll_call(self) -> tuple[dict[str, Any], Path, Path | None]:
        """Answer the roll-call and lay out code and dataset meanwhile; where the nodes meet, and both folders."""
        mine = {
            "schema_version": 1,
            "node": self.node,
            "address": self.address,
            "port": ranks.free_port(self.address),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "instance": self.mark,
            "time": time.time(),
        }
        if int(self.launch["nodes"]) > 1:
            self.links = Links(self.node, self.address)
            mine["links"] = self.links.port
        path = layout.joined(*self.place)
        try:
            patiently(lambda: self.store.create_json(path, mine))
        except FileExistsError:
            # Ours if only the answer was lost; else this node was started twice and the first one runs.
            if patiently(lambda: self.store.read_json(path))["instance"] != self.mark:
                message = f"Node {self.node} of generation {self.generation} of {self.training} runs already."
                raise Fenced(message) from None
        layouts = Background(self._lay_out)
        rollcall = layout.rollcall(self.training, self.generation)
        meeting: dict[str, Any] | None = None

        def look() -> None:
            nonlocal meeting
            with contextlib.suppress(FileNotFoundError):
                meeting = self.store.read_json(rollcall)

        while meeting is None or not layouts.done:
            self._tick()
            if self.stop_asked is not None:
                raise Preempted(f"Node {self.node} was asked to leave before it had begun.")
            if meeting is None:
                self.conductor.tolerantly(look)
            if meeting is None or not layouts.done:
                time.sleep(self.poll_s)
        project, dataset = layouts.result()
        order = [node["node"] for node in meeting["nodes"]]
        if self.node not in order:
            raise Preempted(f"Generation {self.generation} of {self.training} goes on without node {self.node}.")
        place, devices = order.index(self.node), len(self.ranks)
        self.ranks = range(place * devices, (place + 1) * devices)
        if self.links is not None:
            self.links.meet(meeting["nodes"])
        return meeting, project, dataset

    def _lay_out(self) -> tuple[Path, Path | None]:
        project = self.scratch / "project"
        project.mkdir()
        if self.launch["code"] is not None:
            ref = Ref.model_validate(self.launch["code"])
            patiently(lambda: unpack(self.store, ref, project))
        dataset = self.launch["dataset"]
        if dataset is None:
            return project, None
        others = {name: Dataset.from_json(one) for name, one in self.launch.get("mixture", {}).items()}
        sealed = mixed(Dataset.from_json(dataset), others)
        try:
            return project, patiently(lambda: local_dataset(self.store, sealed))
        except FileNotFoundError as error:
            raise CorruptError(f"The dataset {sealed.ref.uri} is not there any more.") from error

    def _train(self, meeting: dict[str, Any], project: Path, dataset: Path | None) -> None:
        place = self.ranks.start // len(self.ranks)
        command = ranks.torchrun(self.launch, meeting, place, self.address, self.scratch)
        log = self.scratch / "torchrun.txt"
        watch = self.watch = RankWatch(self.scratch, self.ranks)
        watch.start()
        process: subprocess.Popen[bytes] | None = None
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    cwd=project,
                    env=marked_env(self.mark, self._env(meeting, project, dataset)),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._follow(process, watch, alone=len(meeting["nodes"]) == 1)
        except Cancelled as error:
            if error.details.get("stacks"):
                self.stacks = take_stacks(self.scratch, self.ranks)
            raise
        finally:
            if self.links is not None:
                self.links.stop()
            with uninterrupted(), self._beating():
                code = end(self.mark, process)
                watch.stop()
        self._judge(code, watch, log)

    def _follow(self, process: subprocess.Popen[bytes], watch: RankWatch, *, alone: bool) -> None:
        """Tick until torchrun ended, or until what remains after a failure, a stop or the answers had its time."""
        deadline: float | None = None
        while process.poll() is None:
            self._tick()
            if deadline is None and self.stop_asked is not None:
                ranks.stop_file(self.scratch).touch()
                deadline = self.stop_asked + self.grace_s
            if watch.first is not None and not isinstance(watch.first, Preempted):
                # A rank that died takes part in no checkpoint any more.
                saving = not isinstance(watch.first, NodeLost) and watch.saving()
                settle_s = SAVED_WITHIN_S if saving else SETTLE_S
                deadline = min(deadline or float("inf"), time.monotonic() + settle_s)
            elif watch.first is not None:
                # Peers are still at the same checkpoint.
                deadline = deadline or time.monotonic() + self.grace_s
            elif self._all_done():
                deadline = deadline or time.monotonic() + self.grace_s
                # Without other nodes nobody needs this torchrun any more; its own end would take half a second.
                if alone and not watch.running():
                    return
            if deadline is not None and time.monotonic() > deadline:
                return
            # Not Popen.wait, which looks a hundred times a second, on a core that is the ranks'.
            time.sleep(self.poll_s)

    def _judge(self, returncode: int | None, watch: RankWatch, log: Path) -> None:
        """Raise what ended the ranks, if they did not end well."""
        first = watch.first
        if first is None and self._all_done():
            return
        if self.stop_asked is not None and (first is None or isinstance(first, NodeLost)):
            raise Preempted(f"Node {self.node} was asked to leave and its ranks wrote no checkpoint in time.")
        if first is not None:
            # As its author knows the files: from the project's root, not from where this node laid it out.
            first.user_traceback = first.user_traceback.replace(f"{self.scratch / 'project'}{os.sep}", "")
            raise first
        how = "was killed and does not end" if returncode is None else f"ended with exit code {returncode}"
        raise NodeLost(
            f"torchrun on node {self.node} {how} before its ranks had answered.",
            details={"log": log_tail(log)},
        )

    def _all_done(self) -> bool:
        return all(ranks.done_file(self.scratch, rank).exists() for rank in self.ranks)

    def _env(self, meeting: dict[str, Any], project: Path, dataset: Path | None) -> dict[str, str]:
        launch = self.scratch / "launch.json"
        launch.write_text(json.dumps(self.launch))
        neighbours = sum(entry["host"] == socket.gethostname() for entry in meeting["nodes"])
        threads = str(ranks.threads_per_rank(len(self.ranks) * neighbours))
        return {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
            **ranks.network_env(self.address),
            "TRAINWRIGHT_LAUNCH": str(launch),
            "TRAINWRIGHT_STORE": self.store.uri,
            STORE_OPTIONS: json.dumps(self.store_options),
            ranks.SCRATCH: str(self.scratch),
            "TRAINWRIGHT_PROJECT": str(project),
            "TRAINWRIGHT_DATASET": str(dataset or ""),
        }

    def _tick(self) -> None:
        """One round: see whether the conductor wants this to go on, and publish a heartbeat if one is due."""
        self.conductor.look()
        if time.monotonic() >= self.next_beat:
            self.next_beat = time.monotonic() + float(self.launch["heartbeat_s"])
            self._beat()

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        """Go on publishing: killing what hangs and storing the logs may take longer than a silence that is believed."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(float(self.launch["heartbeat_s"])):
                with contextlib.suppress(TrainwrightError):
                    self._beat()

        thread = threading.Thread(target=beat, name="beating", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _beat(self) -> None:
        path = layout.beat(*self.place, self.beats)
        beat = {
            "schema_version": 1,
            "time": time.time(),
            "ranks": [] if self.watch is None else self.watch.reports(),
            "unreachable": [] if self.links is None else self.links.unreachable,
        }
        # A store that is away does not end training: the same number is tried again with the next beat.
        if self.conductor.tolerantly(lambda: self._create_once(path, beat)):
            self.beats += 1
            self.conductor.tolerantly(lambda: self.logs.add(self.ranks))

    def _report(self, started: float, error: TrainwrightError | None) -> None:
        """Keep the ranks' logs, then write `exit.json`, last: whoever reads it finds everything else."""
        answers = []
        for rank in self.ranks:
            report, done = ranks.report_file(self.scratch, rank), ranks.done_file(self.scratch, rank)
            stack = self.stacks.get(rank, "")
            answers.append({"rank": rank, "report": read_json(report), "done": read_json(done), "stack": stack})
        self.logs.end(self.ranks)
        record = {
            "schema_version": 1,
            "status": "done" if error is None else "failed",
            "error": None if error is None else error.to_json(),
            "started": started,
            "released": time.time(),
            "ranks": answers,
        }
        path = layout.node_exit(*self.place)
        if not isinstance(error, Fenced):
            patiently(lambda: self._create_once(path, record))

    def _create_once(self, path: str, value: Any) -> None:
        with contextlib.suppress(FileExistsError):
            self.store.create_json(path, value)


def main() -> None:
    """Run the node named on the command line."""
    if os.environ.get(PARENT):
        end_with_parent()
    store, training, generation, node = sys.argv[1:]
    options = json.loads(os.environ.get(STORE_OPTIONS, "{}"))
    address = os.environ.get(ADDRESS, "127.0.0.1")
    sys.exit(run_node(store, options, training, int(generation), int(node), address=address))


if __name__ == "__main__":
    main()
