"""Who agreed to game days on a pool, and what the server is told of a conductor that one killed."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import pytest

from data_contracts.errors import StorageUnavailable, UsageError
from infra.orchestrator import resuming
from infra.orchestrator.resuming import end_dead_conductor, refuse_without_consent

RUN, LEASE = UUID(int=1), UUID(int=2)


class Server:
    """Its variable, and what it was told; away if `variable` is an exception."""

    def __init__(self, variable: Any = None) -> None:
        self.variable, self.told, self.nodes = variable, list[Any](), list[Any]()

    def read_work_pool(self, name: str) -> Any:
        return SimpleNamespace(name=name)

    def read_variable_by_name(self, name: str) -> Any:
        if isinstance(self.variable, Exception):
            raise self.variable
        return None if self.variable is None else SimpleNamespace(value=self.variable)

    def release_concurrency_slots_with_lease(self, lease: UUID) -> None:
        self.told.append(("released", lease))

    def read_flow_runs(self, **_: Any) -> list[Any]:
        return self.nodes

    def set_flow_run_state(self, flow_run: UUID, state: Any, force: bool = False) -> None:
        self.told.append((state.type.value, flow_run))


def serve(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(resuming, "asking", lambda retries=0: contextlib.nullcontext(server))
    return server


@pytest.mark.parametrize("value", [None, ["cpu"]])
def test_a_pool_that_nobody_has_named_is_refused(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(Server(value), monkeypatch)
    with pytest.raises(UsageError) as caught:
        refuse_without_consent("gpu")
    assert str(caught.value) == (
        "train.pool: nobody has agreed to game days on the work pool gpu. "
        """Whoever owns the pool does so with: prefect variable set trainwright_gameday '["gpu"]'."""
    )
    serve(Server(httpx.ConnectError("refused")), monkeypatch)
    with pytest.raises(StorageUnavailable):  # a server that does not answer is no consent
        refuse_without_consent("gpu")


@pytest.mark.parametrize("flow_run", [str(RUN), ""])
def test_the_slots_of_a_killed_conductor_are_freed_and_its_flow_run_ends(
    flow_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(Server(), monkeypatch)
    end_dead_conductor("gpu", flow_run, "/s", "trainings/k-0", [str(LEASE)])
    assert server.told == [("released", LEASE), *([("CRASHED", RUN)] if flow_run else [])]


def test_nodes_that_wait_for_a_gang_of_another_store_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training's key does not say where it ran, and a tag has the last part of its path alone."""
    server = serve(Server(), monkeypatch)
    places = [("/s", "trainings/k-0"), ("/other", "trainings/k-0"), ("/s", "runs/r/errands/k-0")]
    server.nodes = [
        SimpleNamespace(id=UUID(int=10 + n), parameters={"store": store, "training": training})
        for n, (store, training) in enumerate(places)
    ]
    resuming.PrefectResumer("gpu").end_nodes("/s", "trainings/k-0")
    assert server.told == [("CANCELLED", UUID(int=10))]
