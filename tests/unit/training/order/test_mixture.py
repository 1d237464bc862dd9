"""A mixture: the weights hold in every thousand, each kind comes whole in each of its passes, from any place on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.order import ROUND, Mixture, turns


@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0.05, 1)), min_size=1, max_size=5),
    st.integers(0, 3000),
    st.integers(1, 3000),
)
@settings(max_examples=40, deadline=None)
def test_each_kind_comes_whole_in_its_own_passes_wherever_it_is_asked(kinds, first, count) -> None:
    ends = np.cumsum([0, *(rows for rows, _ in kinds)])
    rows = {str(at): np.arange(ends[at], ends[at + 1]) for at in range(len(kinds))}
    weights = {str(at): weight for at, (_, weight) in enumerate(kinds)}
    whole = Mixture(rows, weights, 0, "d", 1)(np.arange(first + count))
    assert np.array_equal(Mixture(rows, weights, first, "d", 1)(np.arange(count)), whole[first:])
    for name, own in rows.items():
        taken = whole[np.isin(whole, own)]
        for at in range(0, len(taken), len(own)):
            one = taken[at : at + len(own)]
            assert len(set(one.tolist())) == len(one), f"kind {name}, pass {at // len(own)}"


def test_the_weights_hold_in_every_round() -> None:
    rows = {"a": np.arange(10), "b": np.arange(10, 30), "c": np.arange(30, 700)}
    order = Mixture(rows, {"a": 6, "b": 3, "c": 1}, 0, "d")(np.arange(5 * ROUND)).reshape(5, ROUND)
    shares = [[np.isin(one, own).mean() for own in rows.values()] for one in order]
    assert shares == [[0.6, 0.3, 0.1]] * 5
    # Mixed, not one kind after the other: in any hundred there are some of each.
    assert all(np.isin(part, own).any() for part in order[0].reshape(10, -1) for own in rows.values())
    turns_of_a = np.isin(order, rows["a"])
    assert not np.array_equal(turns_of_a[0], turns_of_a[1]), "drawn anew for each round"


def test_the_order_of_the_names_decides_nothing() -> None:
    rows = {"a": np.arange(5), "b": np.arange(5, 9)}
    backwards = {"b": rows["b"], "a": rows["a"]}
    at = np.arange(50)
    assert np.array_equal(Mixture(rows, {"a": 1, "b": 2}, 0, "d")(at), Mixture(backwards, {"b": 2, "a": 1}, 0, "d")(at))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1], [1000]),
        ([1, 1, 1], [334, 333, 333]),
        ([0.7, 0.3], [700, 300]),
        ([0.6002, 0.3998], [600, 400]),
        ([1] * 17, [59] * 14 + [58] * 3),
        # Equal remainders go to the first of them; a sort that is not stable gives one to a later weight.
        (
            [2, 2, 1, 1, 3, 3, 2, 2, 1, 2, 3, 1, 2, 2, 3, 1, 2],
            [61, 61, 30, 30, 91, 91, 61, 61, 30, 61, 91, 30, 61, 60, 91, 30, 60],
        ),
        ([999, 1], [999, 1]),
        ([99_999, 1], [999, 1]),
    ],
)
def test_weights_become_turns(weights: list[float], expected: list[int]) -> None:
    assert turns(weights).tolist() == expected


@pytest.mark.parametrize("weights", [[0.9996, 0.0002, 0.0002], [0.9996, *[0.0001] * 4], [1, *[1e-9] * 999]])
def test_many_tiny_weights_take_their_turns_from_the_largest(weights: list[float]) -> None:
    found = turns(weights)
    assert (found.sum(), found.min(), len(found)) == (ROUND, 1, len(weights))


def test_the_order_is_the_same_in_every_version() -> None:
    rows = {"a": np.arange(10), "b": np.arange(10, 30)}
    order = Mixture(rows, {"a": 1, "b": 2}, 0, "d")(np.arange(24)).tolist()
    assert order == [0, 13, 28, 9, 19, 3, 21, 22, 14, 27, 16, 11, 12, 25, 4, 15, 18, 20, 24, 29, 26, 8, 10, 23]
