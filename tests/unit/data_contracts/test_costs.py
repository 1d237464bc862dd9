"""Quantities add up, and the shares of a time that is cut add up to the whole, to the last byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from data_contracts.costs import NOTHING, Resources

COUNT = st.integers(0, 10**15)


@given(COUNT, st.one_of(st.none(), COUNT), st.lists(st.integers(0, 10**12), min_size=1, max_size=8))
def test_shares_that_tile_a_time_add_up(count: int, known: int | None, lengths: list[int]) -> None:
    length = sum(lengths)
    if not length:
        return
    whole = Resources(put_requests=count, get_requests=1, written_bytes=count + 1, read_bytes=3, millijoules=known)
    at, parts = 0, []
    for each in lengths:
        parts.append(whole.part(at, at + each, length))
        at += each
    assert sum(parts, NOTHING) == whole


def test_what_is_unknown_is_not_nothing() -> None:
    assert (NOTHING + NOTHING).millijoules is None
    assert (NOTHING + Resources(millijoules=0)).millijoules == 0
    assert (Resources(millijoules=5) - NOTHING).millijoules == 5
    assert (NOTHING - Resources(put_requests=1)).put_requests == 0
    assert NOTHING.to_json() == {}
