"""A reaper and real leases of real processes: who is resumed, how often, and who is left alone."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import (
    AWAY,
    SERVER,
    Cancelled,
    Fenced,
    GateNotMet,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
)
from data_contracts.executions import Crash, Execution, FlowRunState
from data_contracts.messages.commands import REAP, Reaped
from data_contracts.run_report import RunReport
from infra import child
from infra.store import Lease, layout
from infra.store.folder import FolderBackend
from infra.store.lease import held_lease
from tasks.run import executions
from tasks.run.executions import attach, num_ends, reap, reap_apart, reap_stores
from tasks.run.report import latest_report, report
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tests.support.damage import overwrite
from tests.support.processes import a_process, identified
from tests.support.reap_child import DEADLY
from tests.support.reaped import Site
from tests.support.tiny import write_project

FLOW_RUN = "0b4e9a5c-8f0d-4b6e-9a55-1f2d3c4b5a69"
# How long the lease of a process that lives may stand still, such as while its disk is slow.
LONG_S = 120.0


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny project with a run that was opened; it is copied for each test."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWRIGHT_HOME", str(folder / "home"))
        open_run(
            read_spec(write_project(folder / "tiny", {"retry": {"crashed": 2}})),
            options=RunOptions(key="k", trigger="ci"),
        )
    return folder / "tiny"


@pytest.fixture
def site(project: Path, tmp_path: Path, home: Path) -> Site:
    shutil.copytree(project, tmp_path / "tiny")
    return Site(open_run(read_spec(tmp_path / "tiny" / "pipeline.yaml"), options=RunOptions(key="k", trigger="ci")))


@pytest.fixture
def other(site: Site, tmp_path: Path) -> Site:
    """Another run in the same store."""
    return Site(open_run(read_spec(tmp_path / "tiny" / "pipeline.yaml"), options=RunOptions(key="other", trigger="ci")))


@contextlib.contextmanager
def renewed(lease: Lease) -> Iterator[None]:
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(0.02):
            lease.renew()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_run_that_lives_is_never_touched(site: Site) -> None:
    lease = site.begin()
    with renewed(lease):
        assert site.reaped(LONG_S) == []
    lease.confirm()
    assert (site.crashes, site.prefect.asked) == ([], [])


def test_a_dead_run_is_resumed_and_its_training_is_free_at_once(site: Site) -> None:
    other, training = "trainings/other-0", "trainings/k-0"
    Lease.take(site.store, layout.lease(other), "somebody")
    site.store.create_once(layout.slot(training, "aa"), b"gpu")
    site.dies(training=training)
    (one,) = site.reaped()
    assert (one.what, one.run_id) == ("resumed", site.run.run_id)
    assert "crash 1; 2 are retried in a row" in one.sentence
    assert [(crash.n, crash.token, crash.ends) for crash in site.crashes] == [(0, 1, 0)]
    leases = site.path, layout.lease(training), layout.lease(other)  # whoever resumes it need not wait
    assert [held_lease(site.store, lease) is None for lease in leases] == [True, True, False]
    assert (site.prefect.released, site.prefect.ended) == (["aa"], [training])
    assert site.reaped() == [], "a worker is about to take it"
    assert site.begin().token == 2


def test_a_run_that_ended_for_want_of_the_server_is_resumed_within_the_budget(site: Site) -> None:
    def ends(error: StorageUnavailable) -> None:
        lease = site.begin()
        report(site.run, error=error)
        lease.release()

    for n in range(2):
        ends(StorageUnavailable("The Prefect server no longer answers.", details={AWAY: SERVER}))
        (one,) = site.reaped()
        assert one.what == "resumed"
        assert f"lacked the Prefect server (crash {n + 1}; 2 are retried" in one.sentence
        assert site.reaped() == [], "a worker is about to take it"
    ends(StorageUnavailable("The Prefect server no longer answers.", details={AWAY: SERVER}))
    (one,) = site.reaped()
    assert one.what == "ended"
    assert "ended because the Prefect server was away, and the run was resumed 2 times" in one.sentence
    ends(StorageUnavailable("The store does not answer."))
    assert site.reaped() == [], "a person looks at the store"


def test_a_run_that_dies_again_and_again_ends_with_its_cause_and_a_person_begins_anew(site: Site) -> None:
    for n in range(2):
        site.dies()
        assert ([one.what for one in site.reaped()], len(site.crashes)) == (["resumed"], n + 1)
    site.dies()
    (one,) = site.reaped()
    assert (one.what, site.prefect.told) == ("ended", [one.sentence])
    found = latest_report(site.store, site.run.run_id)
    assert (found.verdict, found.exit_code, (found.error or {})["cause"]) == ("failed", 5, "crashed")
    assert "was resumed 2 times (retry.crashed: 2)" in found.sentence
    assert (site.reaped(), len(site.crashes)) == ([], 2)
    site.dies()  # a person resumed it
    assert [one.what for one in site.reaped()] == ["resumed"]
    assert [(crash.n, crash.ends) for crash in site.crashes] == [(0, 0), (1, 0), (2, 1)]


@pytest.mark.parametrize(
    "end",
    [SystemExit(1), KeyboardInterrupt(), MemoryError(), StorageUnavailable("away")],
    ids=lambda end: type(end).__name__,
)
def test_a_run_that_ended_without_a_word_is_resumed_whatever_ended_it(site: Site, end: BaseException) -> None:
    with pytest.raises(type(end)):
        attach(Mock(side_effect=end))(site.run)
    assert [one.what for one in site.reaped()] == ["resumed"]


def test_a_run_that_said_how_it_ended_is_left_alone(site: Site) -> None:
    def work(run: Run) -> RunReport:
        report(run, error=UsageError("The spec is wrong."))
        raise UsageError("The spec is wrong.")

    with pytest.raises(UsageError):
        attach(work)(site.run)
    assert (held_lease(site.store, site.path), site.reaped()) == (None, [])


def test_a_process_that_attached_ends_without_a_word_after_the_other_had_failed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure of the process that it waited for, which asks for a retry, is not the end of its own work."""
    lease = site.begin()

    def ended_by_the_other(_: str) -> None:
        report(site.run, error=StorageUnavailable("away"))
        lease.release()

    monkeypatch.setattr("tasks.run.executions.log", SimpleNamespace(info=lambda text, *_: ended_by_the_other(text)))
    with pytest.raises(SystemExit):
        attach(Mock(side_effect=SystemExit(1)))(site.run)
    assert [one.what for one in site.reaped()] == ["resumed"]


def test_a_run_whose_process_died_before_it_took_the_lease_is_resumed(site: Site) -> None:
    assert (site.store.pointer(site.path).read(), [one.what for one in site.reaped()]) == (None, ["resumed"])
    assert [(crash.n, crash.token, crash.flow_run) for crash in site.crashes] == [(0, 0, None)]
    assert site.reaped() == [], "a worker is about to take it"
    assert site.begin().token == 1


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Whether `work`, in a process of its own, was killed before (even steps) or after one of the store's writes."""
    if child := os.fork():
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in (0, -signal.SIGKILL), "its traceback is in the output"
        return ended != 0
    try:
        steps = itertools.count()

        def struck(write: Callable[..., Any]) -> Callable[..., Any]:
            def carry_out(*arguments: Any, **options: Any) -> Any:
                for part in (None, write):
                    done = part and part(*arguments, **options)
                    if next(steps) == step:
                        os.kill(os.getpid(), signal.SIGKILL)
                return done

            return carry_out

        for name in ("create", "create_file", "create_from", "replace", "delete"):
            setattr(FolderBackend, name, struck(getattr(FolderBackend, name)))
        work()
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def test_a_run_whose_process_is_killed_at_any_of_its_writes_gets_its_verdict(site: Site, tmp_path: Path) -> None:
    """From its trigger to its report: a reaper has it resumed, or it has no inputs yet and is executed again."""
    spec = tmp_path / "tiny" / "pipeline.yaml"
    report(site.run, error=GateNotMet("This run is not looked at."))

    def carry_out(key: str) -> RunReport:
        return attach(lambda run: report(run, error=GateNotMet("No.")))(
            open_run(read_spec(spec), options=RunOptions(key=key, trigger="ci"))
        )

    outcomes: Counter[str] = Counter()
    for step in itertools.count():
        key, before = f"night-{step}", set(site.store.list(layout.runs()))
        if not killed_at(step, lambda key=key: carry_out(key)):  # type: ignore[misc]
            break
        has_inputs = {one for one in site.store.list(layout.runs()) if site.store.exists(layout.resolved(one))} - before
        has_verdict = any(site.store.exists(layout.report(one)) for one in has_inputs)
        reaped = [one.what for one in site.reaped()]
        assert reaped == (["resumed"] if has_inputs and not has_verdict else []), step
        outcomes["resumed" if reaped else "ended" if has_verdict else "no inputs"] += 1
        assert carry_out(key).verdict == "not_promoted"
        assert site.reaped() == []
        leases = [layout.lease(layout.run(one)) for one in has_inputs]
        assert has_verdict or not any(held_lease(site.store, lease) for lease in leases)
    assert outcomes.keys() == {"no inputs", "resumed", "ended"}, outcomes


def test_a_run_whose_process_is_about_to_take_the_lease_is_left_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_began = executions._never_began
    # Once the reaper has seen that nobody holds it, before it looks again.
    monkeypatch.setattr(executions, "_never_began", lambda *of: never_began(*of) and bool(site.begin()))
    assert (site.reaped(), site.crashes) == ([], [])


def test_an_old_run_that_nobody_ever_began_is_left_to_a_person(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "OLD", timedelta(seconds=-2))
    assert site.reaped() == []


def test_two_reapers_at_once_answer_one_crash_once(site: Site) -> None:
    site.dies()
    both = threading.Barrier(4)

    def look(_: int) -> list[Reaped]:
        both.wait()
        return site.reaped(LONG_S)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(look, range(4)))
    assert (sorted(len(one) for one in found), len(site.crashes), len(site.prefect.asked)) == ([0, 0, 0, 1], 1, 1)


def test_a_server_that_is_away_costs_no_budget(site: Site) -> None:
    site.dies()
    site.prefect.away = True
    (one,) = site.reaped()
    assert (one.what, site.prefect.asked) == ("left", [])
    site.prefect.away = False
    assert ([one.what for one in site.reaped()], len(site.crashes)) == (["resumed"], 1)


KILLED = """
import os, signal, sys
from infra.store import open_store
from tasks.run.executions import reap
from tests.support.reaped import Prefect

class Struck(Prefect):
    def resume(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)

reap(open_store(sys.argv[1]), Struck())
"""


def test_a_reaper_that_is_killed_before_it_asked_is_followed_by_the_next(site: Site, repository: Path) -> None:
    site.dies()
    env = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run([sys.executable, "-c", KILLED, site.store.uri], env=env, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert held_lease(site.store, site.path) is not None
    assert ([one.what for one in site.reaped()], len(site.crashes), len(site.prefect.asked)) == (["resumed"], 1, 1)


def test_a_request_whose_flow_run_ended_before_it_began_counts_as_another_crash(site: Site) -> None:
    site.dies()
    site.reaped()
    (key,) = site.prefect.asked
    site.prefect.made[key] = FlowRunState("ended")
    assert ([one.what for one in site.reaped()], len(site.crashes)) == (["resumed"], 2)
    site.prefect.made[site.prefect.asked[-1]] = FlowRunState("ended")
    assert [one.what for one in site.reaped()] == ["ended"]


@pytest.mark.parametrize("state", ["stopped", "asked"])
def test_a_run_that_waits_for_a_person_or_a_worker_is_left_alone(
    site: Site, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.run.executions._flow_run", lambda: FLOW_RUN)
    lease = site.dies()
    site.prefect.flow_run = FlowRunState(state, 1)  # type: ignore[arg-type]
    assert site.reaped() == []
    lease.confirm()


@pytest.mark.parametrize("was_resumed", [False, True])
@pytest.mark.parametrize("began", [False, True])
def test_a_cancelled_run_whose_process_died_ends_as_cancelled(
    site: Site, began: bool, was_resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.run.executions._flow_run", lambda: FLOW_RUN)
    if began:
        site.dies(training="trainings/t-0")
    if was_resumed:
        assert [one.what for one in site.reaped()] == ["resumed"]
        site.prefect.made[site.prefect.asked[-1]] = FlowRunState("cancelled", 1)
    else:
        monkeypatch.setattr(site.prefect, "state_of", lambda *_: FlowRunState("cancelled", 1))
    (outcome,) = site.reaped()
    last = latest_report(site.store, site.run.run_id)
    assert (outcome.what, last.verdict, last.exit_code) == ("cancelled", "cancelled", 130)
    assert (site.prefect.told, held_lease(site.store, site.path)) == ([last.sentence], None)
    assert held_lease(site.store, layout.lease("trainings/t-0")) is None
    assert site.reaped() == [], "a person may resume it"
    assert len(site.crashes) == was_resumed


def test_a_cancelled_run_whose_process_lives_ends_itself(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.prefect, "state_of", lambda *_: FlowRunState("cancelled", 1))
    with renewed(site.begin()):
        assert site.reaped(LONG_S) == []
    assert latest_report(site.store, site.run.run_id) is None


@pytest.mark.parametrize("cause", [Cancelled("stopped"), StorageUnavailable("away")])
def test_a_process_that_had_reported_its_end_left_nothing_but_its_lease(site: Site, cause: TrainwrightError) -> None:
    site.dies()
    report(site.run, error=cause)
    assert (site.reaped(), site.crashes, held_lease(site.store, site.path)) == ([], [], None)


def test_the_end_of_a_process_that_was_fenced_is_not_the_runs(site: Site) -> None:
    site.dies()
    site.reaped()
    site.dies()
    report(site.run, error=Fenced("it is another's"))
    assert (num_ends(site.store, site.run.run_id), [one.what for one in site.reaped()]) == (0, ["resumed"])
    assert len(site.crashes) == 2


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_run_of_an_earlier_version_is_resumed_unless_it_had_ended(site: Site, has_ended: bool) -> None:
    with a_process() as process:
        Lease.take(site.store, site.path, f"{site.run.run_id}/x@{identified(process)}")
    if has_ended:
        report(site.run, error=Cancelled("stopped"))
    assert [one.what for one in site.reaped()] == ([] if has_ended else ["resumed"])


def _inputs_of_another_run(site: Site) -> None:
    file = Path(site.store.uri) / layout.resolved(site.run.run_id)
    overwrite(file, json.dumps({**json.loads(file.read_text()), "run_id": "else"}).encode())


def _spec_of_another_form(site: Site) -> None:
    path = layout.resolved(site.run.run_id)
    (Path(site.store.uri) / path).unlink()
    site.store.create_once(path, {**site.run.resolved.to_json(), "spec": {"name": 1}})


def _crash_of(site: Site, **other: Any) -> None:
    about = {"run_id": site.run.run_id, "n": 0, "token": 1, "ends": 0, "at": "", "by": "", **other}
    site.store.create_once(layout.crash(site.run.run_id, 0), Crash(**about).to_json())


@pytest.mark.parametrize(
    "forge",
    [
        lambda site: overwrite(Path(site.store.uri) / site.path, b"{}"),
        _inputs_of_another_run,
        _spec_of_another_form,
        lambda site: _crash_of(site, run_id="20261125-000000-0a0a0a"),
        lambda site: _crash_of(site, n=9),
        lambda site: site.store.create_once(
            layout.execution(site.run.run_id, 7),
            Execution(run_id="20261125-000000-0a0a0a", token=7, ends=0).to_json(),
        ),
    ],
    ids=["lease", "inputs", "spec", "crash of another run", "another crash", "execution of another run"],
)
def test_what_others_wrote_into_one_run_resumes_nothing_and_stops_no_other(
    site: Site, other: Site, forge: Callable[[Site], None]
) -> None:
    for one in (site, other):
        one.dies()
    forge(site)
    found = {one.run_id: one for one in site.reaped()}
    assert {run_id: one.what for run_id, one in found.items()} == {
        site.run.run_id: "lost", other.run.run_id: "resumed",
    }  # fmt: skip
    assert "\n" not in found[site.run.run_id].sentence
    assert site.prefect.asked == [f"reap/{other.run.run_id}/0"]


def test_a_store_that_is_away_is_told_and_the_others_are_looked_at(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.dies()
    away = StorageUnavailable("it does not answer")
    other = Mock(uri="s3://away", list=Mock(side_effect=away))
    reaped, errors = reap_stores([other, Site(site.run).store], lambda store: reap(store, site.prefect))
    assert ([one.what for one in reaped], errors) == (["resumed"], [away])


@pytest.mark.parametrize("how", ["SIGSEGV", "memory"])
def test_a_run_whose_records_end_the_process_is_named_and_the_others_are_looked_at(
    how: str, site: Site, other: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.dies()
    other.dies()
    first, second = sorted([site.run.run_id, other.run.run_id], reverse=True)  # the order in which they are looked at
    monkeypatch.setenv(DEADLY, f"{first}={how}")
    monkeypatch.setattr(executions, "REAP", replace(REAP, module="tests.support.reap_child"))
    monkeypatch.setattr(child, "machine_bytes", lambda: 2**29)
    reaped, away = reap_stores([site.store], lambda store: reap_apart(store, "pool"))
    assert [(one.run_id, one.what) for one in reaped] == [(first, "lost"), (second, "resumed")]
    assert {"SIGSEGV": "was ended by SIGSEGV", "memory": "It took more than 0.4 GiB"}[how] in reaped[0].sentence
    assert away == []
