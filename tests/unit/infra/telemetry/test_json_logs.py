"""Logs in JSON: one line for each record, with where it comes from; text stays the default."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.gang import Launch
from infra.gang.ranks import origin_env
from infra.telemetry import (
    LOG_FIELDS,
    LOG_FORMAT,
    TRACEPARENT,
    JsonFormatter,
    begin_json_logs,
    fields_env,
    json_asked,
    new_context,
)

NAME = "trainwright.test_of_json_logs"


@pytest.fixture(autouse=True)
def logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    monkeypatch.setenv(LOG_FORMAT, "json")
    log = logging.getLogger(NAME)
    log.propagate = False
    yield log
    log.handlers.clear()


def test_a_line_says_where_it_comes_from(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, stream = new_context(), io.StringIO()
    monkeypatch.setenv(TRACEPARENT, str(trace))
    monkeypatch.setenv(LOG_FIELDS, '{"run": "r1", "generation": 2, "node": 1}')
    begin_json_logs(NAME, stream, rank=3)
    logger.warning("step %d of\x1b[31m\n%s", 7, "ten")
    [line] = stream.getvalue().splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning",
        "logger": NAME,
        "message": "step 7 of\x1b[31m\nten",
        **{"run": "r1", "generation": 2, "node": 1, "rank": 3},
        **{"trace_id": trace.trace, "span_id": trace.span},
    }
    assert "\x1b" not in line


def test_an_exception_is_in_its_line_and_more_fields_join(logger: logging.Logger) -> None:
    stream = io.StringIO()
    begin_json_logs(NAME, stream, run="r1")
    begin_json_logs(NAME, stream, run="r2", pipeline="tiny")
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    [line] = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["run"], found["pipeline"]) == ("r2", "tiny")
    assert found["exception"].endswith("ValueError: no")


def test_text_is_the_default_and_nothing_else_is_known(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json_asked()
    assert fields_env(node=1) == {LOG_FIELDS: '{"node": 1}'}
    for text in ("", "text"):
        monkeypatch.setenv(LOG_FORMAT, text)
        begin_json_logs(NAME)
        assert (json_asked(), fields_env(node=1)) == (False, {})
        assert not any(isinstance(one.formatter, JsonFormatter) for one in logger.handlers)
    monkeypatch.setenv(LOG_FORMAT, "xml")
    with pytest.raises(UsageError, match="TRAINWRIGHT_LOG_FORMAT is neither text nor json"):
        json_asked()


def test_a_node_tells_its_ranks() -> None:
    launch = Launch(training="trainings/k-0", generation=2, nodes=2, devices=1, provenance={"run_id": "r1"})
    assert json.loads(origin_env(launch, 1)[LOG_FIELDS]) == {"run": "r1", "generation": 2, "node": 1}


def test_a_command_that_fails_says_so_in_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "plan", str(tmp_path / "none.yaml")]
    env = {**os.environ, LOG_FORMAT: "json", "TRAINWRIGHT_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, lines[-1]["level"], lines[-1]["logger"]) == (2, "error", "trainwright")
    assert "none.yaml" in lines[-1]["message"]
