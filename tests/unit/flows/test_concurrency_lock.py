"""Which flow runs take the concurrency lock, and how they end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from prefect.exceptions import Abort
from prefect.states import Cancelled, Completed, State

from flows import flow_runs, retrain
from infra.stopping import HandedOver
from infra.store import Store, layout
from tasks.run.run import Run
from tasks.schedules import ConcurrencyLock, Skipped
from tests.support.runs import make_run
from tests.support.tiny import SPEC, SUITE, write_project

AT = datetime(2026, 11, 25, 3, tzinfo=UTC)


def started(patch: pytest.MonkeyPatch, trigger: str) -> None:
    patch.setattr(flow_runs, "started_by", lambda _: {"key": "k", "trigger": trigger, "scheduled": AT})


@pytest.mark.parametrize(
    ("trigger", "schedule", "takes"),
    [
        ("schedule", {"overlap": "skip"}, True),
        ("automation", {"overlap": "queue"}, True),
        ("schedule", {}, False),
        ("ui", {"overlap": "skip"}, False),
        ("cli", {"overlap": "skip"}, False),
        ("ci", {"overlap": "skip"}, False),
    ],
)
def test_a_run_that_nobody_started_by_hand_takes_the_lock(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, trigger: str, schedule: dict[str, str], takes: bool
) -> None:
    spec = write_project(tmp_path / "tiny", {"schedule": schedule})
    started(monkeypatch, trigger)
    lock = flow_runs.concurrency_lock(str(spec), "", None, None)
    assert (lock is not None) == takes
    if lock is not None:
        assert (lock.pipeline, lock.overlap, lock.waits, lock.scheduled_s) == (
            "tiny", schedule["overlap"], False, int(AT.timestamp()),
        )  # fmt: skip
        lock.store.create_json(layout.trigger("k"), {"schema_version": 1, "run_id": "r"})
        assert flow_runs.concurrency_lock(str(spec), "", None, None).waits, "it continues a run"


def test_what_is_wrong_with_a_spec_is_left_to_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, "schedule")
    assert flow_runs.concurrency_lock(str(tmp_path / "missing.yaml"), "", None, None) is None


def test_a_spec_that_changes_while_it_waits_for_its_turn_is_read_again(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(seed: int, suite: str) -> Path:
        sections = {"schedule": {"overlap": "queue"}, "train": {**SPEC["train"], "seed": seed}}
        spec = write_project(tmp_path / "tiny", sections)
        (spec.parent / "suite.json").write_text(json.dumps({**SUITE, "name": suite}))
        return spec

    @contextlib.contextmanager
    def hold(*_: Any) -> Iterator[Event]:
        write(2, "after")
        yield Event()

    opened: list[Run] = []

    def end(open_it: Callable[[], Run], _: Any) -> State[Any]:
        opened.append(open_it())
        return Completed()

    spec = write(1, "before")
    started(monkeypatch, "schedule")
    monkeypatch.setattr(ConcurrencyLock, "hold", hold)
    monkeypatch.setattr(flow_runs, "flow_run", SimpleNamespace(parameters={"spec": str(spec)}))
    monkeypatch.setattr(retrain, "started_by", flow_runs.started_by)
    monkeypatch.setattr(retrain, "begin_flow_run_logs", lambda: None)
    monkeypatch.setattr(retrain, "end_of", end)
    assert flow_runs.flow_name() == "tiny"
    retrain.retrain.fn(str(spec))
    [run] = opened
    assert (run.spec.train.seed, run.resolved.suite["name"]) == (2, "after")


class _Lock:
    """A turn that was asked to end, or that is skipped."""

    def __init__(self, skipped: bool = False, asked: bool = False) -> None:
        self._skipped, self._asked = skipped, asked

    @contextlib.contextmanager
    def hold(self, _: Any) -> Iterator[Any]:
        if self._skipped:
            raise Skipped("An earlier run of tiny is unfinished (schedule.overlap: skip).")
        yield SimpleNamespace(is_set=lambda: self._asked)


def end(lock: _Lock | None, work: Any) -> State[Any]:
    return flow_runs.with_lock(cast(ConcurrencyLock | None, lock), work)


def test_a_run_that_waits_for_its_turn_is_given_to_another_worker() -> None:
    with pytest.raises(Abort, match="stopped as planned"):
        end(_Lock(), Mock(side_effect=HandedOver("The worker was stopped as planned.")))


def test_how_a_flow_run_ends() -> None:
    interrupted, cancelled = Mock(side_effect=KeyboardInterrupt), Cancelled(message="The run was stopped during train.")
    skipped = end(_Lock(skipped=True), interrupted)
    assert (skipped.name, skipped.type.value) == ("Skipped", "COMPLETED")
    assert skipped.message == "An earlier run of tiny is unfinished (schedule.overlap: skip)."
    assert end(None, lambda: cancelled) is cancelled
    assert end(_Lock(), lambda: cancelled) is cancelled
    assert str(end(_Lock(asked=True), lambda: cancelled).message).endswith("A newer run took its place "
                                                                        "(schedule.overlap: cancel_old).")  # fmt: skip
    assert end(_Lock(asked=True), lambda: Completed(name="Promoted")).name == "Promoted", "it had ended before"
    assert end(_Lock(asked=True), interrupted).is_cancelled()
    with pytest.raises(KeyboardInterrupt):
        end(_Lock(), interrupted)


@pytest.mark.parametrize(("overlap", "by", "now", "waits"), [
    ("queue", "schedule", "ui", True), ("skip", "automation", "ui", True),
    (None, "schedule", "ui", False), ("queue", "cli", "ui", False), ("queue", "schedule", "cli", False),
])  # fmt: skip
def test_a_continued_run_waits_for_its_turn_unless_a_person_continues_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, overlap: str | None, by: str, now: str, waits: bool
) -> None:
    started(monkeypatch, now)
    run = make_run(store, spec={"schedule": {"overlap": overlap}}, trigger=by)
    assert flow_runs.work_with_lock(lambda _: cast(Any, store.list("schedules")), run) == (["tiny"] if waits else [])
