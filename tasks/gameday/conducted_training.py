"""One training of a game day, in a process of its own whose conductor can be killed.

However it ends, no process of it is left.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from data_contracts.errors import TrainwrightError, from_json
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import GameTraining
from infra import scratch
from infra.child import log_tail
from infra.processes.processes import TiedProcess, kill_marked, new_mark, uninterrupted
from infra.store import Store, layout
from infra.store.layout import game_day_record

POLL_S = 0.1
# A training that is interrupted ends its nodes, also on other machines.
END_S = 60.0


class TimeUsed(Exception):
    """The time of the game day is used up."""


class ConductedTraining:
    """A training in the store of a game day.

    Args:
        module: what the process runs; it gets a `GameTraining` and prints its answer.
        pool: the work pool of its nodes; None: this machine.
        until: when the game day ends, on the monotonic clock.
    """

    def __init__(self, module: str, wanted: GameTraining, store: Store, pool: str | None, until: float) -> None:
        self._module, self._wanted, self._store = module, wanted, store
        self._pool, self._until = pool, until
        self._before = set(store.list(layout.trainings()))
        self._mark = new_mark()
        self._killed = False

    @property
    def uri(self) -> str:
        """The training's directory; "" before it began."""
        names = [name for name in self._store.list(layout.trainings()) if name not in self._before]
        return f"{layout.trainings()}/{names[0]}" if names else ""

    def run(self) -> Checkpoint:
        """Train to the end. Raises what ended it, and leaves no process."""
        with scratch.make("game-day", mark=self._mark) as folder:
            answer, printed = folder.path / "answer.txt", folder.path / "log.txt"
            process = self._start(answer, printed, fresh=True)
            try:
                while process.exit_code is None:
                    if time.monotonic() > self._until:
                        raise TimeUsed
                    if self._kills_conductor():
                        self._kill(process, answer)
                        process = self._start(answer, printed, fresh=False)
                    time.sleep(POLL_S)
            finally:
                with uninterrupted():
                    if not process.interrupt(END_S):
                        self._kill(process, answer)
                    kill_marked(self._mark)
                    scratch.sweep()  # what killed processes left on this machine
            return answer_of(answer, printed, process.exit_code)

    def _kills_conductor(self) -> bool:
        """Whether the conductor is to be killed now: once, when a rank has recorded that the fault is due."""
        fault = self._wanted.fault
        if self._killed or fault is None or fault.name != "conductor-killed":
            return False
        uri = self.uri
        self._killed = bool(uri) and self._store.exists(game_day_record(uri, "injected"))
        return self._killed

    def _kill(self, process: TiedProcess, answer: Path) -> None:
        """Kill the conductor; on a work pool, end what the server lists as running for it."""
        process.kill()
        if self._pool is not None:
            from infra.orchestrator.game_day import end_dead_conductor

            first, uri = answer.read_text().partition("\n")[0], self.uri
            leases = self._store.list(layout.slots(uri)) if uri else []
            flow_run = json.loads(first or "{}").get("flow_run", "")
            end_dead_conductor(self._pool, flow_run, self._store.uri, uri, leases)

    def _start(self, answer: Path, printed: Path, *, fresh: bool) -> TiedProcess:
        request = self._wanted.model_copy(update={"fresh": fresh}).to_json()
        # If this process is killed, so is the conductor, and then its nodes end, too.
        return TiedProcess(self._module, json.dumps(request), mark=self._mark, output=answer, log=printed)


def answer_of(file: Path, printed: Path, code: int | None) -> Checkpoint:
    """The checkpoint that a training answered with; raises the error that it answered with."""
    lines = file.read_text(errors="replace").splitlines()
    try:
        value = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = {"log": log_tail(printed)}
        sentence = f"A training of the game day ended with exit code {code} and no answer."
        raise TrainwrightError(sentence, details=said) from None
    if "error" in value:
        raise from_json(value["error"])
    return Checkpoint.from_json(value["checkpoint"])
