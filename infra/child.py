"""Run a child process that does one job and answers through a file: `python -m MODULE REQUEST ANSWER`.

User code and torch run only in such children. The parent writes a request (JSON), follows the progress, and raises the
error that the child answered with. It leaves no process behind, even if it is interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_contracts.costs import Resources
from data_contracts.errors import (
    CorruptError,
    Hung,
    NodeLost,
    OutOfMemory,
    TrainwrightError,
    UsageError,
    UserCodeError,
    from_json,
)
from data_contracts.messages import Message
from data_contracts.messages.children import A, Advanced, Child, R
from data_contracts.messages.commands import REAP
from data_contracts.quoting import LOG, PROJECT, log_place, withholds
from infra import scratch, stopping
from infra.environments.cache import interpreter
from infra.machine import machine_bytes, tree_bytes
from infra.processes.child_main import PARENT, STACKS, ChildFiles
from infra.processes.environment import LEFT_OUT, IdleLimit, IdleWatch, explain, for_user_code, new_log
from infra.processes.processes import end, marked_env, module_command, new_mark, oom_kills, terminable, uninterrupted
from infra.processes.this_process import COUNTERS, READING, noted

POLL_S = 0.1
# Signals that a process brings on itself, unlike SIGKILL and SIGTERM.
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
_READ_LESS = (
    "Split the file, leave out columns that are not needed, use a machine with more memory or, if a spec names the "
    "file, raise data.memory_share."
)
# A hung child gets this long to print its stacks.
STACKS_S = 2.0
LOG_TAIL_BYTES = 8192

# Type of a report → the function that is called with it.
Handlers = Mapping[type[Message], Callable[[Any], None]]


def run_child(
    child: Child[R, A],
    request: R,
    *,
    project: Path | None = None,
    withhold: bool = False,
    limit: float | IdleLimit | None = None,
    memory_share: float | None = None,
    on_report: Handlers | None = None,
    on_poll: Callable[[], None] | None = None,
) -> A:
    """Run a child in a marked process and session of its own and return its answer; see `run_module`."""
    answer = run_module(
        child.module,
        request.to_json(),
        project=project,
        withhold=withhold,
        limit=limit,
        memory_share=memory_share,
        on_report=on_report,
        on_poll=on_poll,
    )
    return answer_of(child, answer)


def answer_of(child: Child[R, A], value: dict[str, object]) -> A:
    """A child's answer read; CorruptError if it does not fit the type that the child answers with."""
    try:
        return child.answer.from_json(value)
    except ValidationError as error:
        field = ".".join(map(str, error.errors(include_input=False)[0]["loc"]))
        raise CorruptError(
            f"The answer of {child.module} does not fit {child.answer.__name__}: {field}.",
            remedy="Use one version of Trainwright on all machines, then run again.",
        ) from error


def run_module(
    module: str,
    request: Mapping[str, object],
    *,
    project: Path | None = None,
    withhold: bool = False,
    limit: float | IdleLimit | None = None,
    memory_share: float | None = None,
    on_report: Handlers | None = None,
    on_poll: Callable[[], None] | None = None,
) -> dict[str, object]:
    """`run_child` for a request and an answer, as JSON, that this process passes on without reading them.

    Args:
        project: the user's unpacked code: the child's working directory and TRAINWRIGHT_PROJECT. The child puts it on
            its import path once our modules are loaded, and runs with the packages that this code asks for.
        withhold: whether the child handles rows with sensitive columns; assumed if this process withholds texts. Its
            output and the texts of exceptions that are not ours stay in a file on this machine, which messages name.
        limit: seconds, in all or without progress (`Advanced`), after which the child is killed and Hung is raised.
        memory_share: of a child that reads what others wrote: the share of this machine's memory that it and its
            descendants may take. With more they are killed, and OutOfMemory names the raw file and the row.
        on_report: type of a report → called in this process with each report of that type; others are ignored.
        on_poll: called in this process about every POLL_S seconds while the child works.

    Raises the class of error that the child answered with; NodeLost or OutOfMemory if it was killed; UsageError if
    reading a raw file ended it. An exception in this process, including KeyboardInterrupt, kills the child and all its
    descendants first.
    """
    python, mark = _python(project, request), new_mark()
    with terminable(), scratch.make("child", mark=mark) as folder, _reading_named(files := ChildFiles(folder.path)):
        files.request.write_text(json.dumps(request))
        withheld = new_log(module.rpartition(".")[2]) if withhold or withholds() else None
        if withheld is not None:
            files.log.symlink_to(withheld)
        own = {PARENT: str(os.getpid()), PROJECT: str(project or ""), LOG: str(withheld or "")}
        own |= {} if memory_share is None else {READING: str(files.reading)}
        # The reaper's child runs no code of the user's, and asks Prefect and opens stores as this process does.
        environ = {LEFT_OUT: "", **os.environ} if module == REAP.module else for_user_code(os.environ, request)
        env = marked_env(mark, {**scratch.variables(folder.path), **own}, environ)
        kills = oom_kills()
        process: subprocess.Popen[bytes] | None = None
        try:
            process = _start(module, files, project, env, folder.handles, python)
            polls = [] if memory_share is None else [_memory_watch(process.pid, memory_share)]
            _follow(process, module, files, limit, on_report or {}, [*polls, *([on_poll] if on_poll else [])])
        finally:
            with uninterrupted():  # even after a child that ended well, a loader's workers must not survive
                code = end(mark, process)
        try:
            answer = _answer(code, module, files, oom_kills() > kills)
        except UserCodeError as error:
            explain(error, environ)
            raise
        if withheld is not None and str(withheld) not in json.dumps(answer):
            withheld.unlink(missing_ok=True)  # no message names it
        return answer


def log_tail(path: Path, limit_bytes: int = LOG_TAIL_BYTES) -> str:
    """The end of a log file as text, "" if there is none; for a withheld log, a sentence that says where it is."""
    if path.is_symlink():
        return f"What it printed is in {log_place(path.resolve())}."
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - limit_bytes))
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _python(project: Path | None, request: Mapping[str, object]) -> str:
    """The child's interpreter: that of the code in its folder, or of the code that its request names as `project`."""
    named = request.get("project")
    return interpreter(Path(named) if project is None and isinstance(named, str) else project)


def _start(
    module: str, files: ChildFiles, project: Path | None, env: dict[str, str], handles: Sequence[int], python: str
) -> subprocess.Popen[bytes]:
    with files.log.open("wb") as output:
        return subprocess.Popen(
            module_command(module, str(files.request), str(files.answer), python=python),
            cwd=project,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=handles,
        )


def _follow(
    process: subprocess.Popen[bytes],
    module: str,
    files: ChildFiles,
    limit: float | IdleLimit | None,
    on_report: Handlers,
    polls: Sequence[Callable[[], None]],
) -> None:
    deadline = time.monotonic() + limit if isinstance(limit, int | float) else None
    idle = IdleWatch(limit) if isinstance(limit, IdleLimit) else None
    on_report = on_report if idle is None else {Advanced: idle.hear, **on_report}
    position = 0
    ended = False
    while not ended:
        stopping.check()
        for poll in polls:
            poll()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_S)
        ended = process.returncode is not None
        if on_report and files.reports.exists():
            position = _hear(files.reports, position, on_report)
        if not ended and deadline is not None and time.monotonic() > deadline:
            raise Hung(f"{module} had not ended after {limit:g} s and was killed.")
        if not ended and idle is not None and (seconds := idle.overdue_s()):
            _ask_for_stacks(process, files.log)
            raise Hung(
                f"{module} has made no progress for {seconds:.0f} s and was killed.",
                remedy="Run again; if it stops there again, look at its threads' stacks at the end of its log.",
                details={"log": log_tail(files.log)},
            )


def _memory_watch(pid: int, share: float) -> Callable[[], None]:
    most = int(share * machine_bytes())

    def look() -> None:
        if tree_bytes(pid) > most:
            sentence = f"It took more than {most / 2**30:.1f} GiB of memory, {share:.0%} of this machine's."
            raise OutOfMemory(sentence, remedy=_READ_LESS)

    return look


@contextlib.contextmanager
def _reading_named(files: ChildFiles) -> Iterator[None]:
    """Name the raw file and the row at which a child ran out of memory or crashed, if it was reading one."""
    try:
        yield
    except (OutOfMemory, NodeLost) as error:
        position = noted(files.reading)
        if position is None or (isinstance(error, NodeLost) and error.details.get("signal") not in _CRASHES):
            raise
        sentence = f"Reading {position[0]} ended at row {position[1]}: {error.message}"
        if isinstance(error, OutOfMemory):
            raise OutOfMemory(sentence, remedy=_READ_LESS, details=error.details) from error
        raise UsageError(sentence, remedy="Check the file, and write it again.", details=error.details) from error


def _ask_for_stacks(process: subprocess.Popen[bytes], log: Path) -> None:
    """Let a hung child print the stacks of its threads to its log; a stopped process cannot."""
    before, until = log.stat().st_size, time.monotonic() + STACKS_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, STACKS)
    while time.monotonic() < until and log.stat().st_size == before:
        time.sleep(0.02)
    time.sleep(0.1)


def _hear(reports: Path, position: int, on_report: Handlers) -> int:
    """Pass on the reports from `position` in the file; returns the position after them."""
    handlers = {kind.__name__: (kind, hear) for kind, hear in on_report.items()}
    with reports.open() as stream:
        stream.seek(position)
        # A line without its end is still being written.
        while (line := stream.readline()).endswith("\n"):
            position = stream.tell()
            name, message = json.loads(line)
            if name in handlers:
                kind, hear = handlers[name]
                hear(kind.from_json(message))
    return position


def _answer(returncode: int | None, module: str, files: ChildFiles, memory_ran_out: bool) -> dict[str, object]:
    try:
        answer = json.loads(files.answer.read_text())
    except FileNotFoundError:
        answer = None
    if answer is not None and "used" in answer:
        COUNTERS.add(Resources.model_validate(answer["used"]))
    tail = log_tail(files.log)
    where_log_is = f" {tail}" if files.log.is_symlink() else ""
    if answer is not None and "error" not in answer:
        return answer["value"]
    if answer is not None:
        error = from_json(answer["error"])
        if type(error) is TrainwrightError:
            error.details.setdefault("log", tail)
        raise error
    if returncode is None:
        raise Hung(
            f"{module} does not end after SIGKILL; its machine may need a restart.{where_log_is}", details={"log": tail}
        )
    if returncode < 0:
        name = signal.Signals(-returncode).name
        if returncode == -signal.SIGKILL and memory_ran_out:
            raise OutOfMemory(f"The kernel killed {module} because the machine ran out of memory.")
        raise NodeLost(f"{module} was ended by {name}.{where_log_is}", details={"log": tail, "signal": name})
    raise TrainwrightError(
        f"{module} ended with exit code {returncode} and no answer.{where_log_is}", details={"log": tail}
    )
