"""A failure is not reported over what a newer execution of the flow run reports, wherever it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from prefect.exceptions import Abort, TerminationSignal
from prefect.states import Completed, Running, State

from data_contracts.errors import Cancelled, StorageUnavailable, UsageError
from data_contracts.run_report import RunReport
from flows import flow_runs
from infra.processes.environment import FLOW_RUN
from infra.store import Store, layout
from infra.store.lease import Lease, LeaseKeeper
from tasks.run.run import Run
from tests.support.runs import make_run

PLACE = layout.lease(layout.run("r"))
ENDED, AT_IT = Completed(name="Promoted"), Running()


@pytest.fixture
def run(store: Store) -> Run:
    return make_run(store, run_id="r", recorded=False, spec={"retry": {"server_wait_s": 0.1}})


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what Prefect says about this flow run: how often it was executed, and its state."""
    newest = SimpleNamespace(run_count=1, state=AT_IT)

    @contextmanager
    def asking(retries: int) -> Iterator[Any]:
        yield SimpleNamespace(read_flow_run=lambda run_id: newest)

    context = SimpleNamespace(flow_run=SimpleNamespace(id="f", run_count=1))
    monkeypatch.setattr(flow_runs, "FlowRunContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setattr(flow_runs, "asking", asking)
    monkeypatch.setattr(flow_runs, "stage_artifact", lambda *page: None)
    monkeypatch.setattr(flow_runs, "NEWER_S", 0.4)
    monkeypatch.setattr(flow_runs, "ASK_S", 0.02)

    def again(state: State) -> None:
        newest.run_count, newest.state = 2, state

    return again


no_spec = Mock(side_effect=UsageError("the spec is gone"))
a_bug = Mock(side_effect=ZeroDivisionError)
fails = Mock(
    return_value=RunReport(run_id="r", pipeline="tiny", verdict="failed", exit_code=5, sentence="as asked", stages=[])
)


def test_a_failure_of_the_only_execution_is_reported(executed: Any, run: Run) -> None:
    with pytest.raises(UsageError, match="the spec is gone"):
        flow_runs.end_of(no_spec, fails)
    with pytest.raises(ZeroDivisionError):
        flow_runs.end_of(lambda: run, a_bug)
    assert flow_runs.end_of(lambda: run, fails).is_failed()


@pytest.mark.parametrize("failing", ["opening", "bug", "report"])
def test_every_failure_is_left_to_a_newer_execution_that_has_ended(executed: Any, run: Run, failing: str) -> None:
    executed(ENDED)
    with pytest.raises(Abort, match="as its newer execution reports"):
        flow_runs.end_of(no_spec if failing == "opening" else lambda: run, a_bug if failing == "bug" else fails)


def test_a_newer_execution_that_carries_the_run_out_will_report_it(
    executed: Any, run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_runs, "NEWER_S", 300)
    executed(AT_IT)
    keeper = LeaseKeeper(store, PLACE, "newer", renew_s=0.1)
    keeper.start()
    try:
        assert keeper.token(60) is not None
        with pytest.raises(Abort):
            flow_runs.end_of(lambda: run, fails)
    finally:
        keeper.stop()


@pytest.mark.parametrize("holder", [None, "killed elsewhere"])
def test_a_failure_is_reported_if_the_newer_execution_was_killed(
    executed: Any, run: Run, store: Store, holder: str | None
) -> None:
    executed(AT_IT)
    if holder is not None:
        Lease.take(store, PLACE, holder)
    assert flow_runs.end_of(lambda: run, fails).is_failed()
    with pytest.raises(UsageError):
        flow_runs.end_of(no_spec, fails)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("tiny 20261125-010203-0a1b2c", True), ("tiny 20261125-010203-0a1b2c 2026-W48", True), ("meek-walrus", False)],
)
def test_a_flow_run_that_is_executed_again_keeps_the_name_that_says_which_run_it_is(
    name: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {"spec": str(tmp_path / "nightly.yaml")}
    context = SimpleNamespace(flow_run=SimpleNamespace(name=name, parameters=parameters))
    monkeypatch.setattr(flow_runs, "FlowRunContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setattr(flow_runs, "flow_run", SimpleNamespace(parameters=parameters))
    assert flow_runs.flow_name() == (name if kept else "nightly")


def by_signal(signal: BaseException) -> Cancelled:
    """What a stage makes of an exception that ends it."""
    stopped = Cancelled("The run was stopped during train.")
    stopped.__cause__ = signal
    return stopped


@pytest.mark.parametrize("wrapped", [by_signal, lambda error: error], ids=["in a stage", "between stages"])
@pytest.mark.parametrize(
    ("end", "under_worker", "cancelled", "is_crash"),
    [
        (SystemExit(1), False, False, True),
        (SystemExit(1), True, False, True),
        (TerminationSignal(15), True, False, True),
        (TerminationSignal(15), True, True, False),
        (KeyboardInterrupt(), True, False, True),
        (KeyboardInterrupt(), False, False, False),
        (ZeroDivisionError(), True, False, False),
        (httpx.ConnectError("refused"), True, False, True),
        (httpx.ConnectError("refused"), False, False, False),
        (StorageUnavailable("away"), True, False, False),
    ],
)
def test_what_neither_a_person_nor_a_failure_ended_is_a_crash(
    wrapped: Any,
    end: BaseException,
    under_worker: bool,
    cancelled: bool,
    is_crash: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_runs, "was_cancelled", lambda: cancelled)
    monkeypatch.delenv(FLOW_RUN, raising=False)
    if under_worker:
        monkeypatch.setenv(FLOW_RUN, "x")
    assert flow_runs.crash_in(wrapped(end)) is (end if is_crash else None)


def test_a_stop_between_two_stages_is_a_cancel() -> None:
    assert flow_runs.as_error(KeyboardInterrupt()).exit_code == Cancelled.exit_code
