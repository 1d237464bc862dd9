"""Processes that move one alias or take one lease, over and over, while they are killed and stopped at random.

`python -m tests.support.struck_writers alias|lease STORE NUMBER` is one of them. Each writes what it tried and what
came of it to `NUMBER.log` in the folder LOGS, line by line, so that a killed one has said all but its last word.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from data_contracts.handoffs import Checkpoint, Receipt, Ref
from infra.models import registry
from infra.store import Lease, PointerMoved, Store, open_store

HEX = "ab" * 32
MODEL, ALIAS, LEASE = "digits", "champion", "trainings/k-0/lease"
# How long a lease of a killed or stopped process stands still before the next one takes it.
PATIENCE_S = 0.3


@dataclass(frozen=True)
class Struck:
    """The writers' output, as (time, process, words), and how often they were struck."""

    said: list[tuple[float, str, list[str]]]
    kills: int
    stops: int


def write_versions(store: Store) -> None:
    """Two versions of a model for the alias to go between."""
    for n in (1, 2):
        ref = Ref(uri=f"trainings/k-0/checkpoints/{n}-g0", id=f"{n:064x}", seal=HEX)
        checkpoint = Checkpoint(ref=ref, key="k", training="trainings/k-0", step=n, epoch=1, generation=0, world_size=1)
        registry.write_version(store, MODEL, checkpoint, Ref(uri="evaluations/e-0", id=HEX, seal=HEX), {}, {})


def strike(kind: str, store: Path, logs: Path, *, enough: int, strikes: int, writers: int = 4, seed: int = 1) -> Struck:
    """Let writers run until `enough` moves or takes were made, and so many of each kind of strike.

    A killed one is replaced by another, a stopped one goes on a moment later.
    """
    draw, kills, stops = random.Random(seed), 0, 0
    logs.mkdir()
    running: list[subprocess.Popen[bytes]] = []
    started = 0

    def start() -> None:
        nonlocal started
        command = [sys.executable, "-m", "tests.support.struck_writers", kind, str(store), str(started)]
        root = Path(__file__).parents[2]
        running.append(subprocess.Popen(command, cwd=root, env={**os.environ, "LOGS": str(logs)}))
        started += 1

    def made() -> int:
        return sum(path.read_text().count(" made ") for path in logs.glob("*.log"))

    try:
        while made() < enough or min(kills, stops) < strikes:
            while len(running) < writers:
                start()
            time.sleep(draw.uniform(0.02, 0.3))
            victim = draw.choice(running)
            if draw.random() < 0.5:
                victim.send_signal(signal.SIGSTOP)
                time.sleep(draw.uniform(0.05, 2 * PATIENCE_S))
                victim.send_signal(signal.SIGCONT)
                stops += 1
            elif (logs / f"{started - 1}.log").exists():  # the newest has begun its work
                victim.kill()
                victim.wait()
                running.remove(victim)
                kills += 1
            assert all(one.poll() is None for one in running), "a writer ended by itself"
    finally:
        for one in running:
            one.kill()
            one.wait()
    said = []
    for path in logs.glob("*.log"):
        lines = path.read_text().splitlines(keepends=True)
        for line in lines:
            if line.endswith("\n"):  # else it was cut off by a kill
                at, *words = line.split()
                said.append((float(at), path.stem, words))
    return Struck(sorted(said), kills, stops)


class _Log:
    def __init__(self, number: str) -> None:
        self._file = os.open(Path(os.environ["LOGS"]) / f"{number}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, *words: object) -> None:
        os.write(self._file, (" ".join([f"{time.monotonic():.6f}", *map(str, words)]) + "\n").encode())


def _move(store: Store, number: str, log: _Log) -> None:
    two = {n: registry.read_version(store, MODEL, n) for n in (1, 2)}
    turn = 0
    while True:
        name = f"{number}.{turn}"
        turn += 1
        found = registry.read_alias(store, MODEL, ALIAS)
        expected, before = found or (None, None)
        version = two[1 if before == 2 else 2]
        receipt = Receipt(
            decision="promoted",
            model=MODEL,
            alias=ALIAS,
            version=version.version,
            previous=before,
            sentence=f"move {name}",
        )
        try:
            registry.move_alias(store, expected, version, receipt, {}, ())
        except PointerMoved:
            log.say("lost", name)
        else:
            log.say("made", name)


def _take(store: Store, number: str, log: _Log) -> None:
    from data_contracts.errors import Fenced

    while True:
        lease = Lease.take(store, LEASE, number, patience_s=PATIENCE_S)
        log.say("made", lease.token)
        with contextlib.suppress(Fenced):
            for _ in range(3):
                log.say("renewing", lease.token)
                lease.renew()
                log.say("renewed", lease.token)
            lease.release()


if __name__ == "__main__":
    kind, uri, number = sys.argv[1:]
    work = {"alias": _move, "lease": _take}[kind]
    work(open_store(uri), number, _Log(number))
