"""A process that says what it sees of itself, and then does what its argument asks for: `MODULE WAY`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(way: str) -> None:
    """Print what this process sees, then end in the way that is asked for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    environ = Path("/proc/self/environ").read_bytes().rstrip(b"\0").split(b"\0")
    seen = {
        "environ": sorted(entry.decode() for entry in environ),
        "command": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0"),
        "path": sys.path,
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "umask": os.umask(0),
        "parent": os.getppid(),
        "warm": bool({"torch", "flows.commands"} & sys.modules.keys()),
        "pid": os.getpid(),
    }
    print(json.dumps(seen))
    if way == "raise":
        raise ValueError("it was asked for")
    if way == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "wait":
        time.sleep(600)
    sys.exit(7)


if __name__ == "__main__":
    main(sys.argv[1])
