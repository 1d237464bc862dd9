"""A run shows its metrics while it is carried out, and continues where that is not possible."""

from __future__ import annotations

import http.client
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from infra.store import open_store
from infra.traces import METRICS_PORT, metrics_token
from tasks.run.progress import StageBegan, notify
from tasks.run.run import Run
from tasks.telemetry import observed, refuse_wrong_settings
from tests.support.prometheus import free_port
from tests.support.runs import make_run
from tests.unit.tasks.telemetry.test_watched_run import at_work

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    pooled = {"train": {"launcher": "work-pool", "pool": "gpus"}}
    return at_work(make_run(open_store(str(tmp_path / "store")), spec=pooled))


def test_metrics_are_there_while_the_run_works_and_gone_after_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv(METRICS_PORT, str(port))

    def scrape() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {metrics_token()}"})
        return connection.getresponse().read().decode()

    def work(run: Run) -> Any:
        notify(StageBegan("train", "tiny", "r1"))
        return scrape()

    labels = 'pipeline="tiny",pool="gpus",queue="",stage="train"'
    assert f"trainwright_stage_running{{{labels}}} 1.0" in observed(work)(run)  # type: ignore[operator]
    with pytest.raises(ConnectionRefusedError):
        scrape()


def test_a_port_that_is_taken_is_named_and_the_run_continues(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken, caplog.at_level(logging.WARNING):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv(METRICS_PORT, str(taken.getsockname()[1]))
        done: Any = observed(lambda run: "done")(run)  # type: ignore[arg-type, return-value]
    assert done == "done"
    [record] = caplog.records
    assert record.message.startswith("No metrics are shown: no port of TRAINWRIGHT_METRICS_PORT is free on 127.0.0.1")


def test_wrong_settings_are_left_to_the_runs_checks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_PORT, "many")
    assert observed(lambda run: "done")(run) == "done"  # type: ignore[arg-type, return-value, comparison-overlap]
    with pytest.raises(UsageError, match="TRAINWRIGHT_METRICS_PORT"):
        refuse_wrong_settings()
