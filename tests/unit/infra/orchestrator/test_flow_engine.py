"""Our flows wait for nothing that they have no use for when they begin and end, and outlive who started them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect import flow, flow_engine

from infra.orchestrator.flow_engine import without_waits
from infra.processes.environment import FLOW_RUN


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


GOES_ON = """
import sys
from pathlib import Path
from prefect.logging import get_logger
from prefect.logging.configuration import setup_logging
from infra.orchestrator.flow_engine import outlive_worker
setup_logging()
outlive_worker()
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
get_logger("engine").warning("nobody reads this")
Path(sys.argv[1]).write_text("went on")
"""


@pytest.mark.parametrize("under_worker", [True, False])
def test_a_flow_run_goes_on_when_nobody_reads_its_console(under_worker: bool, tmp_path: Path) -> None:
    environment = {**os.environ, **({FLOW_RUN: "x"} if under_worker else {})}
    command = [sys.executable, "-c", GOES_ON, str(tmp_path / "done")]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        assert process.stderr.readline() == b"ready\n"
        process.stderr.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait(60)
    assert (tmp_path / "done").exists() == under_worker, "without it, this would not be a test"
