"""The worker's flow runs are those with a live process below it. (Cancelling them: tests/integration/test_up_and_down.py.)"""

from __future__ import annotations

import subprocess
import sys
from uuid import uuid4

from infra.launch.processes import new_mark
from infra.orchestrator import runs, services
from infra.orchestrator.services import Service


def test_flow_runs_are_found_by_their_processes() -> None:
    ours, other = new_mark(), new_mark()
    asked = {ours: [uuid4(), uuid4()], other: [uuid4()]}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            env={**services.environment(mark), "PREFECT__FLOW_RUN_ID": str(run_id)},
        )
        for mark, ids in asked.items()
        for run_id in ids
    ]
    try:
        assert runs.runs_of(Service("worker", 1, ours, "")) == set(asked[ours])
    finally:
        for process in started:
            process.kill()
            process.wait()
    worker = Service("worker", 1, ours, "http://127.0.0.1:1/api")
    assert runs.runs_of(worker) == set()
    assert runs.cancel_runs_of(worker) == [], "without runs no server is asked"
