"""What a process used is counted once: each part of it is taken by one payer, also while other threads add to it."""

from __future__ import annotations

from data_contracts.costs import NOTHING, Resources
from infra.processes.this_process import Counters


def test_each_quantity_is_taken_once() -> None:
    counters = Counters()
    counters.put(10)
    counters.get(7)
    counters.received(3)
    assert counters.take() == Resources(put_requests=1, get_requests=1, written_bytes=10, read_bytes=10)
    assert counters.take() == NOTHING
    counters.add(Resources(read_bytes=5, millijoules=8))
    assert counters.take() == Resources(read_bytes=5, millijoules=8)
    counters.add(Resources(millijoules=2))
    assert counters.take().millijoules == 2
    assert counters.total().millijoules == 10
