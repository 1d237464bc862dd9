"""Warm processes that all processes of a session of tests share: each is started by the first that asks for it.

A start takes 6 to 8 s of a processor: once for a session, not once for each of pytest-xdist's workers.

Whoever asks holds an end of a pipe, which is the warm process's stdin, for as long as it lives, however it ends. So a
warm process ends once nobody who asked for it is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.files import locked

ROOT = Path(__file__).resolve().parents[3]
# The folder of the session's sockets, which pytest's workers are told; a process that is told none makes its own.
folder: list[Path] = []
_ends: dict[str, int] = {}
_started: list[subprocess.Popen[bytes]] = []


def address(name: str, module: Sequence[str], environment: Mapping[str, str], root: Path = ROOT) -> str:
    """The socket of the warm process of this name, started if it is not there.

    Args:
        root: of the sources that it imports, which is its current folder.
        module: Python's arguments before the address, such as `-m` and a module, which says "ready" once it listens.
        environment: the whole environment in which it starts.
    """
    if not folder:
        folder.append(Path(tempfile.mkdtemp(prefix="warm-")))
    place = str(folder[0] / name)
    with locked(folder[0] / f"{name}.lock"):
        try:
            end = os.open(f"{place}.pipe", os.O_WRONLY | os.O_NONBLOCK)  # refused where nobody reads
        except OSError:
            end = _start(place, module, environment, root)
    if (before := _ends.pop(place, None)) is not None:
        os.close(before)
    _ends[place] = end
    return place


def _start(place: str, module: Sequence[str], environment: Mapping[str, str], root: Path) -> int:
    for old in (place, f"{place}.pipe"):
        Path(old).unlink(missing_ok=True)
    os.mkfifo(f"{place}.pipe", 0o600)
    read = os.open(f"{place}.pipe", os.O_RDONLY | os.O_NONBLOCK)
    end = os.open(f"{place}.pipe", os.O_WRONLY)
    process = subprocess.Popen(
        [sys.executable, *module, place],
        cwd=root, env=dict(environment), stdin=read, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    os.close(read)
    assert process.stdout.readline() == b"ready\n", f"the warm process of {place} did not start"
    _started.append(process)
    return end
