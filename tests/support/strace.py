"""Processes under strace, which counts their calls of the system, or makes some of them fail."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path


def traced(child: int, *options: str) -> int:
    """Let a stopped child of this process continue under strace; its wait status at its end."""
    strace = subprocess.Popen(["strace", "-f", "-qq", "-p", str(child), *options], stderr=subprocess.DEVNULL)
    while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
        assert strace.poll() is None, "strace did not attach"
        time.sleep(0.002)
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    strace.wait()
    return status
