"""Take the stacks of a node's ranks before they are killed: what each of their threads was doing."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from infra.gang.rank_files import RankFiles
from infra.processes.processes import state

# Neither a library nor Lightning uses SIGUSR2; batch systems warn with SIGUSR1.
SIGNAL = signal.SIGUSR2
WAIT_S = 2.0
QUIET_S = 0.2
MOST_BYTES = 16_384


def answer_with_stacks(file: Path | None = None) -> None:
    """Make this process print the stacks of its threads when it receives SIGNAL, whatever it is doing.

    Args:
        file: receives the stacks if the process's log is withheld: faulthandler prints in pieces, and other threads
            print values in between. Default: its log.
    """
    if file is None:
        faulthandler.register(SIGNAL, all_threads=True)
    else:
        faulthandler.register(SIGNAL, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), all_threads=True)


def take_stacks(ranks: Iterable[RankFiles]) -> dict[int, str]:
    """Each rank's stacks as text, or why a rank gave none. A rank's log holds them too unless it is withheld."""
    found: dict[int, str] = {}
    asked: list[_Asked] = []
    for rank in ranks:
        pid = rank.pid()
        letter = "" if pid is None else state(pid)
        if pid is None or letter in ("", "Z", "X"):
            found[rank.rank] = "It has no process."
        elif letter == "T":
            found[rank.rank] = f"Process {pid} is stopped (SIGSTOP), so it cannot say."
        else:
            # A withheld log is a link, and the stacks have a file of their own.
            asked.append(_Asked(rank.rank, rank.stack if rank.log.is_symlink() else rank.log))
            with suppress(ProcessLookupError):
                os.kill(pid, SIGNAL)
    return {**found, **_printed(asked)}


class _Asked:
    """A rank that was asked for its stacks, and what it has printed since."""

    def __init__(self, rank: int, file: Path) -> None:
        self.rank, self._file = rank, file
        self._before = self.size

    @property
    def size(self) -> int:
        return self._file.stat().st_size

    @property
    def has_printed(self) -> bool:
        return self.size > self._before

    def text(self) -> str:
        with self._file.open("rb") as printed:
            printed.seek(self._before)
            return printed.read(MOST_BYTES).decode(errors="replace").strip()


def _printed(asked: list[_Asked]) -> dict[int, str]:
    """What the ranks have printed since, once they print no more."""
    until = time.monotonic() + WAIT_S
    sizes, quiet = [rank.size for rank in asked], time.monotonic()
    while asked and time.monotonic() < until:
        time.sleep(0.02)
        now = [rank.size for rank in asked]
        if now != sizes:
            sizes, quiet = now, time.monotonic()
        elif all(rank.has_printed for rank in asked) and time.monotonic() - quiet > QUIET_S:
            break
    return {rank.rank: rank.text() or "It did not say." for rank in asked}
