"""A child for tests: does what its request says, through the same door as the real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from data_contracts import errors
from infra.launch.child import Progress, child_main

# A descendant that leaves its parent's session, as torchrun's ranks do, and says when it runs.
STRAY = "import os, sys, time; os.setsid(); open(sys.argv[1], 'w').close(); time.sleep(600)"


def main(request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    for record in request.get("report", []):
        progress(record)
        while "heard" in request and not Path(request["heard"]).exists():
            time.sleep(0.01)
    if "stray" in request:
        subprocess.Popen([sys.executable, "-c", STRAY, request["stray"]])
        while not Path(request["stray"]).exists():
            time.sleep(0.01)
    match request.get("do", "answer"):
        case "raise":
            raise getattr(errors, request["error"])("as asked.", user_traceback="Traceback: here")
        case "bug":
            print("what was printed before the bug", file=sys.stderr)
            raise ZeroDivisionError("a bug of ours")
        case "memory":
            raise MemoryError
        case "exit":
            os._exit(request["code"])
        case "signal":
            os.kill(os.getpid(), getattr(signal, request["signal"]))
        case "hang":
            progress({"hanging": True})
            time.sleep(600)
    return {"got": request, "cwd": os.getcwd(), "project": os.environ["TRAINWRIGHT_PROJECT"], "path0": sys.path[0]}


if __name__ == "__main__":
    child_main(main)
