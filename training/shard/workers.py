"""Does pieces of work in this process or in others; either way the results come in the order of the pieces.

Processes of this machine end when this one is gone, and they carry its mark, so that the code that ends this process
finds them. They are forked from a server that has imported what they need, and share its memory.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from data_contracts.errors import NodeLost, OutOfMemory
from infra.pieces import Cluster, in_order
from infra.processes.processes import die_with_parent, oom_kills
from infra.processes.without_pandas import without_pandas

MOST_BY_DEFAULT = 4
# Arrow's allocator gives memory back 10 ms after it was freed, and glibc what lies at its heap's end. The next rows
# need it at once, and then each page costs a fault, 5 to 10 µs in a virtual machine.
_KEEP_MEMORY = {
    "MIMALLOC_PURGE_DELAY": "-1",
    "MALLOC_MMAP_THRESHOLD_": str(2**23),
    "MALLOC_TRIM_THRESHOLD_": str(2**25),
}

A = TypeVar("A")
B = TypeVar("B")


class Workers:
    """Up to `count` processes, started when there is work for two; a context that ends them.

    Args:
        preload: modules that every process needs.
        pandas: whether Arrow may import pandas, see `infra.processes.without_pandas`.
        elsewhere: does the work on other machines instead, `count` pieces at once.
    """

    def __init__(
        self, count: int, preload: Sequence[str] = (), elsewhere: Cluster | None = None, *, pandas: bool = True
    ) -> None:
        self.count, self._preload, self._elsewhere, self._pandas = count, list(preload), elsewhere, pandas
        self._pool: ProcessPoolExecutor | None = None
        self._oom_kills = oom_kills()

    @property
    def sharing(self) -> int:
        """How many processes share one machine's memory and its limit."""
        return 1 if self._elsewhere is not None else self.count

    def map(
        self, work: Callable[[A], B], items: Iterable[A], most: int | None = None, together: int = 1
    ) -> Iterator[B]:
        """`work` of each item, at most `most` at once; it is pickled unless this process does all of it.

        Elsewhere, where handing over a piece of work costs more, `together` items make one piece.

        Raises the first item's error first, even if another process failed earlier; OutOfMemory or NodeLost if a
        process was killed.
        """
        most = min(self.count, most or self.count)
        if most == 1 or (isinstance(items, Sized) and len(items) < 2):
            yield from map(work, items)
            return
        if self._elsewhere is not None:
            yield from self._elsewhere.map(work, _chunks(items, together), most)
            return
        try:
            yield from in_order(self._started().submit, work, items, most)
        except BrokenProcessPool as error:
            if oom_kills() > self._oom_kills:
                raise OutOfMemory(
                    "The kernel killed a process of the shard stage because memory ran out.",
                    remedy="Lower shards.workers or shards.memory_bytes, or give the machine more memory.",
                ) from error
            raise NodeLost("A process of the shard stage was killed from outside.") from error

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """End the processes, and free the memory that their allocators hold; the next work starts new processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(self._preload)
            for name, value in _KEEP_MEMORY.items():
                os.environ.setdefault(name, value)  # for the server, which begins with this environment
            self._pool = ProcessPoolExecutor(self.count, context, _begin, (self._pandas,))
        return self._pool


def default_count() -> int:
    """As many as there are CPUs, at most four."""
    return max(1, min(MOST_BY_DEFAULT, os.cpu_count() or 1))


def _chunks(items: Iterable[A], size: int) -> Iterator[list[A]]:
    left = iter(items)
    while chunk := list(islice(left, size)):
        yield chunk


def _begin(pandas: bool) -> None:
    # The kernel ends a process with the server that forked it. The server waits for its processes, so they watch their
    # parent.
    die_with_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if not pandas:
        without_pandas()
    # One thread each: the processes already run in parallel.
    pa.set_cpu_count(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(NodeLost.exit_code)
