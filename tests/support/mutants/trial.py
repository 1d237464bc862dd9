"""A warm process that tries mutants: `python -m tests.support.mutants.trial`, in a scratch copy of the tree.

It imports what no mutant of the target changes, then forks for each request: one line of JSON with `tests`, `limit_s`,
`scratch` and `compiled` in, one with `status`, `by` and `seconds` out. A trial has a process group and folders of its
own. The warm process adopts what the tests leave running (PR_SET_CHILD_SUBREAPER) and ends it, so that no trial meets
another's processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numba.core.caching
import psutil
import pytest

PR_SET_CHILD_SUBREAPER = 36
STUCK_S, STUCK_TIMES = 8.0, 5
STUCK = 75  # exit code of a trial with a test that is stuck


class _FirstFailure:
    """What failed first. A test that takes far longer than when it was recorded ends the trial: a mutant loops."""

    def __init__(self, seconds: dict[str, float], running: Path) -> None:
        self.test, self.seconds, self.running = "", seconds, running

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.running.write_text(item.nodeid)
        limit = STUCK_S + STUCK_TIMES * self.seconds.get(item.nodeid, STUCK_S)
        watch = threading.Timer(limit, os._exit, [STUCK])
        watch.daemon = True
        watch.start()
        yield
        watch.cancel()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.test:
            self.test = f"{report.nodeid} (import)"


def preload(names: list[str]) -> None:
    """Import these modules, as far as they can be imported."""
    for name in names:
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    # pytest collects garbage ten times in each trial; half of a trial's time went into looking at these modules.
    gc.freeze()


def attempt(request: dict[str, Any]) -> dict[str, Any]:
    """Run the tests in a fork until one fails; `status` is killed, survived, timeout or broken (no test ran)."""
    scratch = Path(request["scratch"])
    scratch.mkdir(parents=True)
    began, answer = time.monotonic(), scratch / "answer"
    child = os.fork()
    if child == 0:
        _run(dict(request["tests"]), scratch, request["compiled"])
    ended, _, _ = select.select([waiting := os.pidfd_open(child)], [], [], request["limit_s"])
    os.close(waiting)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    _end_descendants()
    code = os.waitstatus_to_exitcode(status)
    # The test that was running when all ran out of time need not be the one that is slow: it is not named.
    said = [answer, scratch / "running"] if code == STUCK else [answer]
    by = next((path.read_text() for path in said if path.exists()), "")
    shutil.rmtree(scratch, ignore_errors=True)
    outcome = {0: "survived", pytest.ExitCode.NO_TESTS_COLLECTED: "broken"}.get(code, "killed")
    if outcome == "killed" and not by:
        by = f"exit code {code}"  # a fixture of the session, or a mutant that ends the process
    if not ended or code == STUCK:
        outcome = "timeout"
    return {"status": outcome, "by": by, "seconds": round(time.monotonic() - began, 2)}


def _run(tests: dict[str, float], scratch: Path, compiled: bool) -> None:
    code = 70
    try:
        os.setsid()
        with (scratch / "log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["TMPDIR"], tempfile.tempdir = str(scratch), None
        _numba_cache(scratch if compiled else None)
        first = _FirstFailure(tests, scratch / "running")
        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "--hypothesis-seed=1"]
        code = int(pytest.main([*options, f"--basetemp={scratch}/t", *tests], plugins=[first]))
        (scratch / "answer").write_text(first.test)
    finally:
        os._exit(code)


def _numba_cache(own: Path | None) -> None:
    """Where compiled code is kept: a folder of the trial's own, or the shared one that ignores the file's new date."""
    if own is not None:
        os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(own / "numba")
    else:
        locator = numba.core.caching._SourceFileBackedLocatorMixin
        locator.get_source_stamp = lambda self: (0, 0)


def _end_descendants() -> None:
    while found := psutil.Process().children(recursive=True):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=5)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main() -> None:
    """Answer requests until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    first = json.loads(sys.stdin.readline())
    preload(first["preload"])
    if loaded := set(first["changed"]) & sys.modules.keys():
        raise SystemExit(f"loaded before the mutants: {', '.join(sorted(loaded))}")
    for line in sys.stdin:
        print(json.dumps(attempt(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
