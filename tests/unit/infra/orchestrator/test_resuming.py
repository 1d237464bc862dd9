"""Which flow runs a reaper may touch: the store names them, and the server says whose they are."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from data_contracts.errors import Fenced
from data_contracts.executions import Crash
from infra.orchestrator import resuming
from infra.orchestrator.resuming import PrefectResumer

FLOW_RUN = "0b4e9a5c-8f0d-4b6e-9a55-1f2d3c4b5a69"
RUN = "20261125-010203-0a1b2c"


class Server:
    """A server with one flow run of a deployment whose worker is online."""

    def __init__(self, name: str, **parameters: Any) -> None:
        state = SimpleNamespace(type=SimpleNamespace(value="RUNNING"), name="Running")
        self.flow_run = SimpleNamespace(
            id=UUID(FLOW_RUN),
            name=name,
            parameters=parameters,
            state=state,
            run_count=1,
            deployment_id=UUID(int=1),
            work_pool_name="gpu",
            tags=["trainwright-ci", "team:sales"],
        )
        self.asked: list[str] = []
        self.set: list[str] = []
        self.made: list[dict[str, Any]] = []
        self.announced: list[Any] = []

    def read_flow_run(self, _: UUID) -> Any:
        return self.flow_run

    def read_flow_runs(self, **_: Any) -> list[Any]:
        return []

    def read_deployment(self, _: UUID) -> Any:
        return SimpleNamespace(tags=["trainwright", *self.asked])

    def read_work_pool(self, name: str) -> Any:
        return SimpleNamespace(name=name, type="process")

    def set_flow_run_state(self, _: UUID, state: Any, force: bool) -> None:
        self.set.append(state.name)

    def create_flow_run_from_deployment(self, _: UUID, **how: Any) -> Any:
        self.made.append(how)
        return SimpleNamespace(name="resume")


told_by_server: list[bool] = []


@pytest.fixture
def serves(monkeypatch: pytest.MonkeyPatch) -> Any:
    told_by_server.clear()

    def serve(server: Server) -> Server:
        monkeypatch.setattr(resuming, "asking", lambda **_: contextlib.nullcontext(server))
        monkeypatch.setattr(resuming, "announce_resumed", lambda *_, notified: told_by_server.append(notified))
        monkeypatch.setattr(resuming, "announce_end", lambda report, _: server.announced.append(report))
        monkeypatch.setattr(resuming, "lacks_worker", lambda *_: False)
        monkeypatch.setattr(resuming, "find_pool", lambda client, name: client.read_work_pool(name))
        monkeypatch.setattr(resuming, "ensure_resume_deployment", lambda *_: UUID(int=2))
        return server

    return serve


def crash(run_id: str = RUN) -> Crash:
    return Crash(run_id=run_id, n=0, token=1, ends=0, flow_run=FLOW_RUN, run_count=1, at="", by="")


@pytest.mark.parametrize("named", [{"name": f"tiny {RUN} 7d"}, {"name": f"resume-{RUN}", "run_id": RUN}])
def test_a_runs_own_flow_run_is_executed_again_and_ended(serves: Any, named: dict[str, str]) -> None:
    server = serves(Server(**named))
    how = PrefectResumer("nights").resume(crash(), "/s", "tiny", "key")
    assert how is not None
    assert "is executed again by a worker of gpu" in how
    PrefectResumer("nights").gave_up(RUN, "tiny", FLOW_RUN, "It died.")
    assert (server.set, server.made) == (["AwaitingRetry", "ProcessDied"], [])


@pytest.mark.parametrize(
    ("name", "asked", "told"),
    [
        ("Crashed", ["notify:webhook/pager"], True),
        ("Crashed", [], False),  # nobody, or by an earlier version
        ("Running", ["notify:webhook/pager"], False),  # its worker died, too, and reported nothing
        ("ProcessDied", ["notify:webhook/pager"], False),
    ],
)
def test_a_crash_of_which_the_server_has_told_is_marked(serves: Any, name: str, asked: list[str], told: bool) -> None:
    server = serves(Server(f"tiny {RUN}"))
    server.flow_run.state.name, server.asked = name, asked
    PrefectResumer("nights").resume(crash(), "/s", "tiny", "key")
    assert told_by_server == [told]


@pytest.mark.parametrize(
    ("name", "run_id"),
    [("delete-all-backups", RUN), ("tiny 20261125-010203-ffffff", RUN), ("lucid-lemur", "lucid-lemur")],
)
def test_a_flow_run_that_only_the_store_calls_the_runs_is_never_touched(serves: Any, name: str, run_id: str) -> None:
    server = serves(Server(name))
    how = PrefectResumer("nights").resume(crash(run_id), "/s", "tiny", "key")
    PrefectResumer("nights").gave_up(run_id, "tiny", FLOW_RUN, "It died.")
    assert server.set == []
    assert how == "the flow run resume on the work pool nights resumes it"
    assert [made["parameters"]["run_id"] for made in server.made] == [run_id]
    assert [made["tags"] for made in server.made] == [None]


def test_a_flow_run_that_resumes_a_run_of_ci_leaves_a_report_for_it(
    serves: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serves(Server(f"tiny {RUN}"))
    monkeypatch.setattr(resuming, "_is_served", lambda *_: False)
    PrefectResumer("nights").resume(crash(), "/s", "tiny", "key")
    assert [made["tags"] for made in server.made] == [["trainwright-ci"]]


@pytest.mark.parametrize("state", ["CANCELLED", "CANCELLING", "PAUSED"])
def test_a_flow_run_that_is_stopped_while_a_reaper_looks_is_left_alone(serves: Any, state: str) -> None:
    server = serves(Server(f"tiny {RUN}"))
    server.flow_run.state.type.value = state
    with pytest.raises(Fenced, match="was cancelled or suspended meanwhile"):
        PrefectResumer("nights").resume(crash(), "/s", "tiny", "key")
    assert (server.set, server.made) == ([], [])


@pytest.mark.parametrize(("state", "name", "ended"), [
    ("CANCELLING", f"tiny {RUN}", ["Cancelled"]),
    ("CANCELLED", f"tiny {RUN}", []),
    ("CANCELLING", "another", []),
])  # fmt: skip
def test_the_flow_run_of_a_run_that_ended_as_cancelled_ends(
    serves: Any, state: str, name: str, ended: list[str]
) -> None:
    server, report = serves(Server(name)), SimpleNamespace(run_id=RUN, sentence="It was cancelled.")
    server.flow_run.state.is_cancelling = lambda: state == "CANCELLING"
    PrefectResumer("nights").end_cancelled(report, FLOW_RUN)  # type: ignore[arg-type]
    assert (server.set, server.announced) == (ended, [report])
