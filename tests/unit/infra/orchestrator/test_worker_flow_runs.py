"""The flow runs of a worker have a live process below it. (How they end: tests/integration/test_deployments.py.)"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from infra.orchestrator import server
from infra.orchestrator import worker as worker_module
from infra.orchestrator.server import Service
from infra.processes.processes import new_mark


@pytest.fixture
def worker(mark: str) -> Iterator[Service]:
    """A worker without processes, for a server that is away."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield Service("worker", 1, mark, f"http://127.0.0.1:{closed.getsockname()[1]}/api")


def start_run(mark: str, run_id: UUID) -> subprocess.Popen[bytes]:
    """A process as a worker starts it for a flow run."""
    env = {**server.service_environment(mark), "PREFECT__FLOW_RUN_ID": str(run_id)}
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)


def test_flow_runs_are_found_by_their_processes(worker: Service) -> None:
    ours, others = {uuid4(), uuid4()}, uuid4()
    stranger = new_mark()
    started = [*(start_run(worker.mark, run_id) for run_id in ours), start_run(stranger, others)]
    try:
        assert worker_module.runs_of(worker.mark) == ours
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert worker_module.runs_of(worker.mark) == set()


def test_where_the_server_is_away_they_are_named_and_left_to_be_killed(
    worker: Service, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = uuid4()
    process = start_run(worker.mark, run_id)
    with caplog.at_level(logging.WARNING, "trainwright"):
        assert worker_module.cancel_runs_of(worker) == [str(run_id)]
    assert process.poll() is None
    (message,) = [record.getMessage() for record in caplog.records if record.name == "trainwright"]
    assert "are killed" in message
