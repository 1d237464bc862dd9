"""Reads and writes many small files of a store, several at once where each waits for a server or a disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from infra.store.store import Store

READERS = 16
WRITERS = 8
T = TypeVar("T")
U = TypeVar("U")


def read_several(store: Store, read: Callable[[T], U], wanted: Sequence[T]) -> list[U]:
    """The results of `read` in order; the first error cancels all reads that have not begun."""
    if store.is_local or len(wanted) < 2:
        return [read(one) for one in wanted]
    with ThreadPoolExecutor(READERS, thread_name_prefix="several") as pool:
        return list(pool.map(read, wanted))


def write_several(write: Callable[[T], object], wanted: Sequence[T]) -> None:
    """`write` each, also in a folder, where each waits for the disk; raises the first error."""
    if len(wanted) < 2:
        for one in wanted:
            write(one)
        return
    with ThreadPoolExecutor(WRITERS, thread_name_prefix="several") as pool:
        list(pool.map(write, wanted))
