"""Processes that race for one name in a store; used by the tests of create-once and compare-and-set."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import Mock

from infra.store import Lease, PointerMoved, open_store

RACERS = 8


def race(kinds: Sequence[str], uri: str, options: Mapping[str, Any], rounds: int) -> dict[str, list[int]]:
    """How many of 8 processes won, by kind and round. Kinds: `create`, `swap`, `seal`, `lease`."""
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    starter = spawn.Process(target=_start, args=(tuple(kinds), uri, options, rounds, answers))
    starter.start()
    try:
        won = [answers.get(timeout=500) for _ in range(RACERS)]
        starter.join()
    finally:
        starter.kill()
    return {kind: [sum(racer[kind][turn] for racer in won) for turn in range(rounds)] for kind in kinds}


def _start(kinds: Sequence[str], uri: str, options: Mapping[str, Any], rounds: int, answers: Any) -> None:
    """Fork the racers from a process that has imported what they need and has opened nothing."""
    if uri.startswith("s3://"):
        importlib.import_module("s3fs")
    fork = multiprocessing.get_context("fork")
    arguments = (kinds, uri, options, rounds, fork.Barrier(RACERS), answers)
    racers = [fork.Process(target=_racer, args=(number, *arguments), daemon=True) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()


def _racer(
    number: int, kinds: Sequence[str], uri: str, options: Mapping[str, Any], rounds: int, barrier: Any, answers: Any
) -> None:
    barrier.wait(300)  # until all have started
    store = open_store(uri, options)
    answers.put({kind: [RACES[kind](store, turn, number, barrier) for turn in range(rounds)] for kind in kinds})


def _create(store: Any, turn: int, number: int, barrier: Any) -> bool:
    barrier.wait(300)
    data = str(number).encode() * 1000
    return store.create_once(f"race/{turn}", data) and store.read(f"race/{turn}") == data


def _swap(store: Any, turn: int, number: int, barrier: Any) -> bool:
    pointer = store.pointer("pointer")
    barrier.wait(300)
    before = pointer.read()
    barrier.wait(300)
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
    barrier.wait(300)
    ref = writer.seal("dataset", {}, {"by": number}, [entry])
    manifest = store.verify(ref)
    return manifest.provenance == {"by": number}


def _lease(store: Any, turn: int, number: int, barrier: Any) -> bool:
    barrier.wait(300)
    try:
        lease = Lease.take(store, f"lease-{turn}", str(number), patience_s=60, sleep=Mock(side_effect=InterruptedError))
    except InterruptedError:
        return False
    return lease.token == 0


RACES = {"create": _create, "swap": _swap, "seal": _seal, "lease": _lease}
