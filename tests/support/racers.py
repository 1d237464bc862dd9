"""Processes that race for one name in a store; used by the tests of create-once and compare-and-set."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from typing import Any

from infra.store import Lease, PointerMoved, open_store

RACERS = 8


def race(kinds: Sequence[str], uri: str, options: Mapping[str, Any], rounds: int) -> dict[str, list[int]]:
    """How many of 8 processes won, by kind and round. Kinds: `create`, `swap`, `seal`, `lease`."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(RACERS), context.Queue()
    arguments = (tuple(kinds), uri, options, rounds, barrier, answers)
    processes = [context.Process(target=_racer, args=(n, *arguments), daemon=True) for n in range(RACERS)]
    for process in processes:
        process.start()
    won = [answers.get(timeout=200) for _ in processes]
    for process in processes:
        process.join()
    return {kind: [sum(racer[kind][turn] for racer in won) for turn in range(rounds)] for kind in kinds}


def _racer(
    number: int, kinds: Sequence[str], uri: str, options: Mapping[str, Any], rounds: int, barrier: Any, answers: Any
) -> None:
    barrier.wait(200)  # until all have started
    store = open_store(uri, options)
    answers.put({kind: [RACES[kind](store, turn, number, barrier) for turn in range(rounds)] for kind in kinds})


def _create(store: Any, turn: int, number: int, barrier: Any) -> bool:
    barrier.wait(60)
    try:
        store.create(f"race/{turn}", str(number).encode() * 1000)
    except FileExistsError:
        return False
    return store.read(f"race/{turn}") == str(number).encode() * 1000


def _swap(store: Any, turn: int, number: int, barrier: Any) -> bool:
    pointer = store.pointer("pointer")
    barrier.wait(60)
    before = pointer.read()
    barrier.wait(60)
    try:
        moved = pointer.swap(before, [turn, number])
    except PointerMoved as error:
        if error.current.value[0] != turn:
            raise AssertionError(f"round {turn} was lost to {error.current}") from error
        return False
    return pointer.read() == moved


def _seal(store: Any, turn: int, number: int, barrier: Any) -> bool:
    writer = store.writer(f"datasets/k-{turn}")
    entry = writer.put("same", b"same bytes")
    barrier.wait(60)
    ref = writer.seal("dataset", {}, {"by": number}, [entry])
    manifest = store.verify(ref)
    return manifest.provenance == {"by": number}


def _give_up(seconds: float) -> None:
    raise InterruptedError


def _lease(store: Any, turn: int, number: int, barrier: Any) -> bool:
    barrier.wait(60)
    try:
        lease = Lease.take(store, f"lease-{turn}", str(number), patience_s=60, sleep=_give_up)
    except InterruptedError:
        return False
    return lease.token == 0


RACES = {"create": _create, "swap": _swap, "seal": _seal, "lease": _lease}
