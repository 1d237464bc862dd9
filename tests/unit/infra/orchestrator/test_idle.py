"""A server rests while nobody asks; what wakes it does so at once."""

from __future__ import annotations

import asyncio
import queue
import signal
from datetime import timedelta
from types import SimpleNamespace

import pytest
import uvicorn

from infra.orchestrator import serve


@pytest.mark.parametrize("timeout", [None, 0.0, 0.1])
def test_a_message_that_is_there_is_the_next(timeout: float | None) -> None:
    subscriber = SimpleNamespace(_queue=queue.Queue())
    subscriber._queue.put("first")
    subscriber._queue.put("second")
    assert [asyncio.run(serve.next_message(subscriber, timeout)) for _ in range(2)] == ["first", "second"]


@pytest.mark.parametrize("timeout", [0.0, 0.1])
def test_without_a_message_the_answer_is_none(timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LOOKS_EVERY", timedelta(milliseconds=1))
    assert asyncio.run(serve.next_message(SimpleNamespace(_queue=queue.Queue()), timeout)) is None


def test_who_waits_for_ever_gets_a_message_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LOOKS_EVERY", timedelta(milliseconds=1))
    subscriber = SimpleNamespace(_queue=queue.Queue())

    async def both() -> object:
        waiting = asyncio.create_task(serve.next_message(subscriber, None))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        subscriber._queue.put("late")
        return await waiting

    assert asyncio.run(both()) == "late"


def test_a_signal_ends_a_server_that_would_look_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LOOKS_EVERY", timedelta(hours=1))
    server = serve.Server(uvicorn.Config(lambda: None))

    async def end() -> None:
        serving = asyncio.create_task(server.main_loop())
        await asyncio.sleep(0)
        assert not serving.done()
        server.handle_exit(signal.SIGTERM, None)
        await asyncio.wait_for(serving, 30)

    asyncio.run(end())
    assert server.should_exit


def test_a_signal_before_the_server_serves_ends_it() -> None:
    server = serve.Server(uvicorn.Config(lambda: None))
    server.handle_exit(signal.SIGTERM, None)
    asyncio.run(asyncio.wait_for(server.main_loop(), 30))
    assert server.should_exit
