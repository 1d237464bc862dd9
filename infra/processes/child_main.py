"""The child's side of `infra.child`: carries out the request that its command line names.

It ends when its parent does, and leaves no thread of the user's code behind.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from data_contracts.errors import NodeLost, OutOfMemory, TrainwrightError
from data_contracts.messages import Message
from data_contracts.messages.children import A, Advanced, Child, R
from data_contracts.quoting import type_and_text, withholds
from infra.files import replace_json
from infra.processes.processes import MARK, is_alive, kill_marked
from infra.processes.this_process import COUNTERS

PARENT = "TRAINWRIGHT_PARENT"
# Makes a child print the stacks of its threads to its log, as it does a rank.
STACKS = signal.SIGUSR2
# The function through which a child reports.
Report = Callable[[Message], None]


def child_main(child: Child[R, A], work: Callable[[R, Report], A]) -> NoReturn:
    """Run the request named on the command line with `work(request, report)` and exit.

    One of our errors is answered as itself, with its exit code. Any other exception is a bug of ours, because `work`
    wraps exceptions of user code in UserCodeError.
    """
    faulthandler.register(STACKS, all_threads=True)
    request_path, answer_path = Path(sys.argv[1]), Path(sys.argv[2])
    end_with_parent()
    files = ChildFiles(request_path.parent)

    def report(message: Message) -> None:
        with files.reports.open("a") as stream:
            stream.write(json.dumps([type(message).__name__, message.to_json()]) + "\n")

    try:
        request = child.request.from_json(json.loads(request_path.read_text()))
        answer: dict[str, object] = {"value": work(request, report).to_json()}
        code = 0
    except MemoryError:
        traceback.print_exc()
        answer, code = _failed(OutOfMemory(f"{_name(work)} ran out of memory."))
    except TrainwrightError as error:
        if withholds():
            traceback.print_exc()
        answer, code = _failed(error)
    except Exception as error:
        traceback.print_exc()
        answer, code = _failed(TrainwrightError(f"{_name(work)} failed: {type_and_text(error)}."))
    replace_json(answer_path, {**answer, "used": COUNTERS.total().to_json()})
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads that user code left running must not keep a finished child alive.
    os._exit(code)


def advances(report: Report, every_s: float) -> Callable[[], None]:
    """A function to call after each piece of long work; it reports how many are done, at most once in `every_s`."""
    pieces, reported = 0, time.monotonic()

    def advanced() -> None:
        nonlocal pieces, reported
        pieces += 1
        if time.monotonic() - reported >= every_s:
            reported = time.monotonic()
            report(Advanced(done=pieces, long=True))

    return advanced


def end_with_parent() -> None:
    """From now on, end this process and its descendants when the process that PARENT names is gone."""
    threading.Thread(target=_watch_parent, daemon=True).start()


class ChildFiles:
    """The files through which a child and its parent speak, in the child's temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.request = folder / "request.json"
        self.answer = folder / "answer.json"
        self.reports = folder / "reports.jsonl"
        self.log = folder / "log.txt"
        self.reading = folder / "reading.json"


def _failed(error: TrainwrightError) -> tuple[dict[str, object], int]:
    return {"error": error.to_json()}, error.exit_code


def _name(work: Callable[..., Any]) -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else work.__module__


def _watch_parent() -> None:
    """End this process tree when the parent is gone: SIGKILL leaves a parent no time to end its children itself."""
    parent = int(os.environ.get(PARENT, "0"))
    while os.getppid() == parent and is_alive(parent):
        time.sleep(0.5)
    kill_marked(os.environ.get(MARK, "").rpartition("/")[2])
    os._exit(NodeLost.exit_code)
