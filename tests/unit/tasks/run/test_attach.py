"""One run, one process at a time: who comes second waits, and who comes after a death goes on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import (
    Cancelled,
    ContractRejected,
    NodeLost,
    SpecError,
    StorageUnavailable,
    UsageError,
    UserCodeError,
)
from data_contracts.executions import RunNames
from data_contracts.run_report import RunReport
from infra.orchestrator import events
from infra.stopping import STOP_FILE, HandedOver
from infra.store import layout
from infra.store.lease import LeaseKeeper
from tasks.run import executions as attach_module
from tasks.run.executions import attach, num_crashed
from tasks.run.report import report
from tasks.run.resolve import RunOptions, ci_key
from tasks.run.run import Run, open_run, reopen_run
from tasks.run.spec_check import read_spec
from tests.support.damage import overwrite
from tests.support.pool import until
from tests.support.tiny import SPEC, write_project, write_rows

pytestmark = pytest.mark.usefixtures("home")


class Line:
    """In place of the stages: ends as `errors` say, one after the other, and counts how often it was asked."""

    def __init__(self, *errors: Exception, gate: threading.Event | None = None) -> None:
        self.errors, self.gate, self.calls = list(errors), gate, 0
        self.begun = threading.Event()

    def __call__(self, run: Run) -> RunReport:
        self.calls += 1
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(300)
        return report(run, error=self.errors.pop(0))  # type: ignore[arg-type]

    __name__ = "line"


def opened(spec: Path, key: str = "k") -> Run:
    return open_run(read_spec(spec), options=RunOptions(key=key, trigger="ci"))


def test_a_final_verdict_is_answered_at_once_even_while_the_lease_is_held(spec: Path) -> None:
    line = Line(ContractRejected("no"))
    first = attach(line)(opened(spec))
    run = opened(spec)
    holder = LeaseKeeper(run.store, layout.lease(layout.run(run.run_id)), "another")
    holder.start()
    assert holder.token(60) is not None
    assert attach(line)(run) == first
    holder.stop()
    assert line.calls == 1


def test_a_process_that_waits_ends_when_its_worker_is_stopped_as_planned(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, line = opened(spec), Line()
    keeper = LeaseKeeper(run.store, layout.lease(layout.run(run.run_id)), "first", renew_s=0.05)
    keeper.start()
    assert keeper.token(60) == 0
    (tmp_path / "stop").touch()
    monkeypatch.setenv(STOP_FILE, str(tmp_path / "stop"))
    try:
        with pytest.raises(HandedOver):
            attach(line)(run)
    finally:
        keeper.stop()
    assert line.calls == 0


@pytest.mark.parametrize(("handed_over", "crashes"), [(True, 0), (False, 1)])
def test_a_run_that_was_handed_over_has_not_crashed(
    handed_over: bool, crashes: int, spec: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end = HandedOver("stopped as planned") if handed_over else KeyboardInterrupt()
    with pytest.raises(type(end)):
        attach(Mock(side_effect=end))(opened(spec))
    run = opened(spec)
    assert attach(Line(ContractRejected("no")))(run).verdict == "rejected"
    assert num_crashed(run.store, run.run_id) == crashes
    assert ("(crashed)" in caplog.text) == bool(crashes)


def test_what_ended_without_a_verdict_goes_on(spec: Path) -> None:
    line = Line(NodeLost("gone"), ContractRejected("no"))
    assert [attach(line)(opened(spec)).verdict for _ in range(3)] == ["failed", "rejected", "rejected"]
    assert line.calls == 2


def test_each_end_writes_down_what_the_run_names_and_damage_ends_nothing(spec: Path) -> None:
    run = opened(spec)
    folder = layout.run(run.run_id)
    with pytest.raises(HandedOver):
        attach(Mock(side_effect=HandedOver("stopped as planned")))(run)
    assert run.store.list(f"{folder}/names") == []
    assert attach(Line(NodeLost("gone")))(run).verdict == "failed"
    noted = run.store.read_as(layout.run_names(run.run_id, 1), RunNames.from_json)
    assert run.resolved.code.uri in noted.names
    assert {layout.trigger("k"), layout.resolved(run.run_id), layout.run_attempt(run.run_id, 0)} < noted.covers.keys()
    execution = Path(run.store.uri, layout.execution(run.run_id, 1))
    overwrite(execution, execution.read_bytes()[:-9])
    assert attach(Line(ContractRejected("no")))(reopen_run(run.run_id, run.store.uri)).verdict == "rejected"
    assert run.store.list(f"{folder}/names") == ["1.json"]


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (ContractRejected("no"), 1),
        (UserCodeError("raised"), 1),
        (Cancelled("stopped"), 1),
        (NodeLost("gone"), 2),
    ],
)
def test_the_second_answers_the_report_of_the_first_unless_its_cause_lay_outside(
    spec: Path, caplog: pytest.LogCaptureFixture, error: Exception, calls: int
) -> None:
    """The second comes and waits before the first goes on."""
    caplog.set_level("INFO")
    line = Line(error, error, gate=threading.Event())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: attach(line)(opened(spec)))
        assert line.begun.wait(480)
        second = pool.submit(lambda: attach(line)(opened(spec)))
        until(lambda: "another process carries out the run" in caplog.text or second.done())
        assert not second.done(), "it did not wait"
        line.gate.set()
    answers = [first.result(), second.result()]
    assert line.calls == calls
    assert [one.sentence for one in answers] == [str(error)] * 2
    # Reports of one second may be equal, so only the two answers of one report are compared.
    assert calls == 2 or answers[0] == answers[1]


def test_a_key_of_another_pipelines_run_is_refused(spec: Path) -> None:
    first = opened(spec)
    other = spec.with_name("other.yaml")
    other.write_text(spec.read_text().replace("name: tiny", "name: other"))
    words = rf"'k' is of the run {first.run_id} of the pipeline 'tiny', so 'other' .*another --key"
    with pytest.raises(UsageError, match=words):
        opened(other)
    assert opened(spec).run_id == first.run_id
    # A flow run's own key is of no other pipeline: this one was renamed between two executions.
    assert opened(spec, "flow-run:1").run_id == opened(other, "flow-run:1").run_id


def test_a_second_process_needs_no_source_of_the_run_that_it_opens(spec: Path) -> None:
    first = opened(spec)
    (spec.parent / "rows.csv").unlink()
    (spec.parent / "net.py").write_text("class Other: ...\n")
    assert opened(spec).resolved == first.resolved
    with pytest.raises(SpecError, match=r"net\.Net"):
        opened(spec, "another")


def test_the_key_of_ci_is_the_content_of_every_input_wherever_it_lies(tmp_path: Path) -> None:
    sets = {"second": {"source": "second.csv"}}

    def key(folder: str, **changed: Any) -> str:
        spec = write_project(tmp_path / folder, {"evaluate": {**SPEC["evaluate"], "sets": sets}})
        write_rows(spec.parent / "second.csv", rows=20)
        for name, change in changed.items():
            change(spec.parent / name.replace("_", "."))
        return ci_key(open_run(read_spec(spec), options=RunOptions(trigger="ci"), recorded=False).resolved)

    def mend(path: Path) -> None:
        path.write_text(path.read_text().replace("0.", "0.0", 1))

    def renew(path: Path) -> None:
        path.write_text(path.read_text().replace('"max_value": 1', '"max_value": 2'))

    first = key("a")
    assert key("b") == first
    changed = [key("c", rows_csv=mend), key("d", second_csv=mend), key("e", suite_json=renew)]
    assert len({first, *changed}) == 4


def test_a_run_whose_store_takes_nothing_says_so_in_its_log_and_to_prefect(
    spec: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(events, "send", lambda *event: told.append(event))
    monkeypatch.setattr(attach_module, "LeaseKeeper", partial(LeaseKeeper, renew_s=0.01))
    run = opened(spec)
    real = run.store._backend.replace

    sentence = f"{layout.lease(layout.run(run.run_id))} in the store {run.store.uri} cannot be written"
    full = Mock(side_effect=StorageUnavailable(f"{sentence} (No space left on device)."))

    def line(run: Run) -> RunReport:
        monkeypatch.setattr(run.store._backend, "replace", full)
        until(lambda: told)
        monkeypatch.setattr(run.store._backend, "replace", real)
        return report(run, error=NodeLost("gone"))

    assert attach(line)(run).verdict == "failed"
    ((event, _, payload, _, pipeline),) = told
    assert (event, pipeline, payload["run_id"], payload["cause"]) == (events.STALLED, "tiny", run.run_id, "storage")
    assert payload["sentence"].startswith(sentence)
    assert payload["subject"] == "tiny: a run waits for its store"
    assert f"{run.run_id} waits: {sentence} (No space left on device)." in caplog.text
