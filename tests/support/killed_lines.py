"""Kills work at each line of some modules in turn, in a process of its own each time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import pytest

from tests.support.speed.huge_pages import collapse


def killed_at(line_event: int, work: Callable[[], None], modules: tuple[ModuleType, ...]) -> bool:
    """Whether `work`, in a process of its own, was killed at its n-th line in `modules` (else it was done before)."""
    files = {module.__file__ for module in modules}
    child = os.fork()
    if child == 0:
        count = 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal count
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                count += 1
                if count == line_event:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


def sweep(work: Callable[[], None], check: Callable[[bool], None], *modules: ModuleType, step: int = 1) -> int:
    """Kill `work` at each of its lines in turn; how many there are. `check` is told whether it was killed."""
    collapse()  # a fork for each line, of a process that has imported what all tests need
    line_event = 1 - step
    while True:
        line_event += step
        was_killed = killed_at(line_event, work, modules)
        check(was_killed)
        if not was_killed:
            return line_event - 1


def every(coarse: int) -> pytest.MarkDecorator:
    """A sweep that kills at every line when it may be slow, else at each of so many."""
    return pytest.mark.parametrize("step", [coarse, pytest.param(1, marks=pytest.mark.slow)])
