"""Processes that divide a list handle each item once, and know its position."""

from __future__ import annotations

import pytest

from infra.store.store import WHOLE, Share

ITEMS = list(range(7))


@pytest.mark.parametrize("processes", [1, 2, 3, 9])
def test_processes_divide_a_list_and_know_the_positions(processes: int) -> None:
    shares = [Share(number, processes) for number in range(processes)] if processes > 1 else [WHOLE]
    assert sorted(item for share in shares for item in share.items(ITEMS)) == ITEMS
    for share in shares:
        own = share.items(ITEMS)
        assert [share.position(done) for done in range(len(own))] == own
        assert share.position(len(own)) >= len(ITEMS), "after its last item"
