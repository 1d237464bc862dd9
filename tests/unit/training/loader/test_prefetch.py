"""The thread that prepares batches: in order, within its bound, and gone when it is not needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from training.loader.loaders import MOST_CHUNKS, Chunk, Prefetcher

WAIT_S = 10.0


class Counted:
    """Chunks of given sizes; says how many bytes exist that were not handed over and done with."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.made = 0
        self.stalled = threading.Condition()

    def chunks(self) -> Iterator[Chunk]:
        for size in self.sizes:
            with self.stalled:
                self.made += 1
                self.stalled.notify_all()
            yield [size], size

    def wait_for(self, made: int) -> None:
        with self.stalled:
            assert self.stalled.wait_for(lambda: self.made >= made, WAIT_S), f"{self.made} of {made}"


def test_chunks_come_in_order_and_end() -> None:
    ahead = Prefetcher(Counted([1, 2, 3]).chunks(), 100)
    assert [ahead.next() for _ in range(3)] == [[1], [2], [3]]
    for _ in range(2):
        with pytest.raises(StopIteration):
            ahead.next()


@pytest.mark.parametrize(("most", "alive"), [(30, 3), (39, 3), (10, 1), (5, 1), (20, 2)])
def test_what_is_prepared_and_handed_over_stays_within_the_bound(most: int, alive: int) -> None:
    counted = Counted([10] * 20)
    ahead = Prefetcher(counted.chunks(), most)
    for taken in range(1, 10):
        # While chunk `taken` is worked on, that one and those prepared are alive, no more.
        ahead.next()
        counted.wait_for(taken - 1 + alive)
        assert ahead._shared.held_bytes <= max(most, 10)
        assert counted.made <= taken - 1 + alive
    ahead.close()
    assert counted.made < 20


def test_of_small_chunks_no_more_than_a_few_are_prepared() -> None:
    counted = Counted([1] * 1000)
    ahead = Prefetcher(counted.chunks(), 10**6)
    for taken in range(1, 5):
        ahead.next()
        counted.wait_for(taken + MOST_CHUNKS)
        assert counted.made <= taken + MOST_CHUNKS
    ahead.close()


def test_an_error_keeps_its_class_and_its_place() -> None:
    def chunks() -> Iterator[Chunk]:
        yield [1], 1
        raise MemoryError("no more")

    ahead = Prefetcher(chunks(), 10)
    assert ahead.next() == [1]
    for _ in range(2):
        with pytest.raises(MemoryError, match="no more"):
            ahead.next()


def test_closing_ends_a_thread_that_waits_for_room() -> None:
    counted = Counted([10] * 5)
    ahead = Prefetcher(counted.chunks(), 10)
    counted.wait_for(1)
    ahead.close()
    assert not ahead._thread.is_alive()


def test_nobody_left_to_take_ends_the_thread() -> None:
    counted = Counted([10] * 5)
    ahead = Prefetcher(counted.chunks(), 10)
    counted.wait_for(1)
    thread = ahead._thread
    del ahead
    thread.join(WAIT_S)
    assert not thread.is_alive()
