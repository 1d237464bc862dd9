"""A flow run's process logs to Prefect, also from threads, and outlives the worker that started it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.logging.configuration import DEFAULT_LOGGING_SETTINGS_PATH
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

from flows.commands.server import QUIET
from infra.orchestrator.flow_runs import begin_flow_run_logs
from infra.processes.environment import FLOW_RUN
from infra.telemetry import LOG_FORMAT, PREFECT_IN_JSON
from tasks.run.progress import on_page
from tests.support.stub_server import serving

ID = "0b6b2e2a-6f5c-4b0e-9a34-1c7f0b0f2d11"
SETTINGS = "PREFECT_LOGGING_SETTINGS_PATH"
log = logging.getLogger("trainwright")


@pytest.fixture(autouse=True)
def _levels_of_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a command sets for its own process, in which other tests may call it."""
    for name in QUIET:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def levels() -> Iterator[None]:
    """The levels of a worker's flow run, whatever commands have set before."""
    loggers = {log: logging.NOTSET, logging.getLogger("prefect"): logging.INFO}
    before = {logger: logger.level for logger in loggers}
    for logger, level in loggers.items():
        logger.setLevel(level)
    yield
    for logger, level in before.items():
        logger.setLevel(level)


@pytest.mark.usefixtures("levels")
def test_lines_of_a_thread_reach_the_flow_run_with_a_link_to_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr("prefect.logging.handlers.emit_api_log", sent.append)
    monkeypatch.setenv(FLOW_RUN, ID)
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
from collections.abc import Iterator
from pathlib import Path
from prefect.logging import get_logger
from prefect.logging.configuration import setup_logging
from infra.orchestrator.flow_runs import begin_flow_run_logs
setup_logging()
begin_flow_run_logs()
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
get_logger("engine").warning("nobody reads this")
Path(sys.argv[1]).write_text("went on")
"""


@pytest.mark.parametrize("under_worker", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_a_flow_run_goes_on_when_nobody_reads_its_console(under_worker: bool, tmp_path: Path) -> None:
    environment = {**os.environ, **({FLOW_RUN: "x"} if under_worker else {})}
    command = [sys.executable, "-c", GOES_ON, str(tmp_path / "done")]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr.readline() == b"ready\n"
        process.stderr.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait(480)
    assert (tmp_path / "done").exists() == under_worker, "without it, this would not be a test"


LOGS = """
import logging
import sys
from prefect.logging import get_logger
from prefect.logging.configuration import setup_logging
from infra.orchestrator.flow_runs import begin_flow_run_logs
from infra.telemetry import begin_json_logs
setup_logging()
if "worker" in sys.argv:
    get_logger("workers.process").info("submitted", extra={"flow_run_id": "another"})
begin_flow_run_logs()
begin_json_logs("trainwright", run="r1", pipeline="tiny")
logging.getLogger("trainwright").info("of ours")
get_logger("flow_runs").info("of Prefect's")
logging.getLogger("a.library").warning("of a library's")
"""
IN_FLOW_RUN = {"run": "r1", "pipeline": "tiny", "flow_run": ID}


@pytest.mark.parametrize("settings", [True, False])
def test_a_flow_run_logs_each_line_once_in_json(settings: bool) -> None:
    asked = {LOG_FORMAT: "json", FLOW_RUN: ID, "PREFECT_LOGGING_TO_API_ENABLED": "false"}
    asked |= {"PREFECT_LOGGING_LEVEL": "INFO", **({SETTINGS: str(PREFECT_IN_JSON)} if settings else {})}
    command = [sys.executable, "-c", LOGS, *(["worker"] if settings else [])]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line["time"].endswith("+00:00") for line in lines)
    ours = [(line["logger"], line["message"]) for line in lines if line["flow_run"] == ID]
    assert ours == [
        ("trainwright", "of ours"),
        ("prefect.flow_runs", "of Prefect's"),
        ("a.library", "of a library's"),
    ]
    assert all(line.items() >= IN_FLOW_RUN.items() for line in lines if line["flow_run"] == ID)
    assert [line["message"] for line in lines if line["flow_run"] == "another"] == ["submitted"] * settings


def test_a_server_that_takes_no_lines_leaves_them_in_json() -> None:
    asked = {LOG_FORMAT: "json", FLOW_RUN: ID, SETTINGS: str(PREFECT_IN_JSON), "PREFECT_LOGGING_TO_API_ENABLED": "true"}
    asked |= {"PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore", "PREFECT_LOGGING_LEVEL": "INFO"}
    with serving(lambda request: (404 if request.path == "/api/csrf-token" else 500, {})) as (address, requests):
        environment = {**os.environ, **asked, "PREFECT_API_URL": f"{address}/api"}
        done = subprocess.run([sys.executable, "-c", LOGS], env=environment, capture_output=True, text=True, check=True)
    assert "/api/logs/" in {request.path for request in requests}
    messages = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert messages == ["of ours", "of Prefect's", "of a library's"]


def test_the_settings_in_json_have_all_loggers_of_prefects_own() -> None:
    own = yaml.safe_load(DEFAULT_LOGGING_SETTINGS_PATH.read_text())
    assert yaml.safe_load(PREFECT_IN_JSON.read_text())["loggers"].keys() == own["loggers"].keys()
