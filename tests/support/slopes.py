"""How work grows with its input, counted and not timed: the lines of Python that a call executes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def lines_executed(work: Callable[[], Any]) -> int:
    """How many lines `work()` executes, in whatever module; each turn of a loop within a line counts.

    Not bytecode operations: from Python 3.12 on, `sys.settrace` leaves out those of code that runs for the first time.
    """
    count = 0

    def trace(_frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def grows_linearly(make: Callable[[int], Callable[[], Any]]) -> bool:
    """Whether four times the input takes about four times the lines, where the square would take sixteen."""
    few, many = lines_executed(make(64)), lines_executed(make(256))
    assert few > 64, "it looks at every part"
    return many < 6 * few
