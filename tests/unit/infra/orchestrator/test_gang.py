"""Nodes as flow runs, with a server that answers as it is told. (With a real one: tests/integration/test_pool.py.)"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.states import Cancelled, Completed, Running, Scheduled, State

from data_contracts.errors import StorageUnavailable, UsageError
from data_contracts.messages.gang import Launch
from infra.gang.membership import Placement
from infra.orchestrator import gang as module
from infra.orchestrator.gang import PoolLauncher, PoolNodes
from infra.store import Store
from tests.support.pool import until
from tests.support.refusals import refusal

TRAINING = "trainings/k-0"
POOL = Placement(section="train", pool="gpu", tags=("team:vision",), labels={"team": "vision"}, timeout_s=1.0)


class Server:
    """The runs that it was asked for, by idempotency key, and their states."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.away, self.refuses, self.most = False, "", 10**9

    def request(self, method: str, path: str, json: list[dict[str, Any]]) -> Any:
        assert (method, path.rpartition("/create_flow_run/")[2]) == ("POST", "bulk")
        assert len(json) <= 100, "Prefect's API refuses more"
        self.asked += json
        if len(self.asked) > self.most:
            raise httpx.ReadTimeout("busy")
        results = []
        for asked in json:
            made = SimpleNamespace(id=uuid4(), name=asked["name"], state=Scheduled())
            known = self.runs.setdefault(asked["idempotency_key"], made)
            results.append({"flow_run_id": None if self.refuses else str(known.id), "error": self.refuses})
        answer = SimpleNamespace(json=lambda: {"results": results})
        answer.raise_for_status = lambda: answer
        return answer

    def read_flow_runs(self, flow_run_filter: Any, offset: int = 0) -> list[Any]:
        wanted = flow_run_filter.id.any_
        return [SimpleNamespace(**vars(run)) for run in self.runs.values() if run.id in wanted][offset:]

    def set_flow_run_state(self, run_id: Any, state: State) -> None:
        (run,) = [run for run in self.runs.values() if run.id == run_id]
        run.state = Cancelled() if run.state.is_scheduled() else state

    def read_logs(self, chosen: Any, limit: int, sort: Any) -> list[Any]:
        return [SimpleNamespace(message="second"), SimpleNamespace(message="first")]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()

    @contextlib.contextmanager
    def asking(retries: int = 0, timeout_s: float = 0) -> Iterator[Any]:
        if server.away:
            raise httpx.ConnectError("refused")
        yield server

    monkeypatch.setattr(module, "asking", asking)
    monkeypatch.setattr(module, "ASK_S", 0.01)
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
def gang(server: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> PoolLauncher:
    monkeypatch.delenv("TRAINWRIGHT_APPROVED", raising=False)
    from prefect.context import FlowRunContext

    monkeypatch.setattr(FlowRunContext, "get", classmethod(lambda cls: SimpleNamespace(flow_run=None)))
    store.storage_options = {"key": "env:KEY"}  # type: ignore[misc]
    gang = PoolLauncher(store, TRAINING, POOL)
    gang._deployment = uuid4()
    return gang


def generation_of(gang: PoolLauncher) -> PoolNodes:
    """The nodes of a generation, whose hub only knows who has said how it ended."""
    hub: Any = SimpleNamespace(left=set())
    return gang(gang.store, Launch(training=TRAINING, nodes=1, devices=1), hub)


def started(gang: PoolLauncher, *nodes: int) -> PoolNodes:
    found = generation_of(gang)
    found.start(nodes or [0])
    return found


def state_of(server: Server, state: State, nodes: PoolNodes) -> None:
    """Let the server say so of the only run, and wait until it is known here."""
    (run,) = server.runs.values()
    run.state = state
    until(lambda: nodes._watch.state(run.id).type == state.type)


def test_a_node_elsewhere_is_told_which_database_its_store_may_connect_to(gang: PoolLauncher, server: Server) -> None:
    gang.store.pointers = "postgresql://tw:env:NAMES@db/names"
    started(gang)
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
    knows: bool, gang: PoolLauncher, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"env": {}, "gpus": {}} if knows else {"env": {}}
    pool = SimpleNamespace(type="kubernetes", base_job_template={"variables": {"properties": properties}})
    monkeypatch.setattr(server, "read_work_pool", lambda name: pool, raising=False)
    monkeypatch.setattr(module, "ensure_node_deployment", lambda client, name, kind: uuid4())
    gang._deployment, gang.placement = None, replace(POOL, devices=8)
    started(gang)
    assert server.asked[0]["job_variables"].get("gpus") == (8 if knows else None)


@pytest.mark.parametrize(
    ("variables", "said"),
    [({"image": "a"}, ""), ({"imag": "a"}, "has no variable of this name"), ({"env": "a"}, "It has image, gpus.")],
)
def test_job_variables_are_those_of_the_pools_template(
    variables: dict[str, Any], said: str, gang: PoolLauncher, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"env": {}, "image": {}, "gpus": {}}
    pool = SimpleNamespace(type="kubernetes", base_job_template={"variables": {"properties": properties}})
    monkeypatch.setattr(server, "read_work_pool", lambda name: pool, raising=False)
    monkeypatch.setattr(module, "ensure_node_deployment", lambda client, name, kind: uuid4())
    gang._deployment, gang.placement = None, replace(POOL, job_variables=variables, queue="urgent")
    if said:
        assert said in refusal(UsageError, started, gang)
        assert server.asked == []
        return
    started(gang)
    (asked,) = server.asked
    assert (asked["work_queue_name"], asked["job_variables"]["image"]) == ("urgent", "a")


def test_an_old_run_that_ended_is_never_taken_for_a_new_one(gang: PoolLauncher, server: Server) -> None:
    started(gang)
    (run,) = server.runs.values()
    run.state = Completed()
    second = started(gang)
    assert second.runs[0].id != run.id
    assert [asked["idempotency_key"].rpartition("/g0/")[2] for asked in server.asked] == ["0", "0", "0/1"]
    assert started(gang).runs[0].id == second.runs[0].id, "the same question again is the same run"
    second.start([0])
    assert len(server.asked) == 5, "a node that is started is not started again"


def test_releasing_waits_for_the_last_word_and_cancels_nothing(
    gang: PoolLauncher, server: Server, clock: Clock
) -> None:
    nodes = started(gang)
    state_of(server, Running(), nodes)
    began = clock.now
    clock.set.append((began + 1.5, lambda: nodes.hub.left.add(0)))
    nodes.end([0])
    assert 1.5 <= clock.now - began < 1.7
    (run,) = server.runs.values()
    assert run.state.is_running()


def test_a_run_that_has_not_begun_is_cancelled_at_once(
    gang: PoolLauncher, server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_S", 60.0)  # the thread that asks, too, may be late with an older answer
    nodes = started(gang)
    began = clock.now
    nodes.end([0])
    assert clock.now - began < 0.3
    (run,) = server.runs.values()
    assert run.state.is_cancelled()


def test_who_never_answers_is_cancelled_and_left(
    gang: PoolLauncher, server: Server, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = started(gang)
    state_of(server, Running(), nodes)
    (run,) = server.runs.values()
    began, states = clock.now, []
    clock.set += [(began + after, lambda: states.append(run.state.is_cancelling())) for after in (1.9, 2.3)]
    nodes.end([0])
    assert 8 < clock.now - began < 8.3
    assert states == [False, True]
    assert "the node did not report that it ended; its token is void" in caplog.text


def test_nodes_are_waited_for_side_by_side(gang: PoolLauncher, server: Server, clock: Clock) -> None:
    nodes = started(gang, 0, 1, 2)
    assert len(server.runs) == 3
    for run in server.runs.values():
        run.state = Running()
    nodes._watch.look()
    began = clock.now
    nodes.end([0, 1, 2])
    assert 8 < clock.now - began < 8.3, "one deadline for all"


def test_many_nodes_are_started_with_few_requests(gang: PoolLauncher, server: Server) -> None:
    nodes = started(gang, *range(250))
    assert list(nodes.runs) == list(range(250))
    assert [run.name for run in nodes.runs.values()] == [f"k-0 g0 node {node}" for node in range(250)]
    assert [asked["parameters"]["node"] for asked in server.asked] == list(range(250))
    assert not any(asked["enforce_parameter_schema"] for asked in server.asked), "the server checks no schema for each"


def test_a_busy_server_is_asked_again_only_for_the_runs_that_are_missing(gang: PoolLauncher, server: Server) -> None:
    nodes = generation_of(gang)
    server.most = 150
    with pytest.raises(StorageUnavailable, match="The Prefect server no longer answers: ReadTimeout: busy"):
        nodes.start(range(250))
    assert list(nodes.runs) == list(range(100))
    assert nodes.status(99) == "its run 'k-0 g0 node 99' is Scheduled", "and it is followed"
    server.most = 10**9
    server.asked.clear()
    nodes.start(range(250))
    assert [asked["parameters"]["node"] for asked in server.asked] == list(range(100, 250))


def test_what_prefect_refuses_is_said(gang: PoolLauncher, server: Server) -> None:
    server.refuses = "gpus: 8 is not a string"
    with pytest.raises(UsageError, match="Prefect takes no flow run of the node deployment: gpus: 8 is not a string"):
        started(gang)


def test_a_server_that_is_away_is_no_bug(gang: PoolLauncher, server: Server) -> None:
    server.away = True
    with pytest.raises(StorageUnavailable, match="The Prefect server no longer answers"):
        started(gang)


def test_without_a_flow_there_is_no_pool(store: Store) -> None:
    with pytest.raises(UsageError, match="train.launcher: a work pool needs Prefect") as caught:
        PoolLauncher(store, TRAINING, POOL)
    assert "--set train.launcher=local --set train.pool=null" in caught.value.remedy


def test_a_server_that_takes_long_for_the_states_is_asked_less_often(gang: PoolLauncher, server: Server) -> None:
    looks: list[float] = []
    read = server.read_flow_runs

    def slow(flow_run_filter: Any, offset: int = 0) -> Any:
        # Threads of earlier tests ask here, too, for their own runs.
        if found := read(flow_run_filter, offset):
            looks.append(time.monotonic())
            time.sleep(0.1)
        return found

    server.read_flow_runs = slow  # type: ignore[method-assign]
    started(gang)
    until(lambda: len(looks) > 4)
    # The creation reads the runs, too, and the first look follows it at once.
    assert min(later - earlier for earlier, later in pairwise(looks[1:])) > 0.45
