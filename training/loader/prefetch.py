"""A thread that prepares batches while the step computes, within a memory bound."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

Chunk = tuple[list[Any], int]
MOST_CHUNKS = 16


class Prefetcher:
    """Iterates over chunks (batches and their bytes) in a thread of its own.

    Prepared chunks and the chunk being handed over take at most `most_bytes` together, or one chunk if that is more. At
    most MOST_CHUNKS are prepared, because small chunks would be thousands. The thread ends with `close`, with the
    iterator, or when nothing references this object any more.
    """

    def __init__(self, chunks: Iterator[Chunk], most_bytes: int) -> None:
        self._shared = _Shared(most_bytes)
        self._thread = threading.Thread(target=_prepare, args=(chunks, self._shared), name="loader", daemon=True)
        self._thread.start()

    def next(self) -> list[Any]:
        """The next chunk's batches; the caller is done with the previous chunk. Raises what preparing the chunk raised.

        StopIteration at the end of the iterator.
        """
        shared = self._shared
        with shared.condition:
            shared.held_bytes -= shared.handed_bytes
            shared.handed_bytes = 0
            shared.condition.notify()
            while not shared.ready:
                shared.condition.wait()
            chunk = shared.ready[0]
            if isinstance(chunk, BaseException):
                raise chunk
            shared.ready.popleft()
            shared.handed_bytes = chunk[1]
            return chunk[0]

    def close(self) -> None:
        """End the thread and wait until it has ended."""
        with self._shared.condition:
            self._shared.closed = True
            self._shared.condition.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __del__(self) -> None:
        with self._shared.condition:
            self._shared.closed = True
            self._shared.condition.notify()


class _Shared:
    """What both threads see. The thread holds only this, so that it does not keep its owner alive."""

    def __init__(self, most_bytes: int) -> None:
        self.condition = threading.Condition()
        self.ready: deque[Chunk | BaseException] = deque()
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self.handed_bytes = 0
        self.closed = False

    def is_full(self, num_bytes: int) -> bool:
        """Whether there is no room for another chunk of `num_bytes`."""
        return len(self.ready) >= MOST_CHUNKS or bool(self.held_bytes and self.held_bytes + num_bytes > self.most_bytes)


def _prepare(chunks: Iterator[Chunk], shared: _Shared) -> None:
    try:
        for chunk in chunks:
            with shared.condition:
                shared.ready.append(chunk)
                shared.held_bytes += chunk[1]
                shared.condition.notify()
                # The next chunk is assumed to be as large as this one.
                while not shared.closed and shared.is_full(chunk[1]):
                    shared.condition.wait()
                if shared.closed:
                    return
    except BaseException as error:  # raised again in `next`
        end: BaseException = error
    else:
        end = StopIteration()
    with shared.condition:
        shared.ready.append(end)
        shared.condition.notify()
