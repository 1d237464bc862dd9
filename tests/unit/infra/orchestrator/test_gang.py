"""Nodes as flow runs, with a server that answers as it is told. (With a real one: tests/integration/test_pool.py.)"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.states import Cancelled, Completed, Running, Scheduled, State

from data_contracts.errors import StorageUnavailable, UsageError
from infra.orchestrator import gang as module
from infra.orchestrator.gang import PoolGang, PoolNode, WorkPool
from infra.store import Store, layout
from tests.support.pool import until

TRAINING = "trainings/k-0"
POOL = WorkPool("gpu", "train", ("team:vision",), {"team": "vision"}, 1.0)


class Server:
    """The runs that it was asked for, by idempotency key, and their states."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.away = False

    def run_deployment(self, deployment: Any, *, idempotency_key: str, flow_run_name: str, **asked: Any) -> Any:
        if self.away:
            raise httpx.ConnectError("refused")
        self.asked.append({"key": idempotency_key, **asked})
        made = SimpleNamespace(id=uuid4(), name=flow_run_name, state=Scheduled())
        return self.runs.setdefault(idempotency_key, made)

    def read_flow_runs(self, flow_run_filter: Any, offset: int = 0) -> list[Any]:
        return [SimpleNamespace(id=run.id, state=run.state) for run in self.runs.values()][offset:]

    def set_flow_run_state(self, run_id: Any, state: State) -> None:
        (run,) = [run for run in self.runs.values() if run.id == run_id]
        run.state = Cancelled() if run.state.is_scheduled() else state

    def read_logs(self, chosen: Any, limit: int, sort: Any) -> list[Any]:
        return [SimpleNamespace(message="second"), SimpleNamespace(message="first")]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    import prefect.deployments

    server = Server()

    @contextlib.contextmanager
    def asking(retries: int = 0) -> Iterator[Any]:
        if server.away:
            raise httpx.ConnectError("refused")
        yield server

    monkeypatch.setattr(module, "asking", asking)
    monkeypatch.setattr(module, "ASK_S", 0.01)
    monkeypatch.setattr(prefect.deployments, "run_deployment", server.run_deployment)
    return server


class Clock:
    """Time as the gang has it: it passes while the gang sleeps, and then what was set for that time happens."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.set: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():  # such as the one that looks for planned stops
            return time.sleep(seconds)
        self.now += seconds
        for at, call in [one for one in self.set if one[0] <= self.now]:
            self.set.remove((at, call))
            call()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def gang(server: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> PoolGang:
    monkeypatch.delenv("TRAINWRIGHT_APPROVED", raising=False)
    from prefect.context import FlowRunContext

    monkeypatch.setattr(FlowRunContext, "get", classmethod(lambda cls: SimpleNamespace(flow_run=None)))
    store.storage_options = {"key": "env:KEY"}  # type: ignore[misc]
    gang = PoolGang(store, TRAINING, POOL)
    gang._deployment = uuid4()
    return gang


def state_of(server: Server, state: State, node: PoolNode, gang: PoolGang) -> None:
    """Let the server say so of the only run, and wait until it is known here."""
    (run,) = server.runs.values()
    run.state = state
    until(lambda: gang._watch.state(run.id).type == state.type)


def say_last_word(store: Store) -> None:
    store.create_json(layout.node_exit(TRAINING, 0, 0), {"status": "done"})


def test_a_node_elsewhere_is_told_which_database_its_store_may_connect_to(gang: PoolGang, server: Server) -> None:
    gang.store.pointers = "postgresql://tw:env:NAMES@db/names"
    gang.start(0, 0)
    (asked,) = server.asked
    assert asked["job_variables"]["env"] == {
        "TRAINWRIGHT_STORE_OPTIONS": '{"key": "env:KEY"}',
        "TRAINWRIGHT_APPROVED": json.dumps(
            {"https://s3.amazonaws.com": ["env:KEY"], gang.store.pointers: ["env:NAMES", "env:PGPASSWORD"]}
        ),
        "TRAINWRIGHT_STORE_POINTERS": "postgresql://tw:env:NAMES@db/names",
    }


@pytest.mark.parametrize("knows", [True, False])
def test_devices_are_asked_for_where_the_pools_template_knows_them(
    knows: bool, gang: PoolGang, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"env": {}, "gpus": {}} if knows else {"env": {}}
    pool = SimpleNamespace(type="kubernetes", base_job_template={"variables": {"properties": properties}})
    monkeypatch.setattr(server, "read_work_pool", lambda name: pool, raising=False)
    monkeypatch.setattr(module, "ensure_node_deployment", lambda client, name, kind: uuid4())
    gang._deployment, gang.pool = None, replace(POOL, devices=8)
    node = gang.start(0, 0)
    assert server.asked[0]["job_variables"].get("gpus") == (8 if knows else None)
    say_last_word(gang.store)
    node.kill()


def test_an_old_run_that_ended_is_never_taken_for_a_new_one(gang: PoolGang, server: Server) -> None:
    first = gang.start(0, 0)
    (run,) = server.runs.values()
    run.state = Completed()
    second = gang.start(0, 0)
    assert second._run.id != run.id
    assert [asked["key"].rpartition("/g0/")[2] for asked in server.asked] == ["0", "0", "0/1"]
    again = gang.start(0, 0)
    assert again._run.id == second._run.id, "the same question again is the same run"
    say_last_word(gang.store)
    for node in (first, second, again):
        node.kill()


def test_releasing_waits_for_the_last_word_and_cancels_nothing(gang: PoolGang, server: Server, clock: Clock) -> None:
    node = gang.start(0, 0)
    state_of(server, Running(), node, gang)
    began = clock.now
    clock.set.append((began + 1.5, lambda: say_last_word(gang.store)))
    node.kill()
    assert 1.5 <= clock.now - began < 1.7
    (run,) = server.runs.values()
    assert run.state.is_running()


def test_a_run_that_has_not_begun_is_cancelled_at_once(
    gang: PoolGang, server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_S", 60.0)  # the thread that asks, too, may be late with an older answer
    node = gang.start(0, 0)
    began = clock.now
    node.kill()
    assert clock.now - began < 0.3
    (run,) = server.runs.values()
    assert run.state.is_cancelled()


def test_who_never_answers_is_cancelled_and_left(
    gang: PoolGang, server: Server, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    node = gang.start(0, 0)
    state_of(server, Running(), node, gang)
    (run,) = server.runs.values()
    began, states = clock.now, []
    clock.set += [(began + after, lambda: states.append(run.state.is_cancelling())) for after in (1.9, 2.3)]
    node.kill()
    assert 8 < clock.now - began < 8.3
    assert states == [False, True]
    assert "the node did not report that it ended; its token is void" in caplog.text


def test_nodes_are_waited_for_side_by_side(gang: PoolGang, server: Server, clock: Clock) -> None:
    nodes = [gang.start(0, number) for number in range(3)]
    for run in server.runs.values():
        run.state = Running()
    gang._watch.look()
    began = clock.now
    for node in nodes:
        node.kill()
    assert 8 < clock.now - began < 8.6, "one deadline for all"
    # Those that are released later have one of their own.
    clock.now += 10
    late = gang.start(0, 3)
    list(server.runs.values())[-1].state = Running()
    gang._watch.look()
    began = clock.now
    late.kill()
    assert 8 < clock.now - began < 8.3


def test_a_server_that_is_away_is_no_bug(gang: PoolGang, server: Server) -> None:
    server.away = True
    with pytest.raises(StorageUnavailable, match="The Prefect server no longer answers"):
        gang.start(0, 0)


def test_without_a_flow_there_is_no_pool(store: Store) -> None:
    with pytest.raises(UsageError, match="train.launcher: a work pool needs Prefect") as caught:
        PoolGang(store, TRAINING, POOL)
    assert "--set train.launcher=local --set train.pool=null" in caught.value.remedy
