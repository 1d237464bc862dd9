"""A flow run's process logs to Prefect, also from threads, and outlives the worker that started it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

from infra.orchestrator.flow_run_logs import begin_flow_run_logs
from infra.processes.environment import FLOW_RUN
from tasks.run.progress import on_page

ID = "0b6b2e2a-6f5c-4b0e-9a34-1c7f0b0f2d11"
log = logging.getLogger("trainwright")


def test_lines_of_a_thread_reach_the_flow_run_with_a_link_to_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr("prefect.logging.handlers.emit_api_log", sent.append)
    monkeypatch.setenv(FLOW_RUN, ID)
    monkeypatch.setattr(log, "level", logging.NOTSET)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api", PREFECT_UI_URL: None}):
        for _ in range(2):
            begin_flow_run_logs()
        log.warning("a rank was lost", extra=on_page("tiny-gang"))
        log.info("a line without a page")
    assert [(line["level"], line["flow_run_id"], line["message"]) for line in sent] == [
        (logging.WARNING, ID, "a rank was lost  [http://127.0.0.1:1/artifacts/key/tiny-gang]"),
        (logging.INFO, ID, "a line without a page"),
    ]


GOES_ON = """
import sys
from pathlib import Path
from prefect.logging import get_logger
from prefect.logging.configuration import setup_logging
from infra.orchestrator.flow_run_logs import begin_flow_run_logs
setup_logging()
begin_flow_run_logs()
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
