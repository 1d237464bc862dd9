"""Processes that race for one name in a store; used by the tests of create-once and compare-and-set."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from typing import Any

from infra.store import Lease, PointerMoved, open_store

RACERS = 8


def race(kind: str, uri: str, options: Mapping[str, Any], rounds: int) -> list[list[bool]]:
    """Whether each of 8 processes won, by round. `kind`: `create`, `swap`, `seal`, `lease` or `open`."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(RACERS), context.Queue()
    processes = [
        context.Process(target=_racer, args=(kind, uri, options, rounds, number, barrier, answers), daemon=True)
        for number in range(RACERS)
    ]
    for process in processes:
        process.start()
    won = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    return [[won[number][turn] for number in range(RACERS)] for turn in range(rounds)]


def _racer(
    kind: str, uri: str, options: Mapping[str, Any], rounds: int, number: int, barrier: Any, answers: Any
) -> None:
    won = []
    for turn in range(rounds):
        barrier.wait(60)
        won.append(RACES[kind](open_store(uri, options), turn, number, barrier))
    answers.put((number, won))


def _create(store: Any, turn: int, number: int, barrier: Any) -> bool:
    barrier.wait(60)
    try:
        store.create(f"race/{turn}", str(number).encode() * 1000)
    except FileExistsError:
        return False
    return store.read(f"race/{turn}") == str(number).encode() * 1000


def _swap(store: Any, turn: int, number: int, barrier: Any) -> bool:
    pointer = store.pointer("pointer")
    before = pointer.read()
    barrier.wait(60)
    try:
        moved = pointer.swap(before, [turn, number])
    except PointerMoved as error:
        assert error.current.value[0] == turn
        return False
    return pointer.read() == moved


def _seal(store: Any, turn: int, number: int, barrier: Any) -> bool:
    writer = store.writer(f"datasets/k-{turn}")
    entry = writer.put("same", b"same bytes")
    barrier.wait(60)
    ref = writer.seal("dataset", {}, {"by": number}, [entry])
    manifest = store.verify(ref)
    return manifest.provenance == {"by": number}


def _open(store: Any, turn: int, number: int, barrier: Any) -> bool:
    return store.list("") == ["store.json"]


def _give_up(seconds: float) -> None:
    raise InterruptedError


def _lease(store: Any, turn: int, number: int, barrier: Any) -> bool:
    barrier.wait(60)
    try:
        lease = Lease.take(store, f"lease-{turn}", str(number), patience_s=60, sleep=_give_up)
    except InterruptedError:
        return False
    return lease.token == 0


RACES = {"create": _create, "swap": _swap, "seal": _seal, "lease": _lease, "open": _open}
