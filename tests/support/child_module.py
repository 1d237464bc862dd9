"""A child for tests: does what its request says, through the same door as the real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from data_contracts import errors
from data_contracts.handoffs import Ref
from data_contracts.messages import Message
from data_contracts.messages.children import Advanced, Child, LaidOut, StoreAddress
from infra.processes.child_main import Report, child_main
from infra.processes.this_process import note

# A descendant that leaves its parent's session, as torchrun's ranks do, and says when it runs.
STRAY = """import os, sys, time
os.setsid()
held = b"x" * int(sys.argv[2])
open(sys.argv[1], "w").close()
time.sleep(600)
"""


class Step(Message):
    """What the child reports."""

    step: int


class Hanging(Message):
    """The child hangs from now on."""


class Ask(LaidOut, Message):
    """What the child is to do, here or on a node; each test gives what it needs."""

    code: Ref | None = None  # type: ignore[assignment]

    do: str = "answer"
    report: list[int] = Field(default_factory=list)
    heard: str | None = None
    advance: list[float] = Field(default_factory=list)
    text: str = ""
    print: str = ""
    stray: str | None = None
    error: str = ""
    name: str = ""
    exit_code: int = 0
    signal: str = ""
    store: StoreAddress | None = None
    stray_bytes: int = 0
    reading: str = ""


class Told(Message):
    """What the child answers."""

    got: dict[str, Any] = Field(default_factory=dict)
    cwd: str = ""
    project: str = ""
    path0: str = ""
    environ: dict[str, str] = Field(default_factory=dict)


def main(request: Ask, report: Report) -> Told:
    for step in request.report:
        report(Step(step=step))
        while request.heard and not Path(request.heard).exists():
            time.sleep(0.01)
    for number, seconds in enumerate(request.advance, 1):
        time.sleep(seconds)
        report(Advanced(done=number))
    print(request.print, flush=True)
    if request.reading:
        note(request.reading, 7)
    if request.stray:
        subprocess.Popen([sys.executable, "-c", STRAY, request.stray, str(request.stray_bytes)])
        while not Path(request.stray).exists():
            time.sleep(0.01)
    match request.do:
        case "raise":
            raise getattr(errors, request.error)("as asked.", user_traceback="Traceback: here")
        case "environ":
            return Told(environ=dict(os.environ))
        case "read":
            if request.name not in os.environ:
                raise errors.UserCodeError(f"The user's code raised KeyError: '{request.name}'.")
            return Told(environ={request.name: os.environ[request.name]})
        case "bug":
            print("what was printed before the bug", file=sys.stderr)
            raise ZeroDivisionError("a bug of ours")
        case "memory":
            raise MemoryError
        case "exit":
            os._exit(request.exit_code)
        case "signal":
            os.kill(os.getpid(), getattr(signal, request.signal))
        case "hang":
            report(Hanging())
            time.sleep(600)
    project, path0 = os.environ["TRAINWRIGHT_PROJECT"], sys.path[0]
    return Told(got=request.to_json(), cwd=os.getcwd(), project=project, path0=path0)


CHILD = Child("tests.support.child_module", Ask, Told)

if __name__ == "__main__":
    child_main(CHILD, main)
