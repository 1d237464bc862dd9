"""Our flows wait for nothing that they have no use for when they begin and end."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from prefect import flow, flow_engine

from infra.orchestrator.flow_runs import without_waits


def passed_on(spec: str, window: str | None = None, new: bool = False, node: int = 0) -> None:
    """A flow with parameters of the kinds that ours have."""


@pytest.mark.parametrize("ours", [False, True])
def test_the_end_of_a_flow_run_waits_for_no_heartbeat(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    before = flow_engine._send_heartbeats
    # Another test may have imported a flow of ours.
    monkeypatch.setattr(flow_engine, "_send_heartbeats", getattr(before, "func", before))
    if ours:
        for _ in range(2):
            without_waits(flow(passed_on))
    ended = SimpleNamespace(state=SimpleNamespace(is_final=lambda: True))
    engine: Any = SimpleNamespace(
        heartbeat_seconds=180,
        flow_run=ended,
        logger=SimpleNamespace(debug=lambda *_, **__: None),
        _build_heartbeat_event_template=lambda: ({}, []),
    )
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout=None: waited.append(timeout))
    with flow_engine._send_heartbeats(engine):
        pass
    assert waited == ([] if ours else [2])


def test_parameters_reach_the_server_as_they_are() -> None:
    asked = {"spec": "a.yaml", "window": None, "new": True, "node": 3}
    assert (
        without_waits(flow(passed_on)).serialize_parameters(asked)
        == flow(passed_on).serialize_parameters(asked)
        == asked
    )
