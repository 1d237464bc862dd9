"""A search with real runs: the best of its trials is promoted like any candidate, and a killed search goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_contracts.handoffs import Checkpoint
from infra.gang.ledger import committed
from infra.store import Store, layout, open_store
from tasks.budgets import newest_record
from tasks.run.report import latest_report
from tasks.run.run import RunInputs, resolved_before
from tasks.search.search import events_of, key_of
from tasks.stages.trainings import begun_training
from tests.support.files import write_files
from tests.support.tiny import MODEL, SPEC, trainwright, write_project
from tests.support.waiting import until

VALIDATION = """
    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))
"""
# The rate decides: a small one learns nothing in three epochs.
RATES = [0.05, 0.00001, 0.00002]
RATE = "train.lightning.model.init_args.lr"
SLOW = "slow"


def project(folder: Path, **search: Any) -> Path:
    """The tiny project that validates, its config in a file, and a grid of RATES."""
    section = {"space": {RATE: {"choices": RATES}}, "budget": {"trials": 9}, "sampler": "grid", **search}
    train = {**SPEC["train"], "select": {"metric": "val_loss", "mode": "min"}, "lightning": "lightning.yaml"}
    spec = write_project(folder, {"train": train, "search": section})
    # A bad trial is slow after its first epoch while it may be, so that it is still there when it is asked to end.
    step = "        x, y = batch\n        loss"
    is_bad = "self.lr < 0.01 and self.current_epoch and batch_idx > 2"
    wait = f"        while {is_bad} and Path({str(folder / SLOW)!r}).exists():\n"
    model = MODEL.replace(step, f"{wait}            time.sleep(0.1)\n{step}")
    source = f"import time\nfrom pathlib import Path\n\n{model}{VALIDATION}"
    files = {"net.py": source, "lightning.yaml": json.dumps(SPEC["train"]["lightning"])}
    write_files(folder, files)
    return spec


def run_of(store: Store, trial: int) -> RunInputs:
    record = newest_record(store, "tiny")
    assert record is not None
    resolved = resolved_before(store, key_of(record, trial))
    assert resolved is not None
    return RunInputs(resolved, store)


def values(store: Store, state: str = "finished") -> dict[int, float | None]:
    return {one.trial: one.value for one in events_of(store, "tiny") if one.kind == "ended" and one.state == state}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A search whose bad trials end after their first validation, and what it printed."""
    spec = project(tmp_path_factory.mktemp("search"), prune={"first": 1, "factor": 2})
    (spec.parent / SLOW).touch()
    done = trainwright("search", spec, "--json")
    assert done.returncode == 0, done.stderr
    (spec.parent / SLOW).unlink()
    return spec, json.loads(done.stdout)


def test_the_best_trial_is_promoted_and_the_gate_knows_how_many_there_were(
    searched: tuple[Path, dict[str, Any]],
) -> None:
    spec, printed = searched
    store = open_store(str(spec.parent / ".trainwright"))
    # Each is compared with those before it.
    assert [trial["state"] for trial in printed["trials"]] == ["finished", "pruned", "pruned"]
    assert printed["best"] == 0
    assert printed["run"]["verdict"] == "promoted"
    stages = {stage["name"]: stage["status"] for stage in printed["run"]["stages"]}
    assert (stages["shard"], stages["train"], stages["verify"]) == ("reused", "reused", "ran")
    resolved = run_of(store, 0).resolved
    final = store.read_json(layout.resolved(printed["run"]["run_id"]))
    assert final["lightning"]["model"]["init_args"]["lr"] == 0.05 == resolved.lightning["model"]["init_args"]["lr"]
    assert final["spec"]["promote"]["candidates"] == 3


def test_a_trial_is_a_run_that_ends_after_its_training(searched: tuple[Path, dict[str, Any]]) -> None:
    spec, printed = searched
    store = open_store(str(spec.parent / ".trainwright"))
    report = latest_report(store, printed["trials"][0]["run_id"])
    assert report is not None
    assert (report.verdict, report.exit_code, report.tags["search"]) == ("trained", 0, "tiny")
    assert [stage.name for stage in report.stages] == ["validate", "shard", "train"]
    checkpoint = store.read_as(layout.result(begun_training(run_of(store, 0))), Checkpoint.from_json)
    assert checkpoint.metrics["val_loss"] == printed["trials"][0]["value"]


def test_a_pruned_trial_can_be_continued_to_the_bit(searched: tuple[Path, dict[str, Any]]) -> None:
    """It ends with the checkpoint of a training that nobody ended early."""
    spec, _ = searched
    store = open_store(str(spec.parent / ".trainwright"))
    run = run_of(store, 1)
    [first, *_] = [one.value for one in events_of(store, "tiny") if one.kind == "reported" and one.trial == 1]
    training = begun_training(run)
    assert not store.exists(layout.result(training))
    assert committed(store, training)[0][0].metrics["val_loss"] == first
    assert trainwright("resume", run.run_id, "--store", store.uri).returncode == 0
    resumed = store.read_as(layout.result(training), Checkpoint.from_json)
    options = ("--set", f"{RATE}={RATES[1]}", "--set", "until=train", "--store", spec.parent / "other", "--json")
    alone = trainwright("run", spec, *options)
    assert json.loads(alone.stdout)["checkpoint_id"] == resumed.ref.id


def test_the_same_command_again_starts_no_trial(searched: tuple[Path, dict[str, Any]]) -> None:
    spec, printed = searched
    store = open_store(str(spec.parent / ".trainwright"))
    before = len(events_of(store, "tiny"))
    assert printed["trials"][0]["settings"] == {RATE: RATES[0]}
    again = trainwright("search", spec, "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["run"]["run_id"] == printed["run"]["run_id"]
    assert len(events_of(store, "tiny")) == before
    other = trainwright("search", spec, "--set", f"search.space={{{RATE}: {{choices: [0.1, 0.2]}}}}")
    assert (other.returncode, "begun at" in other.stderr, "--name" in other.stderr) == (2, True, True)


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_and_no_two_carry_it_out(tmp_path: Path, repository: Path) -> None:
    spec = project(tmp_path / "project", space={RATE: {"choices": RATES[:2]}}, budget={"trials": 2, "hours": 1.0})
    command = [sys.executable, "-m", "flows.cli", "search", str(spec)]
    first = subprocess.Popen(command, cwd=repository, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    store = open_store(str(spec.parent / ".trainwright"))
    until(lambda: store.list(layout.search_events("tiny")))
    second = trainwright("search", spec)
    assert (second.returncode, "Another process carries out the search tiny" in second.stderr) == (2, True)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    done = trainwright("search", spec)
    assert done.returncode == 0, done.stderr
    assert sorted(values(store)) == [0, 1]
    assert [one.trial for one in events_of(store, "tiny") if one.kind == "asked"] == [0, 1]
    assert len(store.list(layout.runs())) == 3


def test_the_trials_stay_within_the_hours_of_the_search(tmp_path: Path) -> None:
    spec = project(tmp_path / "project", budget={"trials": 4, "hours": 0.0005})
    done = trainwright("search", spec)
    assert (done.returncode, "has too little left" in done.stderr, "search.budget" in done.stderr) == (7, True, True)
    store = open_store(str(spec.parent / ".trainwright"))
    # The trial stays as it is, and continues with a larger budget.
    assert [one.kind for one in events_of(store, "tiny")] == ["asked"]


REFUSED = {
    "search=null": "search: is missing, so there is nothing to try.",
    "search.space={}": "search.space: must not be empty",
    "search.space={train.lr: {min: 1, max: 2}}": "train.lr: unknown key",
    "search.space={train.nodes: {choices: [1, 2]}}": "search.space.train.nodes: does not decide what is trained",
    f"search.space={{{RATE}: {{min: 0, max: 1}}}}": "has whole numbers alone, and the spec has 0.05 there",
    "search.space={train.select.mode: {choices: [min, max]}}": "says what is searched for",
    "search.space={tags.team: {choices: [a, b]}}": "search.space.tags.team: does not decide what is trained",
    "search.space={train.seed: {min: 1, max: 8, step: 3}}": "step: 3 does not divide the range from 1 to 8",
    "search.space={train.seed: {min: 2, max: 1}}": "search.space.train.seed.max: must be more than min (2), got 1",
    "search.budget={hours: 1.0}": "search.budget.trials: is missing",
    "search.prune={first: 3}": "search.prune.first: 3, but a trial ends after 3 epochs, so none would end early.",
    "train.select=null": "search: needs train.select",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_is_refused_before_a_trial(override: str, tmp_path: Path) -> None:
    spec = project(tmp_path)
    done = trainwright("search", spec, "--set", override)
    assert (done.returncode, REFUSED[override] in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / ".trainwright" / "searches").exists()
