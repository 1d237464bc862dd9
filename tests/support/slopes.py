"""How work grows with its input, counted and not timed: the Python operations that a call takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def operations(work: Callable[[], Any]) -> int:
    """How many bytecode operations `work()` executes, in whatever module."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def grows_linearly(make: Callable[[int], Callable[[], Any]], num: int = 64) -> bool:
    """Whether four times the input takes about four times the operations, where the square would take sixteen."""
    few, many = operations(make(num)), operations(make(4 * num))
    assert few > num, "it looks at every part"
    return many < 6 * few
