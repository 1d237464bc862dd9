"""The stacks of a node's ranks, taken before they are killed: what each of their threads was doing."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from infra.launch.processes import state
from infra.launch.ranks import log_file, pid_file, read_json

# Neither a library nor Lightning takes it; SIGUSR1 is what batch systems warn with.
SIGNAL = signal.SIGUSR2
WAIT_S = 2.0
QUIET_S = 0.2
MOST_BYTES = 16_384


def answer_with_stacks() -> None:
    """Have this process print the stacks of its threads to its log when it is asked, whatever it is doing."""
    faulthandler.register(SIGNAL, all_threads=True)


def take_stacks(scratch: Path, ranks: Iterable[int]) -> dict[int, str]:
    """Each rank's stacks as text, which its log holds too; for one that cannot say, why."""
    found: dict[int, str] = {}
    asked: dict[int, int] = {}
    for rank in ranks:
        known, log = read_json(pid_file(scratch, rank)), log_file(scratch, rank)
        letter = "" if known is None else state(known["pid"])
        if known is None or letter in ("", "Z", "X"):
            found[rank] = "It has no process."
        elif letter == "T":
            found[rank] = f"Process {known['pid']} is stopped (SIGSTOP), so it cannot say."
        else:
            asked[rank] = log.stat().st_size
            with suppress(ProcessLookupError):
                os.kill(known["pid"], SIGNAL)
    return {**found, **_printed(scratch, asked)}


def _printed(scratch: Path, asked: dict[int, int]) -> dict[int, str]:
    """What their logs gained, once they are quiet."""
    until = time.monotonic() + WAIT_S
    sizes, quiet = dict(asked), time.monotonic()
    while asked and time.monotonic() < until:
        time.sleep(0.02)
        now = {rank: log_file(scratch, rank).stat().st_size for rank in asked}
        if now != sizes:
            sizes, quiet = now, time.monotonic()
        elif all(now[rank] > asked[rank] for rank in asked) and time.monotonic() - quiet > QUIET_S:
            break
    found = {}
    for rank, before in asked.items():
        with log_file(scratch, rank).open("rb") as log:
            log.seek(before)
            found[rank] = log.read(MOST_BYTES).decode(errors="replace").strip() or "It did not say."
    return found
