"""Waiting for a Prefect server that is away or hangs, before a stage's task begins."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from data_contracts.errors import StorageUnavailable
from infra.orchestrator import api, flow_runs
from infra.orchestrator.flow_runs import begin_with_server
from infra.store.lease import Outage


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that takes connections and answers nothing, as one that is stopped or swapped out."""
    monkeypatch.setattr(flow_runs, "_OUTAGE", Outage())
    monkeypatch.setattr(api, "REACH_TIMEOUT_S", 0.1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.getsockname()[1]}/api"}):
            yield


def test_no_task_begins_while_its_server_hangs(hanging: None) -> None:
    """Prefect's own request would hang, too: for six minutes with its retries, whatever the patience is."""
    begun: list[float] = []
    with pytest.raises(StorageUnavailable, match="ReadTimeout"):
        begin_with_server(lambda: begun.append(time.monotonic()), lambda: False, patience_s=0.2)
    assert begun == []
