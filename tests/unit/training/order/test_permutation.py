"""The sample order: a true permutation that is computed anywhere, looks random, and never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_contracts.pipeline_spec import LoaderSpec
from training.order import SMALL, BlockOrder, Order, Permutation, blocks_of, epoch_order

GLOBAL = LoaderSpec()
BLOCK = LoaderSpec(shuffle="block", block_rows=3, window_blocks=2)

# Golden: a resumed training relies on the same order under a later NumPy, Numba or processor.
GOLDEN = [
    # shuffle, rows of the shards, epoch → order
    (GLOBAL, [10], 0, [3, 7, 2, 4, 5, 8, 1, 0, 6, 9]),
    (GLOBAL, [4, 6], 1, [1, 2, 7, 6, 9, 5, 3, 4, 8, 0]),
    (BLOCK, [10], 0, [2, 1, 9, 0, 5, 6, 7, 4, 3, 8]),
    (BLOCK, [4, 6], 0, [7, 9, 2, 0, 1, 8, 5, 4, 3, 6]),
    (BLOCK, [4, 6], 1, [3, 9, 7, 8, 4, 2, 0, 1, 6, 5]),
]


def whole(order: Order, num_rows: int) -> list[int]:
    return order(np.arange(num_rows)).tolist()


@pytest.mark.parametrize(("loader", "shards", "epoch", "expected"), GOLDEN)
def test_the_order_never_changes(loader: LoaderSpec, shards: list[int], epoch: int, expected: list[int]) -> None:
    assert whole(epoch_order(loader, shards, "d" * 64, 7, epoch), 10) == expected


def test_it_is_known_anywhere_in_any_number_of_rows() -> None:
    order = epoch_order(GLOBAL, [3 * 10**11], "d" * 64, 7, 0)
    assert order(np.array([0, 1, 2 * 10**11])).tolist() == [184384111755, 100281188974, 141273085636]


@pytest.mark.parametrize(
    ("num_rows", "expected"),
    [
        (SMALL - 1, [2500, 571, 1811, 427, 261]),
        (SMALL, [215, 1406, 1032, 3493, 2762]),
        (SMALL + 1, [3638, 772, 504, 3383, 2762]),
    ],
)
def test_it_never_changes_where_the_number_of_rounds_does(num_rows: int, expected: list[int]) -> None:
    assert Permutation(num_rows, "d", 0)(np.arange(5)).tolist() == expected


@given(st.integers(0, 9000), st.text(max_size=5), st.integers(0, 2**40), st.integers(0, 100))
def test_global_is_a_permutation_and_a_pure_function(num_rows, dataset_id, seed, epoch):
    order = epoch_order(GLOBAL, [num_rows], dataset_id, seed, epoch)
    rows = order(np.arange(num_rows))
    assert np.array_equal(np.sort(rows), np.arange(num_rows))
    some = np.random.RandomState(epoch).randint(0, max(1, num_rows), 20)[: num_rows or 0]
    assert np.array_equal(epoch_order(GLOBAL, [num_rows], dataset_id, seed, epoch)(some), rows[some])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=9), st.integers(1, 25), st.integers(1, 5), st.integers(0, 3))
def test_block_shuffles_within_windows_of_whole_blocks(shards, block_rows, window, epoch):
    num_rows = sum(shards)
    loader = LoaderSpec(shuffle="block", block_rows=block_rows, window_blocks=window)
    rows = epoch_order(loader, shards, "d", 1, epoch)(np.arange(num_rows))
    assert np.array_equal(np.sort(rows), np.arange(num_rows))
    starts, lengths = blocks_of(shards, block_rows)
    assert lengths.sum() == num_rows
    block = np.searchsorted(starts, rows, side="right") - 1
    at = 0
    while at < num_rows:
        # The blocks seen until as many rows have passed as they hold: a window, complete, of `window` blocks.
        stop, seen = at, set()
        while stop == at or stop - at < sum(lengths[list(seen)]):
            seen.add(int(block[stop]))
            stop += 1
        assert len(seen) <= window
        at = stop


def test_a_block_never_spans_two_shards() -> None:
    starts, lengths = blocks_of([7, 0, 5], 3)
    assert starts.tolist() == [0, 3, 6, 7, 10]
    assert lengths.tolist() == [3, 3, 1, 3, 2]


def test_by_default_a_block_is_a_shard() -> None:
    rows = whole(epoch_order(LoaderSpec(shuffle="block", window_blocks=1), [4, 4, 4], "d", 0, 0), 12)
    assert [sorted(rows[at : at + 4]) for at in (0, 4, 8)] in ([[*range(at, at + 4)] for at in p] for p in ORDERS)
    assert rows[:4] != sorted(rows[:4])


ORDERS = [(0, 4, 8), (0, 8, 4), (4, 0, 8), (4, 8, 0), (8, 0, 4), (8, 4, 0)]


@pytest.mark.parametrize(
    "order",
    [Permutation(9, "a"), BlockOrder([5, 4], 2, 2, "a")],
    ids=["global", "block"],
)
@pytest.mark.parametrize("position", [-1, 9])
def test_a_position_outside_is_an_error(order: Order, position: int) -> None:
    with pytest.raises(IndexError, match="not between 0 and 9"):
        order(np.array([position]))


def test_each_word_of_the_seed_counts() -> None:
    words = [("a", 1, 2), ("a", 2, 1), ("b", 1, 2), ("a", 1, 3), ("a", 12, 0)]
    for loader in (GLOBAL, BLOCK):
        assert len({tuple(whole(epoch_order(loader, [100], *each), 100)) for each in words}) == len(words)
    assert whole(Permutation(100, "ab", "c"), 100) != whole(Permutation(100, "a", "bc"), 100)


def test_the_next_blocks_are_those_that_the_rows_of_the_next_window_are_in() -> None:
    shard_rows, block_rows, window = [33, 0, 40, 27], 10, 3
    order = BlockOrder(shard_rows, block_rows, window, "words")
    starts, _ = blocks_of(shard_rows, block_rows)
    blocks = np.searchsorted(starts, order(np.arange(100)), side="right") - 1
    at, seen = -1, []
    while len(rows := order.next_blocks(at)):
        assert len(rows) <= window
        found = [int(block) for block in np.searchsorted(starts, rows, side="right") - 1]
        count = sum(block in found for block in blocks)
        assert set(blocks[at + 1 : at + 1 + count]) == set(found)
        at += count
        seen += found
    assert (at, sorted(seen)) == (99, list(range(len(starts))))
