"""A child process that does one piece of work and answers through a file: `python -m MODULE REQUEST ANSWER`.

User code and torch run only in such children. The parent gives a request (JSON), follows the progress, raises the
error that the child answered with, and leaves no process behind, however it is left itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from data_contracts.errors import Hung, NodeLost, OutOfMemory, TrainwrightError, from_json
from infra import stopping
from infra.launch.processes import (
    MARK,
    end,
    is_alive,
    kill_marked,
    marked_env,
    module_command,
    new_mark,
    oom_kills,
    terminable,
    uninterrupted,
)

POLL_S = 0.1
LOG_TAIL_BYTES = 8192
PARENT = "TRAINWRIGHT_PARENT"

Progress = Callable[[dict[str, Any]], None]


def run_child(
    module: str,
    request: dict[str, Any],
    *,
    project: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    on_progress: Progress | None = None,
    on_poll: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run `module` in a marked process and session of its own and return its answer.

    Args:
        project: the user's unpacked code: working directory and TRAINWRIGHT_PROJECT of the child, which puts it on
            its import path once our modules are loaded.
        env: variables added to the environment.
        timeout_s: seconds after which the child is killed and Hung is raised; default none.
        on_progress: called here with each record that the child reports.
        on_poll: called here about every POLL_S seconds while the child works.

    Raises the class of error that the child answered with; NodeLost or OutOfMemory if it was killed. An exception
    here, KeyboardInterrupt included, kills the child and all its descendants first.
    """
    mark = new_mark()
    with terminable(), tempfile.TemporaryDirectory(prefix="trainwright-child-", ignore_cleanup_errors=True) as folder:
        files = _Files(Path(folder))
        files.request.write_text(json.dumps(request))
        extra = {**(env or {}), PARENT: str(os.getpid()), "TRAINWRIGHT_PROJECT": str(project or "")}
        kills = oom_kills()
        process: subprocess.Popen[bytes] | None = None
        try:
            with files.log.open("wb") as output:
                process = subprocess.Popen(
                    module_command(module, str(files.request), str(files.answer)),
                    cwd=project,
                    env=marked_env(mark, extra),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            _follow(process, module, files, timeout_s, on_progress, on_poll)
        finally:
            # Descendants of a child that ended well, such as a loader's workers, must not outlive it either.
            with uninterrupted():
                code = end(mark, process)
        return _answer(code, module, files, oom_kills() > kills)


def child_main(work: Callable[[dict[str, Any], Progress], dict[str, Any]]) -> NoReturn:
    """Carry out the request named on the command line with `work(request, progress)` and exit.

    An error of the tree is answered as itself, with its exit code; any other exception is a bug of ours, because
    `work` wraps what user code raises in UserCodeError.
    """
    request_path, answer_path = Path(sys.argv[1]), Path(sys.argv[2])
    end_with_parent()
    files = _Files(request_path.parent)

    def progress(record: dict[str, Any]) -> None:
        with files.progress.open("a") as stream:
            stream.write(json.dumps(record) + "\n")

    try:
        answer: dict[str, Any] = {"value": work(json.loads(request_path.read_text()), progress)}
        code = 0
    except MemoryError:
        traceback.print_exc()
        answer, code = _failed(OutOfMemory(f"{_name(work)} ran out of memory."))
    except TrainwrightError as error:
        answer, code = _failed(error)
    except Exception as error:
        traceback.print_exc()
        answer, code = _failed(TrainwrightError(f"{_name(work)} failed: {type(error).__name__}: {error}."))
    write_atomically(answer_path, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads that user code left running must not keep a finished child alive.
    os._exit(code)


def end_with_parent() -> None:
    """From now on, end this process and its descendants when the one that PARENT names is gone."""
    threading.Thread(target=_watch_parent, daemon=True).start()


def write_atomically(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the whole new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    draft.replace(path)


def log_tail(path: Path, limit_bytes: int = LOG_TAIL_BYTES) -> str:
    """The end of a log file as text, "" if there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - limit_bytes))
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


class _Files:
    def __init__(self, folder: Path) -> None:
        self.request = folder / "request.json"
        self.answer = folder / "answer.json"
        self.progress = folder / "progress.jsonl"
        self.log = folder / "log.txt"


def _follow(
    process: subprocess.Popen[bytes],
    module: str,
    files: _Files,
    timeout_s: float | None,
    on_progress: Progress | None,
    on_poll: Callable[[], None] | None,
) -> None:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    position = 0
    ended = False
    while not ended:
        stopping.check()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_S)
        ended = process.returncode is not None
        if on_progress is not None and files.progress.exists():
            with files.progress.open() as stream:
                stream.seek(position)
                # A line without its end is still being written.
                while (line := stream.readline()).endswith("\n"):
                    position = stream.tell()
                    on_progress(json.loads(line))
        if not ended and on_poll is not None:
            on_poll()
        if not ended and deadline is not None and time.monotonic() > deadline:
            raise Hung(f"{module} had not ended after {timeout_s:g} s and was killed.")


def _answer(returncode: int | None, module: str, files: _Files, memory_ran_out: bool) -> dict[str, Any]:
    try:
        answer = json.loads(files.answer.read_text())
    except FileNotFoundError:
        answer = None
    tail = log_tail(files.log)
    if answer is not None and "error" not in answer:
        return answer["value"]
    if answer is not None:
        error = from_json(answer["error"])
        if type(error) is TrainwrightError:
            error.details.setdefault("log", tail)
        raise error
    if returncode is None:
        raise Hung(f"{module} does not end after SIGKILL; its machine may need a restart.", details={"log": tail})
    if returncode < 0:
        name = signal.Signals(-returncode).name
        if returncode == -signal.SIGKILL and memory_ran_out:
            raise OutOfMemory(f"The kernel killed {module} because the machine ran out of memory.")
        raise NodeLost(f"{module} was ended by {name}.", details={"log": tail})
    raise TrainwrightError(f"{module} ended with exit code {returncode} and no answer.", details={"log": tail})


def _failed(error: TrainwrightError) -> tuple[dict[str, Any], int]:
    return {"error": error.to_json()}, error.exit_code


def _name(work: Callable[..., Any]) -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else work.__module__


def _watch_parent() -> None:
    """SIGKILL leaves a parent no time to end its children itself."""
    parent = int(os.environ.get(PARENT, "0"))
    while os.getppid() == parent and is_alive(parent):
        time.sleep(0.5)
    kill_marked(os.environ.get(MARK, "").rpartition("/")[2])
    os._exit(NodeLost.exit_code)
