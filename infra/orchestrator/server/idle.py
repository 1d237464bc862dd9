"""What a server does while nobody asks: half of what Prefect's server does by default.

Prefect keeps its background tasks in a queue, made for a Redis that many servers share; here it is in memory. Prefect
looks into the queue a dozen times per second, and tells it every two seconds which tasks this server knows. A task that
is due at once wakes the server in any case. A team's server may share its queue with others, and keeps Prefect's pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import time
from datetime import timedelta
from types import FrameType
from typing import Any

import uvicorn

# How late a task may be that is not due at once, such as the search for new schedules every 5 s.
LOOKS_EVERY = timedelta(seconds=1)
# Tasks at once: all are taken at one look, and Prefect has 10 where it looks four times per second.
TASKS_AT_ONCE = 40
# For other servers, of which there are none.
TELLS_EVERY = timedelta(seconds=60)
# Searches that Prefect makes every 5 s, for what may wait: late flow runs, pauses that have expired, and orders to
# workers that nobody confirmed.
UNHURRIED = ("monitor_late_runs", "monitor_expired_pauses", "reconcile_cleanup_delivery")
SEARCHES_EVERY = timedelta(seconds=15)


def do_less_when_idle() -> None:
    """Let the background tasks of the Prefect server that this process becomes rest while none is due."""
    from burner_redis import PubSub  # type: ignore[import-untyped]
    from docket import Perpetual
    from docket.dependencies import get_single_dependency_parameter_of_type
    from prefect.server.api import background_workers, server
    from prefect.server.services.perpetual_services import get_perpetual_services

    patched: Any = background_workers
    patched.Worker = functools.partial(
        patched.Worker,
        concurrency=TASKS_AT_ONCE,
        minimum_check_interval=LOOKS_EVERY,
        scheduling_resolution=LOOKS_EVERY,
    )
    patched = server
    patched.Docket = functools.partial(patched.Docket, heartbeat_interval=TELLS_EVERY)
    assert hasattr(PubSub, "_queue_get"), "burner_redis has another name for what this replaces"
    PubSub._queue_get = next_message
    for service in get_perpetual_services():
        perpetual = get_single_dependency_parameter_of_type(service.function, Perpetual)
        if perpetual is not None and service.function.__name__ in UNHURRIED:
            perpetual.every = SEARCHES_EVERY


async def next_message(self: Any, timeout: float | None) -> Any:
    """The next message to a subscriber of the queue, in place of a thread that asks ten times per second.

    Prefect's only subscriber waits for the names of tasks to cancel, and Prefect cancels none.

    Args:
        timeout: seconds after which the answer is None, rounded up to whole looks; None waits for ever.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            if end is not None and time.monotonic() >= end:
                return None
        await asyncio.sleep(LOOKS_EVERY.total_seconds())


class Server(uvicorn.Server):
    """A server of HTTP that looks once per second, in place of ten times, whether it should end; a signal wakes it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._signalled = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Serve until the server should end."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # 0 is a tick at which the time in the answers' headers is renewed
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signalled.wait(), LOOKS_EVERY.total_seconds())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at once, and not only when the loop looks next."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._signalled.set)
