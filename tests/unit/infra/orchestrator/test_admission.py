"""Room on a pool, with a server that answers as it is told. (With a real one: tests/integration/test_pool.py.)"""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import httpx
import prefect.client.orchestration
import pytest
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE, temporary_settings

from data_contracts.errors import GangIncomplete, StorageUnavailable, UsageError
from infra.orchestrator import events
from infra.orchestrator import gang as module
from infra.orchestrator.api import asking
from infra.orchestrator.gang import PoolAdmission
from tests.support.pool import until


def failing(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://server/api")
    return httpx.HTTPStatusError(str(status), request=request, response=httpx.Response(status, request=request))


class Server:
    """A pool, its queue, workers and limit; what was taken and given back."""

    def __init__(self) -> None:
        self.pool: Any = SimpleNamespace(
            name="gpu",
            concurrency_limit=None,
            is_paused=False,
            is_push_pool=False,
            is_managed_pool=False,
            type="process",
        )
        self.queue, self.urgent = (SimpleNamespace(concurrency_limit=None, is_paused=False) for _ in range(2))
        self.workers = [SimpleNamespace(status="OFFLINE"), SimpleNamespace(status="ONLINE")]
        self.limit: Any = SimpleNamespace(limit=4, active=True, active_slots=0)
        self.leases: dict[UUID, int] = {}
        self.asked = 0
        self.error: Exception | None = None

    def read_work_pool(self, name: str) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.pool

    def read_work_queue_by_name(self, name: str, pool: str) -> Any:
        assert pool == "gpu"
        if name not in ("default", "urgent"):
            raise ObjectNotFound(Exception())
        return self.queue if name == "default" else self.urgent

    def read_workers_for_work_pool(self, pool: str) -> list[Any]:
        return self.workers

    def read_global_concurrency_limit_by_name(self, name: str) -> Any:
        if self.limit is None:
            raise ObjectNotFound(Exception("404"))
        return self.limit

    def increment_concurrency_slots_with_lease(
        self, names: list[str], slots: int, mode: str, lease_duration: float, holder: Any
    ) -> Any:
        assert (names, mode, lease_duration) == (["gpu"], "concurrency", module.LEASE_S)
        if self.limit.active_slots + slots > self.limit.limit:
            raise failing(423)
        self.limit.active_slots += slots
        lease = uuid4()
        self.leases[lease] = slots
        return SimpleNamespace(json=lambda: {"lease_id": str(lease)})

    def renew_concurrency_lease(self, lease: UUID, lease_duration: float) -> None:
        if lease not in self.leases:
            raise failing(410)

    def release_concurrency_slots_with_lease(self, lease: UUID) -> None:
        # As the real one: a lease that it does not know is no error.
        self.limit.active_slots -= self.leases.pop(lease, 0)

    def release_concurrency_slots(self, names: list[str], slots: int, occupancy_seconds: float) -> None:
        assert (names, occupancy_seconds > 0) == (["gpu"], True)
        self.limit.active_slots -= slots


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(module, "asking", lambda retries=0: contextlib.nullcontext(server))
    monkeypatch.setattr(module, "ASK_S", 0.0)
    monkeypatch.setattr(module, "RENEW_S", 0.01)
    return server


def test_outside_a_flow_no_temporary_server_is_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started = Mock(side_effect=AssertionError("Prefect would start a server of its own"))
    monkeypatch.setattr(prefect.client.orchestration, "get_client", started)
    with temporary_settings({PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True}, restore_defaults={PREFECT_API_URL}):
        with pytest.raises(StorageUnavailable, match="^No Prefect server is known here"), asking(retries=2):
            pass
        events.send("trainwright.run.failed", {"prefect.resource.id": "r"}, {}, "key", "sales")
        assert "No Prefect server is known here" in caplog.text
        monkeypatch.setattr(FlowRunContext, "get", classmethod(lambda cls: object()))
        with pytest.raises(AssertionError), asking():  # a flow that was called without a server has its own
            pass


@pytest.mark.parametrize("why", ["no limit", "a limit that is not active", "machines that come by themselves"])
def test_there_is_room(why: str, server: Server) -> None:
    if why == "machines that come by themselves":
        server.workers, server.pool.is_push_pool, server.limit.limit = [], True, 9
    else:
        server.limit = None if why == "no limit" else SimpleNamespace(limit=1, active=False, active_slots=0)
    room = PoolAdmission("gpu", 1)
    assert room.take(9) is None
    room.give_back()
    assert server.leases == {}


@pytest.mark.parametrize(
    ("kind", "command"), [("process", "trainwright worker"), ("kubernetes", "prefect worker start")]
)
def test_no_worker_is_said_and_then_too_long(server: Server, kind: str, command: str) -> None:
    server.workers, server.pool.type = [SimpleNamespace(status="OFFLINE")], kind
    room = PoolAdmission("gpu", 0.05)
    assert room.take(1) == f"no worker of the work pool gpu is online; start one: {command} --pool gpu"
    time.sleep(0.06)
    with pytest.raises(GangIncomplete, match="No worker of the work pool gpu was online for 0.05 s") as failed:
        room.take(1)
    assert failed.value.remedy == f"Start one ({command} --pool gpu), then `trainwright resume`."
    assert server.limit.active_slots == 0


@pytest.mark.parametrize("what", ["pool", "queue"])
def test_a_paused_pool_is_waited_for(what: str, server: Server) -> None:
    getattr(server, what).is_paused = True
    assert PoolAdmission("gpu", 1).take(1) == "the work pool gpu is paused; resume it: prefect work-pool resume gpu"
    assert server.limit.active_slots == 0


def test_a_queue_of_the_pool_is_looked_at_instead_of_the_default(server: Server) -> None:
    server.queue.is_paused, server.urgent.concurrency_limit = True, 1
    room = PoolAdmission("gpu", 1, queue="urgent")
    with pytest.raises(UsageError, match="because the concurrency limit of the queue urgent of gpu is 1"):
        room.take(2)
    assert room.take(1) is None
    room.give_back()
    server.urgent.is_paused = True
    waits = "the queue urgent of the work pool gpu is paused; resume it: prefect work-queue resume urgent --pool gpu"
    assert PoolAdmission("gpu", 1, queue="urgent").take(1) == waits
    with pytest.raises(UsageError, match=r"train.queue: the work pool gpu has no queue 'none'"):
        PoolAdmission("gpu", 1, queue="none").take(1)


def test_a_server_that_is_away_is_waited_for_and_not_asked_too_often(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_S", 60.0)
    server.error = httpx.ConnectError("refused")
    room = PoolAdmission("gpu", 1)
    said = room.take(1)
    assert said.startswith("waiting: The Prefect server no longer answers")
    assert (room.take(1), server.asked) == (said, 1)


def test_slots_of_a_lease_that_a_restarted_server_forgot_are_given_back_all_the_same(server: Server) -> None:
    room = PoolAdmission("gpu", 1)
    assert room.take(3) is None
    server.leases.clear()
    until(lambda: room._held[0].forgotten)
    room.give_back()
    assert server.limit.active_slots == 0


@pytest.mark.parametrize("others", [0, 2])
def test_slots_whose_lease_ran_out_are_taken_again_if_they_are_free(
    others: int, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = PoolAdmission("gpu", 1)
    assert room.take(3) is None
    monkeypatch.setattr(module, "LEASE_S", 0.0)
    server.limit.active_slots = others
    server.leases.clear()
    if others:
        until(lambda: "they are no longer free; the gang continues without slots" in caplog.text)
    else:
        until(lambda: server.leases and room._held)
    assert len(room._held) == (0 if others else 1)
    room.give_back()
    assert server.limit.active_slots == others


def test_what_cannot_be_given_back_is_said(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    room = PoolAdmission("gpu", 1)
    assert room.take(1) is None

    away = Mock(side_effect=httpx.ConnectError("refused"))
    server.release_concurrency_slots_with_lease = away  # type: ignore[method-assign]
    room.give_back()
    assert (
        "The slots of the work pool gpu could not be given back; they are free once their lease expires" in caplog.text
    )
