"""A search: trials are started, watched, ended early and counted, until their budget is used; the best is named.

A trial is an ordinary run in a process of its own, by the key `search/NAME/NUMBER`, which ends after its training. It
stays within the search's budget by itself (`tasks.budgets`): it reserves before it uses anything. A search that is
killed continues with the same command: its events are in the store, and its trials by their keys.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_contracts.canonical import canonical, digest
from data_contracts.errors import (
    CorruptError,
    Diverged,
    Fenced,
    Interrupted,
    OutOfMemory,
    OverBudget,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    from_json,
)
from data_contracts.handoffs import Checkpoint
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.search import Value
from data_contracts.resolved import Resolved
from data_contracts.run_report import RunReport
from data_contracts.searches import TAG, SearchEvent, SearchRecord, TrialState
from infra import scratch, stopping
from infra.audit import now
from infra.gang.ledger import committed
from infra.processes.processes import has_ended, marked_env, module_command, new_mark, this_process
from infra.store import Store, layout
from infra.store.lease import PATIENCE_S, LeaseKeeper, held_lease, patiently, process_of
from infra.store.store import numbers, read_several
from tasks.budgets import newest_record
from tasks.queries.history import logged_metrics
from tasks.run.run import RunInputs, resolved_before
from tasks.run.spec_check import read_spec
from tasks.search.study import Study, is_of_space
from tasks.stages.trainings import training_of

log = logging.getLogger("trainwright")
LOOK_EVERY_S = 1.0
# How often a trial whose process was killed, or ended by a cause outside of it, is continued.
MOST_CONTINUED = 3
# If so many trials fail before any is finished, the cause is not their values.
MOST_FAILED = 3


@dataclass
class Trial:
    """A trial, by its events.

    Attributes:
        values: of the metric at each validation that was reported, oldest first.
        is_pruned: whether it was decided that it ends early; it may have ended by itself meanwhile.
    """

    number: int
    settings: Mapping[str, Value]
    state: TrialState = "running"
    value: float | None = None
    values: list[float] = field(default_factory=list)
    is_pruned: bool = False
    sentence: str = ""
    run_id: str = ""
    inputs: str = ""
    node_seconds: float = 0.0
    usd: float | None = None


@dataclass(frozen=True)
class SearchResult:
    """How a search stands.

    Attributes:
        over: why it ended before all trials were made; "" if it did not.
    """

    record: SearchRecord
    trials: list[Trial]
    over: str = ""

    @property
    def best(self) -> Trial | None:
        """The best finished trial; of equal ones the first."""
        sign = 1 if self.record.is_smaller_better else -1
        finished = [trial for trial in self.trials if trial.state == "finished" and trial.value is not None]
        return min(finished, key=lambda trial: sign * (trial.value or 0.0), default=None)

    @property
    def num_compared(self) -> int:
        """From how many settings the best was chosen: of trials that gave a value, also if they ended early."""
        return len({canonical(dict(trial.settings)) for trial in self.trials if trial.state in ("finished", "pruned")})

    def to_json(self) -> dict[str, object]:
        """The search for a program."""
        return {
            "search": self.record.name,
            "metric": self.record.select.metric,
            "over": self.over,
            "best": None if self.best is None else self.best.number,
            "trials": [vars(trial) for trial in self.trials],
        }


class Trials:
    """The trials of a search by its events.

    Attributes:
        events: those in the store, oldest first.
    """

    def __init__(self, store: Store, record: SearchRecord) -> None:
        self._store, self._record = store, record
        self.events = events_of(store, record.name)
        self.all: list[Trial] = []
        for number, event in enumerate(self.events):
            if not self._can_follow(event):
                path = layout.search_event(record.name, number)
                raise CorruptError(f"{path} does not follow from the events before it.", details={"file": path})
            self._take(event)

    @property
    def running(self) -> list[Trial]:
        """Those that are not over."""
        return [trial for trial in self.all if trial.state == "running"]

    def add(self, event: SearchEvent) -> None:
        """Store an event under the next number; Fenced if another process has stored one there."""
        path = layout.search_event(self._record.name, len(self.events))
        is_mine = patiently(lambda: self._store.create_once(path, event.to_json()))
        if not is_mine and self._store.read_as(path, SearchEvent.from_json) != event:
            raise Fenced(f"Another process carries out the search {self._record.name}.")
        self.events.append(event)
        self._take(event)

    def _can_follow(self, event: SearchEvent) -> bool:
        """Whether an event can come next. Others may have written it, and its settings go onto command lines."""
        if event.kind == "asked":
            return event.trial == len(self.all) and is_of_space(self._record.spec, event.settings)
        if event.trial >= len(self.all) or self.all[event.trial].state != "running":
            return False
        if event.kind == "reported":
            return event.validation == len(self.all[event.trial].values) + 1 and event.value is not None
        return event.state != "running" and (event.value is not None) == (event.state == "finished")

    def _take(self, event: SearchEvent) -> None:
        if event.kind == "asked":
            self.all.append(Trial(event.trial, event.settings))
            return
        trial = self.all[event.trial]
        if event.kind == "reported":
            assert event.value is not None
            trial.values.append(event.value)
            trial.is_pruned = trial.is_pruned or event.pruned
            return
        trial.state, trial.value, trial.sentence = event.state, event.value, event.sentence
        trial.run_id, trial.node_seconds, trial.usd = event.run_id, event.node_seconds, event.usd
        trial.inputs = event.inputs


def events_of(store: Store, name: str) -> list[SearchEvent]:
    """The events of a search, oldest first; CorruptError if one is missing or damaged."""
    known = sorted(numbers(store, layout.search_events(name)))
    if known != list(range(len(known))):
        raise CorruptError(f"An event of the search {name} is missing: {layout.search_events(name)} has a gap.")
    paths = [layout.search_event(name, number) for number in known]
    return read_several(store, lambda path: store.read_as(path, SearchEvent.from_json), paths)


def begin(store: Store, spec: PipelineSpec, name: str, window: str | None, decides: str) -> SearchRecord:
    """The record of a search whose lease this process holds; a new one if there is none, or its budget is another.

    UsageError if the search of this name was begun with other settings.

    Args:
        window: for a new search; one that is continued keeps its own.
        decides: as in `SearchRecord`.
    """
    assert spec.search is not None
    assert spec.train.select is not None
    settings = {"spec": spec.search, "select": spec.train.select, "decides": decides}
    asked = SearchRecord(name=name, pipeline=spec.name, window=window, begun=now(), **settings)
    newest = newest_record(store, name)
    if newest is not None:
        asked = asked.model_copy(update={"begun": newest.begun, "window": newest.window})
        if asked.identity != newest.identity:
            raise UsageError(
                f"The search {name} was begun at {newest.begun} with another spec.",
                remedy="Give this one another name with --name; `warm_start` lets it know the trials of the other.",
            )
    number = len(numbers(store, layout.search_records(name)))
    if asked != newest and not store.create_once(layout.search_record(name, number), asked.to_json()):
        raise Fenced(f"Another process carries out the search {name}.")
    return asked


@contextlib.contextmanager
def holding(store: Store, name: str) -> Iterator[LeaseKeeper]:
    """Hold a search's lease; UsageError if another process carries the search out."""
    path = layout.search_lease(name)
    keeper = LeaseKeeper(store, path, f"search {name}")
    keeper.start()
    try:
        until = time.monotonic() + 2 * PATIENCE_S
        while keeper.token(LOOK_EVERY_S) is None:
            held = held_lease(store, path) if keeper.is_waiting else None
            holder, here = None if held is None else process_of(held.value["holder"]), this_process()
            is_here = holder is not None and here is not None and holder.place == here.place
            if time.monotonic() > until or (holder is not None and is_here and not has_ended(holder)):
                raise UsageError(
                    f"Another process carries out the search {name}.",
                    remedy="Wait for it, or give this search another name with --name.",
                )
        yield keeper
    finally:
        keeper.stop()


def overrides_of(settings: Mapping[str, Value]) -> list[str]:
    """A trial's values as `--set` takes them."""
    return [f"{name}={json.dumps(value)}" for name, value in settings.items()]


def key_of(record: SearchRecord, trial: int) -> str:
    """The idempotency key of a trial's run."""
    return f"search/{record.name}/{record.identity}/{trial}"


class TrialProcess:
    """The process that carries a trial's run out, and what the store says of its training meanwhile."""

    def __init__(self, command: Sequence[str], store: Store, key: str) -> None:
        self._command, self._store, self._key = command, store, key
        self._resolved: Resolved | None = None
        self._training: str | None = None
        self.continued = 0
        self.is_stopped = False
        self._folder = scratch.make("search")
        self.start()

    def start(self) -> None:
        """Start the run, or continue it: its key names it."""
        with self._printed.open("w") as printed:
            # Of a session of its own, so that Ctrl-C reaches it from here alone.
            self._process = subprocess.Popen(
                self._command,
                stdout=printed,
                stderr=subprocess.DEVNULL,
                env=marked_env(new_mark()),
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ask the run to end, if it lives; its committed checkpoints stay."""
        if self._process.poll() is None:
            self.is_stopped = True
            self._process.send_signal(signal.SIGINT)

    def ended(self) -> Mapping[str, Any] | None:
        """What the run printed, {} if it was killed; None while it lives."""
        if self._process.poll() is None:
            return None
        try:
            printed = json.loads(self._printed.read_bytes())
        except ValueError:
            return {}
        return printed if isinstance(printed, dict) else {}

    @property
    def _printed(self) -> Path:
        return self._folder.path / "printed.json"

    def values(self, metric: str) -> list[Any]:
        """The metric at each validation so far, oldest first, as the newest committed checkpoint has them."""
        inputs = self._inputs()
        if inputs is None:
            return []
        self._training = self._training or training_of(inputs)
        if self._training is None or not (kept := committed(self._store, self._training)[0]):
            return []
        with contextlib.suppress(FileNotFoundError):  # the checkpoint was retired meanwhile
            return [record[metric] for record in logged_metrics(self._store, kept[-1]) if metric in record]
        return []

    def inputs_digest(self, with_data: bool) -> str:
        """Digest of the run's code, and of its raw files if they are to be the same for all trials."""
        inputs = self._inputs()
        assert inputs is not None
        files = inputs.resolved.files if with_data else []
        return digest([inputs.resolved.code_digest, [file.to_json() for file in files]])

    def handed_over(self) -> Checkpoint:
        """The checkpoint that the run's training handed over."""
        inputs = self._inputs()
        assert inputs is not None
        training = self._training or training_of(inputs)
        assert training is not None
        return self._store.read_as(layout.result(training), Checkpoint.from_json)

    def _inputs(self) -> RunInputs | None:
        self._resolved = self._resolved or resolved_before(self._store, self._key)  # a run keeps its inputs
        return None if self._resolved is None else RunInputs(self._resolved, self._store)


class Search:
    """Carries a search out.

    Args:
        start: starts the process of a trial by its number and settings.
        refused: why no run can have these settings; "" if one can.
        on_change: called with the trial when it began, was reported or ended, and with the search.
    """

    def __init__(
        self,
        store: Store,
        record: SearchRecord,
        start: Callable[[Trial], TrialProcess],
        refused: Callable[[Mapping[str, Value]], str] = lambda settings: "",
        on_change: Callable[[Trial, Search], None] = lambda trial, search: None,
    ) -> None:
        self._store, self.record, self._start, self._refused, self._on_change = store, record, start, refused, on_change
        self.trials = Trials(store, record)
        self._study = Study(record, self.trials.events, [self._earlier(name) for name in record.spec.warm_start])
        self._processes: dict[int, TrialProcess] = {}
        self._over = ""

    def carry_out(self, keeper: LeaseKeeper) -> SearchResult:
        """Start trials and wait for them until the budget is used.

        Raises: what ended the first trials, if its cause is not their values; Fenced.
        """
        try:
            for trial in self.trials.running:
                if trial.is_pruned:
                    self._end(trial, "pruned", None)
                else:
                    self._processes[trial.number] = self._start(trial)
            while self._start_more() or self._processes:
                stopping.check()
                keeper.check()
                for number in list(self._processes):
                    self._look(self.trials.all[number], self._processes[number])
                time.sleep(LOOK_EVERY_S)
        finally:
            for process in self._processes.values():
                process.stop()
            while any(process.ended() is None for process in self._processes.values()):
                time.sleep(LOOK_EVERY_S / 10)
        return self.result

    @property
    def result(self) -> SearchResult:
        """How it stands."""
        return SearchResult(self.record, self.trials.all, self._over)

    @property
    def importance(self) -> dict[str, float]:
        """As `Study.importance`."""
        return self._study.importance()

    def _start_more(self) -> bool:
        """Start as many trials as may run now; returns whether there was one."""
        started, spec = False, self.record.spec
        while len(self._processes) < spec.parallel and len(self.trials.all) < spec.budget.trials and not self._over:
            asked = self._study.ask()
            if asked is None:
                break
            number, settings = asked
            self._note(SearchEvent(kind="asked", trial=number, at=now(), settings=settings))
            started = True
            if why := self._refused(settings):
                self._end(self.trials.all[number], "failed", None, sentence=why)
            else:
                self._processes[number] = self._start(self.trials.all[number])
        return started

    def _look(self, trial: Trial, process: TrialProcess) -> None:
        printed = process.ended()
        if self.record.spec.prune is not None and not process.is_stopped:
            with contextlib.suppress(StorageUnavailable):  # the next look has the values, too
                self._report(trial, process)
        if printed is not None:
            self._take_end(trial, process, printed)

    def _report(self, trial: Trial, process: TrialProcess) -> None:
        """Report what the trial has validated, and ask it to end if it is not promising."""
        for value in process.values(self.record.select.metric)[len(trial.values) :]:
            number = len(trial.values) + 1
            pruned = self._study.is_pruned(trial.number, number, value)
            about = {"trial": trial.number, "at": now(), "validation": number}
            self._note(SearchEvent(kind="reported", value=value, pruned=pruned, **about))
            if pruned and not process.is_stopped:
                process.stop()

    def _take_end(self, trial: Trial, process: TrialProcess, printed: Mapping[str, Any]) -> None:
        report = RunReport.from_json(dict(printed)) if "verdict" in printed else None
        error = from_json(printed["error"]) if printed.get("error") else None
        if report is not None and report.verdict == "trained":
            value = patiently(process.handed_over).metrics[self.record.select.metric]
            has_same_data = not any(name.startswith("data.") for name in self.record.spec.space)
            inputs = patiently(lambda: process.inputs_digest(has_same_data))
            first = next((one for one in self.trials.all if one.state == "finished"), None)
            if first is not None and first.inputs != inputs:
                other = _other_inputs(trial, first)
                self._end(trial, "failed", report, sentence=other.message)
                raise other
            self._end(trial, "finished", report, value=value, inputs=inputs)
        elif process.is_stopped:
            self._end(trial, "pruned", report)
        elif isinstance(error, OverBudget):
            # It stays as it is: with a larger budget it continues.
            self._over = error.message
            del self._processes[trial.number]
        elif error is None or isinstance(error, Interrupted):
            if process.continued < MOST_CONTINUED:
                process.continued += 1
                process.start()
                return
            self._end(trial, "failed", report, sentence="it was killed" if error is None else error.message)
        else:
            # Values that diverge, or need too much memory, are bad ones, and the sampler must learn that.
            is_bad = isinstance(error, Diverged | OutOfMemory)
            self._end(trial, "pruned" if is_bad else "failed", report, sentence=error.message)
            self._raise_if_general(error)

    def _earlier(self, name: str) -> list[SearchEvent]:
        """The events of a search with which this one is warm started; UsageError if it cannot be."""
        earlier = newest_record(self._store, name)
        if earlier is None or name == self.record.name or earlier.select != self.record.select:
            why = "there is no search of this name" if earlier is None else "it searches for something else"
            why = "a search cannot begin with itself" if name == self.record.name else why
            raise UsageError(f"search.warm_start: {name}: {why}.", remedy="Leave it out.")
        return events_of(self._store, name)

    def _raise_if_general(self, error: TrainwrightError) -> None:
        """Raise a trial's error that every trial would have: one that is not about values, or the same of the first."""
        ended = [trial.state for trial in self.trials.all if trial.state != "running"]
        is_general = error.exit_code in (1, 6) or (error.exit_code in (2, 3) and "finished" not in ended)
        if is_general or ended == ["failed"] * MOST_FAILED:
            raise error

    def _end(
        self,
        trial: Trial,
        state: TrialState,
        report: RunReport | None,
        *,
        value: float | None = None,
        inputs: str = "",
        sentence: str = "",
    ) -> None:
        self._processes.pop(trial.number, None)
        event = SearchEvent(
            kind="ended", trial=trial.number, at=now(), state=state, value=value, inputs=inputs, sentence=sentence
        )
        if report is not None:
            cost = {"node_seconds": report.cost.node_seconds, "usd": report.cost.usd}
            event = event.model_copy(update={"run_id": report.run_id, **cost})
        self._note(event)

    def _note(self, event: SearchEvent) -> None:
        """Store an event, and tell the study what it did not decide itself."""
        self.trials.add(event)
        if event.kind == "ended":
            self._study.take(event)
        self._on_change(self.trials.all[event.trial], self)


def _other_inputs(trial: Trial, first: Trial) -> UsageError:
    return UsageError(
        f"The code or the raw data of trial {trial.number} are not those of trial {first.number}, so their values "
        "cannot be compared.",
        remedy="Begin a search of another name, and change neither while it runs.",
    )


def refusal(spec: str, overrides: Sequence[str], window: str | None) -> str:
    """Why a spec cannot have these values; "" if it can."""
    try:
        read_spec(spec, overrides).check(window)
    except UsageError as error:
        return error.message
    return ""


def trial_command(spec: str, store: Store, record: SearchRecord, trial: Trial, overrides: Sequence[str]) -> list[str]:
    """The command line of a trial's run."""
    own = [*overrides, *overrides_of(trial.settings), f"tags.{TAG}={json.dumps(record.name)}", "until=train"]
    words = [word for override in own for word in ("--set", override)]
    words += [] if record.window is None else ["--window", record.window]
    # What comes after training is tried once: it is the same for all, and no trial comes to it.
    words += ["--no-shakedown"] if trial.number else []
    place = ["--store", store.uri, "--key", key_of(record, trial.number)]
    # No trial costs anything once nobody watches it.
    tied = module_command("infra.processes.tied_to_parent", "flows.cli")
    return [*tied, "run", spec, "--json", "--quiet", *place, *words]
