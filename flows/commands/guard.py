"""Around every command: logs on stderr, the answer on stdout, every failure one clear sentence and its exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import Cancelled, TrainwrightError
from infra import stopping

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Answer:
    """What a command answers: `text` for a person, `value` (one JSON object) for a program, and the exit code.

    Attributes:
        error: what ended a run whose report this is; `text` and `value` hold its sentence already.
    """

    text: str
    value: dict[str, Any]
    exit_code: int = 0
    error: TrainwrightError | None = None


def carry_out(load: Callable[[], Callable[[argparse.Namespace], Answer]], arguments: argparse.Namespace) -> int:
    """Import a command (`load`), run it and print its answer; returns the exit code, never raises."""
    _log_to_stderr()
    try:
        with _leaving_at_once(arguments):
            command = load()
        answer = command(arguments)
    except KeyboardInterrupt:
        return _fail(_stopped(), arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:  # not only Exception: a panic of a library in Rust is none
        # Libraries turn what a signal raises in the middle of them into errors of their own.
        if stopping.came and not isinstance(error, TrainwrightError):
            return _fail(_stopped(), arguments)
        return _fail(error if isinstance(error, TrainwrightError) else _internal(error), arguments)
    if answer.error is not None:
        # For a person the sentence stands in the text that follows.
        _explain(answer.error, sentence=arguments.json)
    print(json.dumps(answer.value) if arguments.json else answer.text)
    return answer.exit_code


def coloured(arguments: argparse.Namespace) -> bool:
    """Whether the answer may be coloured: a terminal, and neither `--no-color` nor NO_COLOR."""
    return sys.stdout.isatty() and not arguments.no_color and not os.environ.get("NO_COLOR")


class _Stopped(KeyboardInterrupt):
    """Raised by SIGINT and SIGTERM.

    A class of its own: after a plain KeyboardInterrupt has left code that was compiled from a string (a dataclass
    being imported, say), CPython ends with the signal instead of the exit code, however it was handled.
    """


@contextlib.contextmanager
def _leaving_at_once(arguments: argparse.Namespace) -> Iterator[None]:
    """SIGINT and SIGTERM end the process at once while commands are imported; from then on they raise `_Stopped`.

    Nothing has been begun by then, and an exception that comes out of nowhere does not pass through every library's
    import: some take it for a package that is not there, one written in Rust panics.
    """
    stopping.came.clear()
    importing = True

    def stop(number: int, _frame: Any) -> None:
        stopping.came.append(number)
        if not importing:
            raise _Stopped
        code = _fail(_stopped(), arguments)
        sys.stdout.flush()
        os._exit(code)

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as it is for a script's background jobs
        signal.signal(signal.SIGINT, stop)
    yield
    importing = False


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def _fail(error: TrainwrightError, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps({"error": error.to_json(), "exit_code": error.exit_code}))
    _explain(error)
    return error.exit_code


def _explain(error: TrainwrightError, *, sentence: bool = True) -> None:
    if error.user_traceback:
        print(error.user_traceback.rstrip(), file=sys.stderr)
    if sentence:
        print(f"trainwright: {error}", file=sys.stderr)


def _stopped() -> TrainwrightError:
    return Cancelled("stopped; no process is left.", remedy="")


def _internal(bug: BaseException) -> TrainwrightError:
    """A bug of ours: the traceback goes to a file, the answer is a sentence that names it."""
    from infra.settings import state_folder

    path = state_folder() / "internal-error.log"
    path.write_text("".join(traceback.format_exception(bug)))
    return TrainwrightError(
        f"Internal error: {type(bug).__name__}: {bug}.", remedy=f"This is a bug; please report it with {path}."
    )
