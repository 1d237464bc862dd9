"""Publish a node's state in the store: one numbered heartbeat per interval, and `exit.json` at its end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from data_contracts.costs.resources import Resources
from data_contracts.errors import Fenced, TrainwrightError
from data_contracts.messages.gang import Heartbeat, NodeExit
from data_contracts.messages.ranks import RankEnd
from infra.gang.codes import Codes
from infra.gang.node.peer_probe import PeerProbe
from infra.gang.node.rank_logs import RankLogs
from infra.gang.node.ranks import RankWatch
from infra.gang.rank_files import RankFiles
from infra.machine.accelerators import num_gpus
from infra.machine.energy import EnergyMeter, gpu_readings, installed_nvml
from infra.processes.clock import now_s
from infra.processes.resources import PROCESS
from infra.store import Store, layout
from infra.store.lease import ConductorWatch, patiently


class Publisher:
    """Publishes what one node's ranks report.

    Args:
        place: training, generation and number of the node.
        interval_s: between two heartbeats.
        codes: of the generation, for every record.

    Attributes:
        ranks: the node's ranks, as far as they are known.
        watch: reads their reports, once they are started.
        probe: knows which other nodes this one reaches; None in a gang of one node.
    """

    def __init__(
        self,
        store: Store,
        place: tuple[str, int, int],
        conductor: ConductorWatch,
        interval_s: float,
        ranks: Sequence[RankFiles],
        codes: Codes,
    ) -> None:
        self.ranks = ranks
        self.watch: RankWatch | None = None
        self.probe: PeerProbe | None = None
        self._store, self._place, self._conductor, self._interval_s = store, place, conductor, interval_s
        self._codes = codes
        self._logs = RankLogs(store, place)
        self._energy, self._nvml = EnergyMeter(), installed_nvml()
        self._beats = 0
        self._next = 0.0

    def beat_if_due(self) -> None:
        """Publish a heartbeat if the interval since the last one is over."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval_s
            self._beat()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Keep publishing heartbeats: killing a hung rank and storing the logs may take longer than `silence_s`."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self._interval_s):
                with contextlib.suppress(TrainwrightError):
                    self._beat()

        thread = threading.Thread(target=beat, name="beating", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def end(self, started: float, error: TrainwrightError | None, stacks: Mapping[int, str]) -> None:
        """Store the ranks' logs, then write `exit.json` last, so that a reader of it finds everything else.

        Args:
            started: when the node began, in seconds since the epoch.
            stacks: the ranks' stacks, by rank.
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
        if not isinstance(error, Fenced):
            path = layout.node_exit(*self._place)
            patiently(lambda: self._store.create_once(path, self._codes.coded(path, record.to_json())))

    def _used(self) -> Resources:
        """What this process has used so far, with the machine's energy."""
        PROCESS.add(self._energy.sample())
        return PROCESS.total()

    def _beat(self) -> None:
        path = layout.beat(*self._place, self._beats)
        record = Heartbeat(
            time=now_s(),
            ranks=[] if self.watch is None else self.watch.reports(),
            unreachable=[] if self.probe is None else self.probe.unreachable,
            used=self._used(),
            sensors=gpu_readings(self._nvml),
        )
        beat = self._codes.coded(path, record.to_json())
        # A store that is unreachable does not end training: the same number is tried again with the next beat.
        if self._conductor.tolerantly(lambda: self._store.create_once(path, beat)):
            self._beats += 1
            self._conductor.tolerantly(lambda: self._logs.add(self.ranks))
