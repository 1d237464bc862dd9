"""Around every command: logs on stderr, the answer on stdout, every failure one clear sentence and its exit code."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from data_contracts.errors import TrainwrightError

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


def carry_out(command: Callable[[argparse.Namespace], Answer], arguments: argparse.Namespace) -> int:
    """Run a command and print its answer; returns the exit code, never raises."""
    _log_to_stderr()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        answer = command(arguments)
    except TrainwrightError as error:
        return _fail(error, arguments)
    except KeyboardInterrupt:
        return _say_stopped(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as bug:
        return _fail(_internal(bug), arguments)
    if answer.error is not None:
        # For a person the sentence stands in the text that follows.
        _explain(answer.error, sentence=arguments.json)
    print(json.dumps(answer.value) if arguments.json else answer.text)
    return answer.exit_code


def coloured(arguments: argparse.Namespace) -> bool:
    """Whether the answer may be coloured: a terminal, and neither `--no-color` nor NO_COLOR."""
    return sys.stdout.isatty() and not arguments.no_color and not os.environ.get("NO_COLOR")


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


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


def _say_stopped(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps({"error": {"cause": "cancelled", "message": "stopped"}, "exit_code": 130}))
    print("trainwright: stopped; no process is left.", file=sys.stderr)
    return 130


def _internal(bug: Exception) -> TrainwrightError:
    """A bug of ours: the traceback goes to a file, the answer is a sentence that names it."""
    from infra.settings import state_folder

    path = state_folder() / "internal-error.log"
    path.write_text("".join(traceback.format_exception(bug)))
    return TrainwrightError(
        f"Internal error: {type(bug).__name__}: {bug}.", remedy=f"This is a bug; please report it with {path}."
    )
