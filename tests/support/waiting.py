"""Waiting for what a process of a test does, and the ports on which it listens."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 480.0


def until(wanted: Callable[[], Any], timeout_s: float = PATIENCE_S, what: Callable[[], Any] = lambda: "") -> Any:
    """The first true answer. Looking takes at most a tenth of the time, which a server needs for what is waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if answer := wanted():
            return answer
        now = time.monotonic()
        assert now < deadline, what()
        time.sleep(min(max(0.05, 10 * (now - began)), 0.5))


def free_port() -> int:
    """A port of loopback that nothing listens on now, and that neither our servers nor connections are given."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def listens(port: int) -> bool:
    """Whether something listens on a port of loopback."""
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0
