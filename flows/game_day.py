"""Carries out a game day: one training after another in a store of its own, each in a process that can be killed.

However it ends, no process of it is left.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_contracts.errors import Cancelled, TrainwrightError, from_json
from data_contracts.handoffs import Checkpoint
from data_contracts.pipeline_spec import PipelineSpec
from infra import scratch
from infra.child import log_tail
from infra.processes.processes import kill_marked, new_mark, uninterrupted
from infra.processes.tied_process import TiedProcess
from infra.store import Store, layout
from infra.store.paths.game_day_paths import game_day_record
from infra.weights.weight_differences import first_difference
from tasks.gameday.faults import Fault, keeps_weights
from tasks.gameday.outcome import Outcome, judged, not_injected
from tasks.gameday.timeline import read_timeline

POLL_S = 0.1
# A training that is interrupted ends its nodes, also on other machines.
END_S = 60.0
log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class GameDay:
    """What a game day is asked for.

    Attributes:
        spec_path: of the YAML file; overrides: with those of the game day itself.
        until: when it ends, on the monotonic clock.
    """

    spec_path: str
    overrides: Sequence[str]
    window: str | None
    spec: PipelineSpec
    until: float


class _TimeUsed(Exception):
    """The time of the game day is used up."""


def carry_out(day: GameDay, store: Store, faults: Sequence[Fault]) -> list[Outcome]:
    """Train without a fault, then once with each; TrainwrightError if the training without one fails."""
    log.info("game day: a training without a fault")
    try:
        baseline = _Training(day, store, None).run()
    except _TimeUsed:
        return [not_injected(fault, "the time was used up") for fault in faults]
    outcomes = []
    for fault in faults:
        if time.monotonic() > day.until:
            outcomes.append(not_injected(fault, "the time was used up"))
            continue
        log.info("game day: %s (%s)", fault.name, fault.what)
        outcomes.append(_struck(day, store, fault, baseline))
        log.info("game day: %s: %s", fault.name, outcomes[-1].verdict)
    return outcomes


def _struck(day: GameDay, store: Store, fault: Fault, baseline: Checkpoint) -> Outcome:
    """The outcome of a training with a fault."""
    training, failure, checkpoint = _Training(day, store, fault), "", None
    try:
        checkpoint = training.run()
    except _TimeUsed:
        failure = "the time was used up before the training ended"
    except Cancelled:
        raise
    except TrainwrightError as error:
        failure = f"{error.cause}: {error.message}"
    same = None
    if checkpoint is not None and keeps_weights(day.spec):
        same = first_difference((store, store), (baseline.ref, checkpoint.ref)) is None
    times = read_timeline(store, training.uri, fault.causes) if training.uri else None
    if times is None:
        return not_injected(fault, failure)
    train = day.spec.train
    limit_s = fault.limit_s(train.hang_timeout_s)
    return judged(fault, times, failure=failure, limit_s=limit_s, nodes=train.nodes, same_weights=same)


class _Training:
    """One training, in a process of its own."""

    def __init__(self, day: GameDay, store: Store, fault: Fault | None) -> None:
        self._day, self._store, self._fault = day, store, fault
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
                    if time.monotonic() > self._day.until:
                        raise _TimeUsed
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
            return _answer(answer, printed, process.exit_code)

    def _kills_conductor(self) -> bool:
        """Whether the conductor is to be killed now: once, when a rank has recorded that the fault is due."""
        if self._killed or self._fault is None or self._fault.name != "conductor-killed":
            return False
        uri = self.uri
        self._killed = bool(uri) and self._store.exists(game_day_record(uri, "injected"))
        return self._killed

    def _kill(self, process: TiedProcess, answer: Path) -> None:
        """Kill the conductor; on a work pool, end what the server lists as running for it."""
        process.kill()
        if (pool := self._day.spec.train.pool) is not None:
            from infra.orchestrator.game_day import end_dead_conductor

            first, uri = answer.read_text().partition("\n")[0], self.uri
            leases = self._store.list(layout.slots(uri)) if uri else []
            flow_run = json.loads(first or "{}").get("flow_run", "")
            end_dead_conductor(pool, flow_run, self._store.uri, uri, leases)

    def _start(self, answer: Path, printed: Path, *, fresh: bool) -> TiedProcess:
        day = self._day
        planned = None if self._fault is None else self._fault.planned(day.spec.train.hang_timeout_s)
        asked: dict[str, Any] = {
            "spec": day.spec_path,
            "overrides": list(day.overrides),
            "window": day.window,
            "store": self._store.uri,
            "fault": None if planned is None else planned.model_dump(mode="json"),
            "fresh": fresh,
        }
        # If this process is killed, so is the conductor, and then its nodes end, too.
        return TiedProcess("flows.game_training", json.dumps(asked), mark=self._mark, output=answer, log=printed)


def _answer(file: Path, printed: Path, code: int | None) -> Checkpoint:
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
