"""Remote runs: what is refused before one starts, what ends the wait, and the error of one that says nothing."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import State

from data_contracts.errors import Cancelled, GangIncomplete, Interrupted, StorageUnavailable, UsageError
from infra.orchestrator import remote_runs
from infra.orchestrator.deployments import Obstacle
from infra.orchestrator.resuming import CI_TAG

RUN: Any = SimpleNamespace(id=uuid4(), name="calm-owl", parameters={})
RUN_ID = "20261126-010029-7717a3"


def state(kind: str, name: str | None = None) -> State:
    return State(type=StateType(kind), name=name)


class Client:
    """Answers with each of `answers` in turn; remembers what it was asked to do."""

    def __init__(self, *answers: Any, deployment: Any = None) -> None:
        self.answers, self.deployment, self.done = list(answers), deployment, []  # type: ignore[var-annotated]
        self.reapers, self.resumptions, self.reports = [], [], {}  # type: ignore[var-annotated]
        self.named = f"calm-owl {RUN_ID}"

    def read_deployment_by_name(self, name: str) -> Any:
        if self.deployment is None:
            raise ObjectNotFound(http_exc=Exception())
        return self.deployment

    def create_flow_run_from_deployment(self, deployment: Any, **asked: Any) -> Any:
        self.done.append(asked)
        return RUN

    def read_flow_run(self, flow_run: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return SimpleNamespace(id=flow_run, name=self.named, parameters={}, state=answer)

    def read_deployments(self, **_: Any) -> list[Any]:
        return self.reapers

    def read_flow_runs(self, **_: Any) -> list[Any]:
        return self.resumptions

    def set_flow_run_state(self, flow_run: Any, wanted: State, force: bool = False) -> None:
        self.done.append(wanted.type)
        if self.answers:
            raise self.answers.pop(0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Client:
    """The server that `wait` and `cancel` ask; they do not wait in between."""
    client = Client()
    monkeypatch.setattr(remote_runs, "asking", lambda retries=0: contextlib.nullcontext(client))
    monkeypatch.setattr(remote_runs, "read_ci_report", lambda client, flow_run: client.reports.get(flow_run))
    monkeypatch.setattr(remote_runs, "ASK_S", 0.0)
    return client


def pipeline(entrypoint: str = remote_runs.CONDUCTOR, pool: str | None = "trainwright") -> Any:
    return SimpleNamespace(id=uuid4(), entrypoint=entrypoint, work_pool_name=pool)


@pytest.mark.parametrize(
    ("deployment", "sentence"),
    [
        (None, "This Prefect server has no deployment retrain/x."),
        (pipeline("theirs.flow"), "The deployment retrain/x does not run a pipeline of Trainwright"),
        (pipeline(pool=None), "The deployment retrain/x does not run a pipeline of Trainwright"),
    ],
)
def test_what_is_not_a_pipeline_s_deployment_is_refused(deployment: Any, sentence: str) -> None:
    client: Any = Client(deployment=deployment)
    with pytest.raises(UsageError, match=sentence):
        remote_runs.begin(client, "retrain/x", {})
    assert client.done == []


def test_no_worker_is_refused_and_else_a_tagged_run_begins_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client: Any = Client(deployment=pipeline())
    obstacles = [Obstacle("no_worker", "Nobody.", ""), Obstacle("pool_paused", "Paused.", "Resume it."), None]
    monkeypatch.setattr(remote_runs, "find_pool", lambda *_: None)
    monkeypatch.setattr(remote_runs, "obstacle_of", lambda *_: obstacles.pop(0))
    with pytest.raises(GangIncomplete):
        remote_runs.begin(client, "retrain/x", {})
    for _ in range(2):
        assert remote_runs.begin(client, "retrain/x", {"window": "7d"}) is RUN
    first, second = client.done
    assert (first["tags"], first["parameters"]) == ([CI_TAG], {"window": "7d"})
    assert first["idempotency_key"] != second["idempotency_key"]
    assert caplog.messages == ["Paused. The run waits. Resume it."]


@pytest.mark.parametrize("end", [state("COMPLETED", "Promoted"), state("PAUSED", "Suspended"), state("CRASHED")])
def test_the_wait_ends_with_a_final_state_or_a_question_and_outlasts_an_outage(end: State, server: Client) -> None:
    server.answers = [None, state("SCHEDULED"), httpx.ConnectError("away"), state("RUNNING"), end]
    assert remote_runs.wait(RUN)[1] is end
    assert server.answers == []


def test_an_outage_that_lasts_and_a_run_that_is_deleted_end_the_wait(
    server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = [ObjectNotFound(http_exc=Exception())]
    with pytest.raises(Interrupted, match="calm-owl was deleted in Prefect, and not by this job"):
        remote_runs.wait(RUN)
    monkeypatch.setattr(remote_runs.Outage, "failed", _raise)
    server.answers = [httpx.ConnectError("away")]
    with pytest.raises(StorageUnavailable, match="The Prefect server no longer answers"):
        remote_runs.wait(RUN)


def _raise(_: Any, error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("end", "kind", "sentence"),
    [
        (state("CANCELLED"), Cancelled, "was cancelled in Prefect, and not by this job"),
        (state("CRASHED"), Interrupted, "its process died"),
        (state("FAILED", "Failed"), Interrupted, "its state is Failed"),
        (state("COMPLETED", "Skipped"), Interrupted, "its state is Skipped"),
    ],
)
def test_a_run_without_a_report_has_the_error_of_its_state(end: State, kind: type[Exception], sentence: str) -> None:
    error = remote_runs.without_report(remote_runs.Ended(RUN, end, None))
    assert type(error) is kind
    assert sentence in str(error)


REAPER = SimpleNamespace(paused=False, schedules=[SimpleNamespace(active=True)])
CRASHED, DONE = state("CRASHED"), state("COMPLETED", "Promoted")


def made_at(moment: datetime) -> Any:
    return SimpleNamespace(id=uuid4(), name=f"resume-{RUN_ID}", parameters={"run_id": RUN_ID}, created=moment)


def test_a_flow_run_that_resumes_a_crashed_run_is_followed_and_an_older_one_is_not(server: Client) -> None:
    server.reapers = [REAPER]
    before, after = (made_at(CRASHED.timestamp + timedelta(seconds=step)) for step in (-1, 1))
    server.resumptions = [after, before]
    server.reports = {after.id: "its report"}
    server.answers = [CRASHED, CRASHED, DONE]
    ended = remote_runs.follow(RUN)
    assert (ended.flow_run.id, ended.state, ended.report) == (after.id, DONE, "its report")
    server.resumptions, server.answers = [before], [CRASHED]
    assert remote_runs._continued(server, RUN) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reapers", "patience_s"),
    [([], 300.0), ([SimpleNamespace(paused=True, schedules=REAPER.schedules)], 300.0), ([REAPER], 0.0)],
)
def test_a_crash_that_nobody_resumes_ends_the_wait(
    reapers: list[Any], patience_s: float, server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_runs, "REAPED_S", patience_s)
    server.reapers, server.answers = reapers, [CRASHED]
    ended = remote_runs.follow(RUN)
    error = remote_runs.without_report(ended)
    assert (ended.state, ended.report, server.answers) == (CRASHED, None, [])
    assert "its process died, and nobody resumed it" in str(error)
    assert (error.details["flow_run"], error.details["run_id"]) == (str(RUN.id), RUN_ID)
    # It waits for nobody where there is no run yet that a reaper could find.
    monkeypatch.setattr(remote_runs, "REAPED_S", 300.0)
    server.named, server.reapers, server.answers = "calm-owl", [REAPER], [CRASHED]
    assert remote_runs.follow(RUN).state is CRASHED


@pytest.mark.parametrize(
    ("answers", "asked"),
    [([KeyboardInterrupt()], StateType.CANCELLING), ([CRASHED, KeyboardInterrupt()], StateType.CANCELLED)],
)
def test_a_cancelled_job_cancels_the_run_also_between_a_crash_and_its_resumption(
    answers: list[Any], asked: StateType, server: Client
) -> None:
    server.reapers, server.answers = [REAPER], answers
    with pytest.raises(KeyboardInterrupt):
        remote_runs.follow(RUN)
    assert server.done == [asked]


@pytest.mark.parametrize(
    ("kind", "done"),
    [("COMPLETED", []), ("FAILED", []), ("CANCELLED", []), ("CRASHED", [StateType.CANCELLED]),
     ("PAUSED", [StateType.CANCELLED])],
)  # fmt: skip
def test_a_job_that_is_cancelled_while_it_reads_the_report_leaves_a_run_that_has_ended_as_it_is(
    kind: str, done: list[StateType], server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_runs, "read_ci_report", Mock(side_effect=KeyboardInterrupt))
    server.answers = [state(kind)]
    with pytest.raises(KeyboardInterrupt):
        remote_runs.follow(RUN)
    assert server.done == done
