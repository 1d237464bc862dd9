"""Reads ahead: the next batches are decoded in a thread of their own while the one before is worked on."""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
_AHEAD = 2


def read_ahead(items: Iterable[T]) -> Generator[T]:
    """The same items, of which two are made before they are needed; raises what making them raises, in its place.

    When this iterator is closed, no further item is made, and the thread has ended.
    """
    waiting: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(item: tuple[T] | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=0.1)
                return

    def make() -> None:
        try:
            for item in items:
                put((item,))
                if stopped.is_set():
                    break
            put(None)
        except BaseException as error:  # raised again where it is expected
            put(error)
        finally:
            if hasattr(items, "close"):  # a generator, and the files that it has open
                items.close()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(make,), name="read-ahead", daemon=True)
    thread.start()
    try:
        while (made := waiting.get()) is not None:
            if isinstance(made, BaseException):
                raise made
            yield made[0]
    finally:
        stopped.set()
        thread.join()
