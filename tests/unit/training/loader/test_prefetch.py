"""The thread that prepares batches: in order, within its bound, and gone when it is not needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from training.loader.loaders import Prefetcher

WAIT_S = 180.0


class Counted:
    """Ten chunks, the last of which fails; `made` counts those that exist."""

    def __init__(self) -> None:
        self.made = 0
        self.changed = threading.Condition()

    def chunks(self) -> Iterator[list[Any]]:
        for number in range(10):
            with self.changed:
                self.made += 1
                self.changed.notify_all()
            if number == 9:
                raise MemoryError("no more")
            yield [number]


@pytest.mark.parametrize("depth", [1, 3, 16])
def test_so_many_chunks_are_ahead_in_order_and_an_error_keeps_its_place(depth: int) -> None:
    counted = Counted()
    ahead = Prefetcher(counted.chunks(), depth)
    for number in range(9):
        most = min(10, number + depth)
        with counted.changed:
            assert counted.changed.wait_for(lambda most=most: counted.made >= most, WAIT_S)
        assert counted.made == most
        assert ahead.next() == [number]
    for _ in range(2):
        with pytest.raises(MemoryError, match="no more"):
            ahead.next()
    ahead.close()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "forgotten"])
def test_the_thread_ends(closed: bool) -> None:
    earlier = set(threading.enumerate())
    ahead = Prefetcher(Counted().chunks(), 2)
    ahead.next()
    [thread] = [one for one in threading.enumerate() if one.name == "loader_0" and one not in earlier]
    if closed:
        ahead.close()
        assert not thread.is_alive()
    del ahead
    thread.join(WAIT_S)
    assert not thread.is_alive()
