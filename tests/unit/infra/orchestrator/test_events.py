"""An event is posted once for each key, as long as the server says that it has it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.context import FlowRunContext

from infra.orchestrator import events


class Server:
    """Keeps the ids of the events that it got; with `silent`, it does not say which."""

    def __init__(self, silent: bool) -> None:
        self.silent, self.posted = silent, list[str]()

    def request(self, method: str, path: str, json: Any) -> Any:
        assert method == "POST"
        if path == "/events":
            self.posted += [one["id"] for one in json]
            return None
        if self.silent:
            raise OSError
        [wanted] = json["filter"]["id"]["id"]
        return SimpleNamespace(json=lambda: {"events": [one for one in self.posted if one == wanted]})


@pytest.mark.parametrize("silent", [False, True])
def test_a_second_execution_posts_no_second_event(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(silent)
    monkeypatch.setattr(events, "asking", lambda retries=0: contextlib.nullcontext(server))
    resource = {"prefect.resource.id": events.pipeline_resource("sales")}
    for event, key in (("run.failed", "r1"), ("run.failed", "r1"), ("run.failed", "r2"), ("run.rejected", "r1")):
        events.post(event, resource, {}, key, pipelines=["sales"])
    assert len(set(server.posted)) == 3
    assert len(server.posted) == (4 if silent else 3), "a message too many is better than none"


@pytest.mark.parametrize("deployment", [None, "d1"])
def test_an_event_names_its_flow_run_and_deployment_without_a_question(
    deployment: str | None,
) -> None:
    context = FlowRunContext.model_construct(flow_run=SimpleNamespace(id="r1", deployment_id=deployment))
    with context:
        assert events._own_flow_run() == {
            "flow-run": "prefect.flow-run.r1",
            **({"deployment": "prefect.deployment.d1"} if deployment else {}),
        }
    assert events._own_flow_run() == {}, "a command that is no flow run"
