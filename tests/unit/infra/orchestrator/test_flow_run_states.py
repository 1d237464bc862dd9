"""All followed flow runs are known, however few a server answers at once."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from infra.orchestrator import gang
from infra.orchestrator.gang import FlowRunStates


class Server:
    """Answers as Prefect's does: of the runs that are asked for, newest id first, at most `limit` from `offset` on."""

    def __init__(self, limit: int) -> None:
        self.limit, self.asked = limit, 0

    def read_flow_runs(self, flow_run_filter: Any, offset: int = 0, **_: Any) -> list[Any]:
        assert len(flow_run_filter.id.any_) <= 200
        self.asked += 1
        page = sorted(flow_run_filter.id.any_)[offset : offset + self.limit]
        return [SimpleNamespace(id=run_id, state=f"state of {run_id}") for run_id in page if run_id.int % 97]


@pytest.mark.parametrize(("runs", "limit"), [(0, 200), (1, 200), (200, 200), (201, 200), (1024, 200), (450, 50)])
def test_every_followed_run_is_known(runs: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(limit)
    monkeypatch.setattr(gang, "asking", lambda: contextlib.nullcontext(server))
    watch = FlowRunStates()
    ids = [UUID(int=uuid4().int // 97 * 97 + 1) for _ in range(runs)]
    gone = UUID(int=2**128 // 97 * 97)  # the server has forgotten it, which ends the asking
    watch._states = {**dict.fromkeys(ids[1:]), **dict.fromkeys(ids[:1] and [gone], "before")}
    watch.look()
    assert [watch.state(run_id) for run_id in ids[1:]] == [f"state of {run_id}" for run_id in ids[1:]]
    assert watch.state(gone) == ("before" if runs else None)
    assert server.asked <= -(-runs // min(limit, 200)) + runs // 200 + 1
