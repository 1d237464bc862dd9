"""`backfill`: run a pipeline once for each window of a span, each window in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.load import load_spec
from data_contracts.run_report import RunReport
from flows.commands.guard import Answer, log
from flows.commands.run import connect
from flows.commands.tables import table
from infra.processes.processes import CODE_ROOT
from infra.sources.window import Window
from tasks.run.backfilling import Backfill, windows_between
from tasks.run.run import open_spec_store
from tasks.run.spec_check import check_spec

# After one of these, the other windows would end in the same way.
_STOPS = (1, 2, 130)
# A refusal repeats its exit code.
_REFUSED = {"rejected": 3, "not_promoted": 4}
_HEAD = ["window", "verdict", "run"]


def backfill(arguments: argparse.Namespace) -> Answer:
    """The `backfill` command: windows that have a verdict are skipped; the exit code is the first one that is not 0."""
    if arguments.parallel < 1:
        raise UsageError(f"--parallel: {arguments.parallel} is not a number of runs.", remedy="Give 1 or more.")
    windows = windows_between(arguments.from_, arguments.to, arguments.every)
    path = Path(arguments.spec).resolve()
    spec = load_spec(path, arguments.set)
    if isinstance(spec.data, str) or spec.data.window is None:
        raise UsageError(
            f"{path}: data.window: the spec reads no window, so each run would read the same data.",
            remedy="Add data.window to the spec, or run it once with `trainwright run`.",
        )
    check_spec(path, arguments.set, str(windows[0]))
    planned = Backfill(open_spec_store(spec, path.parent, arguments.store), spec.name, windows)
    planned.refuse_overlaps()
    connect("cli")  # one server for all of them
    with _Runs(planned, arguments).at_work() as runs:
        ends = runs.all()
    rows = [[str(window), *ends.get(window, ("not begun", "", 0))[:2]] for window in windows]
    codes = [ends[window][2] for window in windows if window in ends]
    code = next((one for one in codes if one in _STOPS), next((one for one in codes if one), 0))
    listed = [dict(zip(_HEAD, row, strict=True)) for row in rows]
    return Answer(table(_HEAD, rows), {"windows": listed}, code)


class _Runs:
    """The processes of a backfill; however this process ends, they are asked to end."""

    def __init__(self, planned: Backfill, arguments: argparse.Namespace) -> None:
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
        command = [sys.executable, "-m", "flows.cli", "run", str(Path(given.spec).resolve()), "--json", "--quiet"]
        command += ["--window", str(window), "--key", self._planned.key(window)]
        command += ["--store", given.store] if given.store else []
        command += [part for one in given.set for part in ("--set", one)] + (["--rehash"] if given.rehash else [])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CODE_ROOT), os.environ.get("PYTHONPATH", "")])}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
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
