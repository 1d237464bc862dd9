"""Run a command to its end, and leave none of its processes behind.

For programs and modules that print or write files; `infra.child` runs children that answer with a value.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from infra import stopping
from infra.processes.processes import end, uninterrupted

POLL_S = 0.05


def run_to_end(
    command: Sequence[str],
    mark: str,
    environ: Mapping[str, str],
    *,
    stdout: int | IO[bytes],
    stderr: IO[bytes] | None = None,
    folder: Path | None = None,
    handles: Sequence[int] = (),
) -> int | None:
    """Run a command in a session of its own and return its exit code; None if it does not end even when killed.

    An exception in this process, including KeyboardInterrupt, ends every process with the mark first. Let
    `infra.processes.tied_to_parent` start the command: it then ends even if this process is killed.

    Args:
        mark: a new mark, which `environ` carries (`marked_env`).
        stderr: None: this process's own.
        folder: the command's working directory; None: this process's own.
        handles: file descriptors that the command inherits.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=handles,
        )
        while process.poll() is None:
            stopping.check()
            time.sleep(POLL_S)
    finally:
        with uninterrupted():
            code = end(mark, process)
    return code
