"""`backfill`: run a pipeline once for each window of a span, each window in a process of its own."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from data_contracts.errors import UsageError
from data_contracts.executions import BackfilledWindow
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.run_report import RunReport
from flows.commands.guard import Answer, log
from flows.commands.tables import table
from flows.connection import connect
from infra.processes.processes import marked_env, module_command, new_mark
from infra.sources.resolve import Window, parse_window
from tasks.run.run import open_spec_store
from tasks.run.spec_check import check_spec
from tasks.schedules.backfills import Backfill, MissedTimes, windows_between, windows_of

# After one of these, the other windows would end in the same way.
_STOPS = (1, 2, 130)
# A refusal repeats its exit code.
_REFUSED = {"rejected": 3, "not_promoted": 4}
_HEAD = ["window", "verdict", "run"]


def backfill(arguments: argparse.Namespace) -> Answer:
    """The `backfill` command: windows that have a verdict are skipped; the exit code is the first one that is not 0."""
    if arguments.parallel < 1:
        raise UsageError(f"--parallel: {arguments.parallel} is not a number of runs.", remedy="Give 1 or more.")
    _refuse_mixture(arguments)
    windows = [] if arguments.missed else windows_between(arguments.from_, arguments.to, arguments.every or "1d")
    path = Path(arguments.spec).resolve()
    spec = load_spec(path, arguments.set)
    if isinstance(spec.data, str) or spec.data.window is None:
        raise UsageError(
            f"{path}: data.window: the spec reads no window, so each run would read the same data.",
            remedy="Add data.window to the spec, or run it once with `trainwright run`.",
        )
    if arguments.missed:
        return _run_all(*_missed(arguments, spec, path))
    check_spec(path, arguments.set, str(windows[0]))
    planned = Backfill(open_spec_store(spec, path.parent, arguments.store), spec.name, windows)
    planned.refuse_overlaps()
    connect("cli")  # one server for all of them
    return _run_all(planned, arguments)


def _run_all(planned: _Planned, arguments: argparse.Namespace) -> Answer:
    windows = planned.windows
    with _Runs(planned, arguments).at_work() as runs:
        ends = runs.all()
    rows = [[str(window), *ends.get(window, ("not begun", "", 0))[:2]] for window in windows]
    codes = [ends[window][2] for window in windows if window in ends]
    code = next((one for one in codes if one in _STOPS), next((one for one in codes if one), 0))
    listed = [dict(zip(_HEAD, row, strict=True)) for row in rows]
    said = table(_HEAD, rows) if rows else "Each time of the schedule has its run."
    return Answer(said, {"windows": listed}, code)


def _missed(arguments: argparse.Namespace, spec: PipelineSpec, path: Path) -> tuple[MissedTimes, argparse.Namespace]:
    """The times of the deployment's schedule that are to run, and the arguments with what the deployment adds."""
    present = datetime.now(UTC)
    since = None if arguments.since is None else _since(arguments.since, present)
    connect("cli")
    from infra.orchestrator.api import asking
    from infra.orchestrator.deployments import past_times

    title = f"retrain/{arguments.name or spec.name}"
    with asking(retries=2) as client:
        past = past_times(client, title, since, present)
    windows = windows_of(past.times, past.parameters.get("window"), title)
    given = argparse.Namespace(**vars(arguments))
    given.set = [*shlex.split(past.parameters.get("set") or ""), *arguments.set]
    given.store = arguments.store or past.parameters.get("store")
    given.rehash = arguments.rehash or bool(past.parameters.get("rehash"))
    if windows:
        check_spec(path, given.set, str(windows[0]))
    store = open_spec_store(load_spec(path, given.set), path.parent, given.store)
    return MissedTimes(store, spec.name, past.deployment, windows), given


def _since(text: str, present: datetime) -> datetime:
    """`--since`: a time, or a length back from now."""
    try:
        return parse_window(f"{text}..9999-01-01" if "-" in text else text, present).start
    except UsageError as error:
        raise UsageError(
            f"--since: {text!r} cannot be read.", remedy="Write a time, such as 2026-01-01, or a length, such as 7d."
        ) from error


def _refuse_mixture(arguments: argparse.Namespace) -> None:
    """UsageError for a span of time and `--missed` at once, or for neither."""
    span = [name for name, value in (("--from", arguments.from_), ("--to", arguments.to)) if value is not None]
    extra = [name for name, value in (("--since", arguments.since), ("--name", arguments.name)) if value is not None]
    if arguments.missed and (span or arguments.every):
        raise UsageError(
            f"--missed takes its times from the schedule, so {[*span, '--every'][0]} has no effect.",
            remedy="Leave one of them out; --since says where to begin.",
        )
    if not arguments.missed and extra:
        raise UsageError(f"{extra[0]} has no effect without --missed.", remedy="Leave it out, or give --missed.")
    if not arguments.missed and len(span) < 2:
        raise UsageError(
            "backfill needs a span of time.", remedy="Give --from START --to END, or --missed for what a schedule left."
        )


class _Planned(Protocol):
    """Windows to run, each once: `Backfill` or `MissedTimes`."""

    @property
    def windows(self) -> Sequence[Window]:
        """Oldest first."""
        ...

    def key(self, window: Window) -> str:
        """The idempotency key of a window's run."""
        ...

    def begin(self, window: Window) -> None:
        """Record that a window is begun."""
        ...

    def end(self, window: Window, report: RunReport) -> None:
        """Record a window's final verdict."""
        ...

    def ended(self, window: Window) -> BackfilledWindow | None:
        """How an earlier run of the window ended; None if there is none, or if it is to be continued."""
        ...


class _Runs:
    """The processes of a backfill; however this process ends, they are asked to end."""

    def __init__(self, planned: _Planned, arguments: argparse.Namespace) -> None:
        self._planned, self._arguments = planned, arguments
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    @contextmanager
    def at_work(self) -> Iterator[_Runs]:
        """End what is still running when this context ends: by a signal, or by an error."""
        try:
            yield self
        finally:
            self._stopped = True
            for process in list(self._running):
                process.send_signal(signal.SIGINT)
            for process in list(self._running):
                process.wait()

    def all(self) -> dict[Window, tuple[str, str, int]]:
        """Verdict, run id and exit code of each window that was begun, or that had ended before."""
        ends: dict[Window, tuple[str, str, int]] = {}
        waiting, at_once = list(self._planned.windows), self._arguments.parallel
        with ThreadPoolExecutor(at_once) as pool:
            futures: dict[Future[tuple[str, str, int]], Window] = {}
            try:
                while waiting or futures:
                    while waiting and len(futures) < at_once and not self._stopped:
                        window = waiting.pop(0)
                        futures[pool.submit(self._one, window)] = window
                    for done in wait(futures, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        window = futures.pop(done)
                        ends[window] = verdict, _, code = done.result()
                        log.info("%s: %s", window, verdict)
                        self._stopped = self._stopped or code in _STOPS
                    if self._stopped and not futures:
                        return ends
            except BaseException:
                self._stopped = True
                for process in list(self._running):
                    process.send_signal(signal.SIGINT)
                raise
        return ends

    def _one(self, window: Window) -> tuple[str, str, int]:
        before = self._planned.ended(window)
        if before is not None:
            return f"{before.verdict} before", str(before.run_id), _REFUSED.get(str(before.verdict), 0)
        self._planned.begin(window)
        given = self._arguments
        command = module_command("flows.cli", "run", str(Path(given.spec).resolve()), "--json", "--quiet")
        command += ["--window", str(window), "--key", self._planned.key(window)]
        command += ["--store", given.store] if given.store else []
        command += [part for one in given.set for part in ("--set", one)] + (["--rehash"] if given.rehash else [])
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=marked_env(new_mark()))
        self._running.add(process)
        printed, _ = process.communicate()
        self._running.discard(process)
        return self._ended(window, printed, process.returncode)

    def _ended(self, window: Window, printed: str, code: int) -> tuple[str, str, int]:
        try:
            value: dict[str, Any] = json.loads(printed)
        except ValueError:
            return f"it ended with {code} and left no report", "", code or 1
        if "error" in value and "verdict" not in value:
            return str(value["error"]["message"]), "", code
        report = RunReport.from_json(value)
        self._planned.end(window, report)
        return report.verdict, report.run_id, code
