"""Which flow runs wait for a better hour, and what they leave to Prefect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.exceptions import Abort

from flows import flow_runs, retrain
from infra.prices import VARIABLE
from infra.store import layout, open_store
from tests.support.tiny import SPEC, write_project

NOW = datetime.now(UTC)
SOON = (NOW + timedelta(hours=2)).replace(minute=0, second=0, microsecond=0)
HOURS = f"{SOON.hour:02}-{SOON.hour + 1:02}"
BOOK = f'version: 1\nhours: [{{date: 2026-01-01, hours: "{HOURS}", price: 0.5, g_per_kwh: 120}}]\n'


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The states that Prefect was asked for, by a scheduled flow run of a deployment."""
    asked: list[Any] = []

    @contextlib.contextmanager
    def asking(retries: int = 0) -> Iterator[Any]:
        yield SimpleNamespace(set_flow_run_state=lambda flow_run, state: asked.append((flow_run, state)))

    monkeypatch.setattr(flow_runs, "asking", asking)
    monkeypatch.setattr(flow_runs, "deployed_flow_run", lambda: SimpleNamespace(id="f"))
    monkeypatch.setattr(flow_runs, "started_by", lambda _: {"key": "k", "trigger": "schedule", "scheduled": NOW})
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "book.yaml"))
    (tmp_path / "book.yaml").write_text(BOOK)
    return asked


def wait(tmp_path: Path, within: str | None = "6h") -> None:
    spec = write_project(tmp_path / "tiny", {"schedule": {"within": within} if within else {}})
    flow_runs.wait_for_hour(str(spec), "", None, None)


def test_it_is_scheduled_again_for_the_best_hour(tmp_path: Path, states: list[Any]) -> None:
    with pytest.raises(Abort, match="the best hour within 6h of its time .50% of the usual price and 120 g of CO2"):
        wait(tmp_path)
    [(flow_run, state)] = states
    assert (flow_run, state.type.value, state.state_details.scheduled_time) == ("f", "SCHEDULED", SOON)


def test_a_spec_that_changes_until_that_hour_is_read_again(
    tmp_path: Path, states: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(seed: int, within: str) -> str:
        sections = {"schedule": {"within": within}, "train": {**SPEC["train"], "seed": seed}}
        return str(write_project(tmp_path / "tiny", sections))

    monkeypatch.setattr(retrain, "started_by", flow_runs.started_by)
    monkeypatch.setattr(retrain, "begin_flow_run_logs", lambda: None)
    monkeypatch.setattr(retrain, "end_of", lambda opened, work: opened())
    with pytest.raises(Abort):
        retrain.retrain.fn(write(1, "6h"))
    run: Any = retrain.retrain.fn(write(2, "1m"))
    assert run.spec.train.seed == 2


def test_a_person_waits_for_nothing(tmp_path: Path, states: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for trigger in ("cli", "ci", "ui"):
        monkeypatch.setattr(flow_runs, "started_by", lambda _, by=trigger: {"key": "k", "trigger": by})
        wait(tmp_path / trigger)
    assert not states


@pytest.mark.parametrize("within", [None, "1m"])
def test_without_a_better_hour_it_starts_at_once(tmp_path: Path, states: list[Any], within: str | None) -> None:
    wait(tmp_path, within)
    assert not states


def test_a_run_that_has_begun_goes_on(tmp_path: Path, states: list[Any]) -> None:
    store = open_store(str(tmp_path / "tiny" / ".trainwright"))
    store.create_json(layout.trigger("k"), {"schema_version": 1, "run_id": "r"})
    wait(tmp_path)
    assert not states


def test_a_run_whose_time_is_long_past_starts_at_once(
    tmp_path: Path, states: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = {"key": "k", "trigger": "automation", "scheduled": NOW - timedelta(hours=6)}
    monkeypatch.setattr(flow_runs, "started_by", lambda _: late)
    wait(tmp_path)
    assert not states


def test_a_server_or_a_book_that_fails_delays_nothing(
    tmp_path: Path, states: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(retries: int = 0) -> Any:
        raise ConnectionError("away")

    monkeypatch.setattr(flow_runs, "asking", away)
    wait(tmp_path)
    assert "so it starts now" in caplog.text
    (tmp_path / "book.yaml").write_text("version: 1\nhours: 5\n")  # the flow itself reports it
    wait(tmp_path)
    assert not states
