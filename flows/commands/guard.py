"""Wraps every command: logs go to stderr, the answer to stdout; a failure is one clear sentence and its exit code.

The screen of a run, which several commands answer, stands here, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import Cancelled, StorageUnavailable, TrainwrightError, UsageError, from_json
from data_contracts.quoting import escaped
from flows.commands.terminal import draws, printable
from infra import scratch, stopping
from infra.orchestrator.api import refuse_settings_of
from infra.processes.environment import NO_SHAKEDOWN
from infra.settings import state_folder
from infra.telemetry import LOG_FORMAT, JsonFormatter, json_line

if TYPE_CHECKING:
    from data_contracts.run_report import RunReport


log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Answer:
    """A command's answer: `text` for a person, `value` (one JSON object) for a program, and the exit code.

    Attributes:
        error: the error that ended the run reported here; `text` and `value` hold its sentence already.
        line: what `--quiet` prints instead of `text`; "": `text`, if it is what the user asked for.
    """

    text: str
    value: Mapping[str, object]
    exit_code: int = 0
    error: TrainwrightError | None = None
    line: str = ""


def carry_out(load: Callable[[], Callable[[argparse.Namespace], Answer]], arguments: argparse.Namespace) -> int:
    """Import a command (`load`), run it and print its answer; returns the exit code, never raises."""
    quiet = getattr(arguments, "quiet", False)
    if getattr(arguments, "no_shakedown", False):
        os.environ[NO_SHAKEDOWN] = "1"
    _log_to_stderr(quiet)
    try:
        with contextlib.ExitStack() as stack:
            with _leaving_at_once(arguments):
                refuse_settings_of(Path())
                command = load()
                stack.enter_context(_stages_shown(arguments, quiet))
            _sweep(arguments)
            answer = command(arguments)
    except KeyboardInterrupt:
        return fail(_stopped(), arguments)
    except BrokenPipeError as error:
        if not _reader_is_gone():
            return fail(_internal(error), arguments)
        _leave_stdout()
        return 128 + signal.SIGPIPE  # of a command that prints as it works, such as `logs`
    except BaseException as error:  # not only Exception: a panic of a library in Rust is a BaseException
        # Libraries turn an exception that a signal raises inside them into errors of their own.
        if stopping.received and not isinstance(error, TrainwrightError):
            return fail(_stopped(), arguments)
        return fail(error if isinstance(error, TrainwrightError) else _internal(error), arguments)
    if answer.error is not None:
        # For a person, the following text has the sentence.
        _explain(answer.error, sentence=arguments.json)
    text = (quiet and answer.line) or answer.text
    shown = json.dumps(answer.value) if arguments.json else printable(text, coloured=coloured(arguments))
    return _print(shown) or answer.exit_code


def _print(text: str) -> int:
    """Print the answer of a command, whose work is done anyway; returns an exit code if it could not be written."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # such as `… | head`
        _leave_stdout()
    except OSError as error:
        _leave_stdout()
        unwritten = StorageUnavailable(
            f"The command has ended, but stdout did not take its answer: {error.strerror}.",
            remedy="Free some space, or print it elsewhere.",
        )
        _explain(unwritten)
        return unwritten.exit_code
    return 0


def _leave_stdout() -> None:
    """Discard stdout from here on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_is_gone() -> bool:
    """Whether stdout is a pipe or a socket that nobody reads any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def coloured(arguments: argparse.Namespace) -> bool:
    """Whether the answer may be coloured: stdout is a terminal, and neither `--no-color` nor NO_COLOR is set."""
    return sys.stdout.isatty() and not getattr(arguments, "no_color", False) and not os.environ.get("NO_COLOR")


class _Stopped(KeyboardInterrupt):
    """Raised by SIGINT and SIGTERM.

    A class of its own: if a plain KeyboardInterrupt leaves code that was compiled from a string (a dataclass being
    imported, say), CPython ends with the signal instead of the exit code, even if the exception was handled.
    """


@contextlib.contextmanager
def _leaving_at_once(arguments: argparse.Namespace) -> Iterator[None]:
    """SIGINT and SIGTERM end the process at once while commands are imported; after that they raise `_Stopped`.

    No work has begun by then, and not every library's import survives an exception from a signal: some take it for a
    missing package, one written in Rust panics.
    """
    stopping.received.clear()
    importing = True

    def stop(number: int, _frame: Any) -> None:
        stopping.received.append(number)
        if not importing:
            raise _Stopped
        code = fail(_stopped(), arguments)
        sys.stdout.flush()
        os._exit(code)

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as it is for a script's background jobs
        signal.signal(signal.SIGINT, stop)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _show_unless_stopped
    yield
    importing = False


def _show_unless_stopped(unraisable: sys.UnraisableHookArgs) -> None:
    """Show an exception that a library could not pass on, unless a signal raised it, which is recorded."""
    if not (stopping.received and isinstance(unraisable.exc_value, KeyboardInterrupt)):
        sys.__unraisablehook__(unraisable)


def _sweep(arguments: argparse.Namespace) -> None:
    """Remove what killed commands left on this machine; `doctor` reports it instead."""
    # A command that needs the state folder reports its faults; others, such as `schema`, must still work.
    with contextlib.suppress(TrainwrightError, OSError):
        if arguments.command != "doctor":
            scratch.sweep()


class _Printable(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(escaped(record.getMessage()))

    def formatException(self, ei: Any) -> str:
        return printable(super().formatException(ei))


@contextlib.contextmanager
def _stages_shown(arguments: argparse.Namespace, quiet: bool) -> Iterator[None]:
    """Show stages inside on stderr if it is a terminal; log lines are printed either way."""
    if arguments.json or not sys.stderr.isatty():
        yield
        return
    from tasks.run.progress import listening

    view = _Watching(coloured=not getattr(arguments, "no_color", False))
    live = not quiet and draws(sys.stderr)
    try:
        with listening(view.handle if live else lambda _: None, owns_terminal=True):
            yield
    finally:
        view.end()


class _Watching:
    """Hands events to the live view. Rich is imported when the first stage begins; most commands run none."""

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._view: Any = None
        self._failed = False

    def handle(self, event: Any) -> None:
        if self._failed:
            return
        try:
            self._begun().handle(event)
        except Exception as error:  # a failing view must not end the run
            self._failed = True
            self.end()
            log.warning(
                "The live view failed and is switched off; the run continues (%s: %s).", type(error).__name__, error
            )

    def end(self) -> None:
        if self._view is not None:
            self._view.end()

    def _begun(self) -> Any:
        if self._view is None:
            from infra.processes.processes import uninterrupted

            # Not every library's import survives an exception from a signal.
            with uninterrupted():
                from flows.commands.live_view import LiveView

                self._view = LiveView(colour=self._coloured)
        return self._view


def _log_to_stderr(quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.ERROR if quiet else logging.NOTSET)
    if logging.lastResort is not None:  # for all other loggers
        logging.lastResort.setLevel(logging.ERROR if quiet else logging.WARNING)
    handler.setFormatter(JsonFormatter() if os.environ.get(LOG_FORMAT) == "json" else _Printable("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def refuse(sentence: str, remedy: str, *, as_json: bool) -> int:
    """Report arguments that cannot be parsed like any other error; returns its exit code, 2."""
    return fail(UsageError(sentence, remedy=remedy), argparse.Namespace(json=as_json))


def fail(error: TrainwrightError, arguments: argparse.Namespace) -> int:
    """Print an error: its JSON object on stdout if asked for, its sentence on stderr; returns its exit code."""
    if arguments.json:
        _print(json.dumps({"error": error.to_json(), "exit_code": error.exit_code}))
    _explain(error)
    return error.exit_code


def _explain(error: TrainwrightError, *, sentence: bool = True) -> None:
    if os.environ.get(LOG_FORMAT) == "json":
        more: dict[str, Any] = {"exception": error.user_traceback} if error.user_traceback else {}
        print(json_line("error", str(error), logger=log.name, cause=error.cause, **more), file=sys.stderr)
        return
    if error.user_traceback:
        print(printable(error.user_traceback.rstrip()), file=sys.stderr)
    if sentence:
        print(printable(f"trainwright: {error}"), file=sys.stderr)


def _stopped() -> TrainwrightError:
    return Cancelled("stopped; no process is left.", remedy="")


def _internal(bug: BaseException) -> TrainwrightError:
    """The error for a bug of ours: the traceback goes to a file, and the sentence names that file."""
    path = state_folder() / "internal-error.log"
    path.write_text("".join(traceback.format_exception(bug)))
    return TrainwrightError(
        f"Internal error: {type(bug).__name__}: {bug}.", remedy=f"This is a bug; please report it with {path}."
    )


def run_answer(report: RunReport, arguments: argparse.Namespace) -> Answer:
    """A run's report for a person (one screen, verdict first) and for a program."""
    error = None if report.error is None else from_json(report.error)
    said = run_text(report, coloured(arguments))
    return Answer(said, report.to_json(), report.exit_code, error, line=said.partition("\n")[0])


def run_text(report: RunReport, colour: bool) -> str:
    """One screen about a run."""
    from tasks.run.report import cost_sentence  # slow, and most commands are about no run

    shades = {**dict.fromkeys(("promoted", "canary", "unchanged", "trained"), 32), "not_promoted": 33, "waiting": 33}
    shade = shades.get(report.verdict, 31)
    verdict = f"\033[{shade}m{report.verdict}\033[0m" if colour else report.verdict
    # The verdict's word is not said twice.
    sentence = report.sentence.removeprefix("Not promoted: ").removeprefix("Not promoted, ")
    lines = [""]
    for one in report.stages:
        reused = f" ← {one.reused_from}" if one.reused_from else ""
        said = "" if one.sentence and one.sentence in report.sentence else f"  {one.sentence}{reused}"
        lines.append(f"  {one.name:<9} {one.status:<9} {one.seconds:6.1f} s{said}")
    if report.metrics:
        lines += ["", "  metrics   " + ", ".join(f"{name} {value:.4f}" for name, value in report.metrics.items())]
    lines.append(f"  cost      {cost_sentence(report.cost)}")
    lines += [f"  budget    {sentence.removeprefix('The budget ')}" for sentence in report.budgets]
    lines.append(f"  run       {report.run_id}")
    return "\n".join([f"{verdict}: {sentence}", *map(escaped, lines)])
