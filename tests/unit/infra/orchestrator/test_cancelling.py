"""A cancel in Prefect ends a run that a command carries out itself; a worker signals its runs, unless it is dead."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.context import FlowRunContext
from prefect.states import Cancelling, Running

from infra.orchestrator import flow_runs
from infra.orchestrator.flow_runs import cancellable
from tests.support.pool import until


class Server:
    """Away at first, then it says Running, then Cancelling."""

    def __init__(self) -> None:
        self.answers: list[Any] = [None, Running(), Cancelling()]
        self.asked = self.clients = 0

    @contextlib.contextmanager
    def asking(self) -> Iterator[Any]:
        self.clients += 1
        yield self

    def read_flow_run(self, run_id: Any) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise httpx.ConnectError("refused")
        return SimpleNamespace(state=answer)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(flow_runs, "asking", server.asking)
    monkeypatch.setattr(flow_runs, "ASK_S", 0.01)
    monkeypatch.delenv("PREFECT__FLOW_RUN_ID", raising=False)
    context = SimpleNamespace(flow_run=SimpleNamespace(id=uuid4()))
    monkeypatch.setattr(FlowRunContext, "get", classmethod(lambda cls: context))
    return server


@pytest.mark.parametrize("where", ["in a terminal", "in a script's background job", "under a worker that is dead"])
def test_a_cancel_in_prefect_is_a_ctrl_c_here(where: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "in a script's background job":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if where == "under a worker that is dead":
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid4()))
        monkeypatch.setattr(flow_runs, "ORPHAN_ASK_S", 0.01)
        monkeypatch.setattr(flow_runs, "ORPHAN_GRACE_S", 0.01)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), cancellable():
        time.sleep(300)
    assert len(server.answers) == 1
    assert (server.asked, server.clients) == (3, 2), "to make a client costs more than to ask"


def test_nothing_is_asked_any_more_once_it_is_over(server: Server) -> None:
    server.answers, before = [Running()], set(threading.enumerate())
    with cancellable():
        time.sleep(0.05)
        (watcher,) = set(threading.enumerate()) - before
    watcher.join(60)
    assert not watcher.is_alive()


def test_what_a_worker_carries_out_is_left_to_the_worker(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid4()))
    monkeypatch.setattr(flow_runs, "ORPHAN_ASK_S", 0.01)
    server.answers = [Cancelling()]
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    with cancellable():
        until(lambda: server.asked)
    assert signals == [], "it comes from the worker"


def test_outside_of_a_flow_there_is_nothing_to_cancel(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowRunContext, "get", classmethod(lambda cls: None))
    server.answers = [Cancelling()]
    with cancellable():
        time.sleep(0.1)
    assert server.asked == 0
