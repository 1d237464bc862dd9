"""Items that are made ahead come in order, with their error in its place, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from infra.sources import prefetch


def test_the_items_come_in_order_and_the_error_after_them() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ValueError("the sixth")

    ahead = prefetch(items())
    assert [next(ahead) for _ in range(5)] == [*range(5)]
    with pytest.raises(ValueError, match="the sixth"):
        next(ahead)
    assert list(prefetch(range(7))) == [*range(7)]


def test_whoever_stops_early_ends_the_thread_and_closes_the_items() -> None:
    made, closed = [], []

    def items() -> Iterator[int]:
        try:
            for number in range(1000):
                made.append(number)
                yield number
        finally:
            closed.append(threading.current_thread().name)

    ahead = prefetch(items())
    assert next(ahead) == 0
    ahead.close()
    assert closed == ["prefetch"]
    assert len(made) <= 5
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}
