"""Which training is a run's, and from where it would go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from data_contracts.errors import UsageError
from data_contracts.messages.gang import Launch
from data_contracts.run_report import RunReport
from flows.stages import stages
from infra.gang.ledger import Ledger
from infra.store import Store, layout
from tasks.queries.history import checkpoints_of
from tasks.queries.plan import plan, plan_resumed
from tasks.run.executions import attach
from tasks.run.run import Run, open_run, reopen_run
from tasks.run.spec_check import read_spec
from tasks.stages.trainings import continuation, training_key, training_of
from tests.support.damage import overwrite
from tests.support.scripted_nodes import seal
from tests.support.tiny import SPEC, write_project

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def run(store: Store) -> Run:
    path = external(write_project(Path(store.uri).parent / "tiny"))
    return open_run(read_spec(path), store_uri=store.uri)


def external(path: Path) -> Path:
    """The spec of a project, changed to one whose data is external."""
    data = {"class_path": "lightning.LightningDataModule"}
    train = {name: value for name, value in SPEC["train"].items() if name != "batch"}
    spec = {name: value for name, value in SPEC.items() if name not in ("contract", "shards")}
    spec |= {"data": "external", "train": {**train, "lightning": {**train["lightning"], "data": data}}}
    path.write_text(yaml.safe_dump(spec))
    return path


def launched(run: Run, attempt: int, generation: int, by: str) -> str:
    training = layout.attempt("trainings", training_key(run, None), attempt)
    launch = Launch(training=training, nodes=1, devices=1, provenance={"run_id": by})
    run.store.create_json(layout.launch(training, generation), launch.to_json())
    return training


def test_a_runs_training_is_the_one_it_reused_else_launched_else_the_newest(run: Run) -> None:
    assert training_of(run) is None
    with pytest.raises(UsageError, match=f"The run {run.run_id} has not started training"):
        checkpoints_of(run)
    first, second = launched(run, 0, 0, "other"), launched(run, 1, 0, "other")
    assert training_of(run) == second
    assert training_of(replace(run, resolved=run.resolved.model_copy(update={"fresh": True}))) is None
    launched(run, 0, 1, run.run_id)
    assert training_of(run) == first
    record = {"name": "train", "status": "reused", "seconds": 0, "reused_from": second}
    run.store.create_json(layout.stage(run.run_id, "train"), record)
    assert training_of(run) == second


def test_a_run_that_trained_but_whose_dataset_is_gone_is_not_said_to_have_not_begun(store: Store) -> None:
    run = open_run(read_spec(write_project(Path(store.uri).parent / "tiny")), store_uri=store.uri)
    for stage in ("shard", "train"):
        record = {"name": stage, "status": "ran", "seconds": 0, "id": "0" * 64}
        run.store.create_json(layout.stage(run.run_id, stage), record)
    with pytest.raises(UsageError, match=f"The training of the run {run.run_id} cannot be found: its dataset, or"):
        checkpoints_of(run)


def test_what_a_run_recorded_is_what_it_goes_on_with(run: Run) -> None:
    for stage, status, sentence in (("validate", "skipped", "data is external"), ("verify", "ran", "4 tensors")):
        told = {"name": stage, "status": status, "seconds": 1, "sentence": sentence}
        run.store.create_json(layout.stage(run.run_id, stage), told)
    assert [step.line for step in plan_resumed(run, stages())] == [
        "validate  skip    it ended before: data is external",
        "shard     run     it has not ended yet",
        "train     run     it has not ended yet",
        "verify    reuse   it ended before: 4 tensors",
        "evaluate  run     it has not ended yet",
        "promote   run     the gates are computed each time",
    ]


def test_it_says_where_a_training_goes_on_and_refuses_a_step_that_is_not_committed(run: Run) -> None:
    training = launched(run, 0, 0, run.run_id)
    assert continuation(run.store, training, None) == "starts from step 0: it has no committed checkpoint"
    ledger = Ledger(run.store, training, 0)
    for step in (5, 10, 15):
        ledger.commit(seal(run.store, step, training=training))

    def planned(from_step: int | None) -> str:
        asked = reopen_run(run.run_id, run.store.uri, from_step)
        [line] = [step.line for step in plan_resumed(asked, stages()) if step.name == "train"]
        return line

    begun = f"train     resume  {training} was begun and not finished; continues from step"
    assert planned(None) == f"{begun} 15 (the newest committed checkpoint)"
    assert f"{begun} 15 (the newest committed checkpoint)" in [step.line for step in plan(run, stages())]
    assert planned(5) == f"{begun} 5, as requested; step 10, 15 will be set aside"
    assert planned(15) == f"{begun} 15, as requested"
    with pytest.raises(UsageError, match="no committed checkpoint of step 7; committed steps: 5, 10, 15"):
        planned(7)
    overwrite(Path(run.store.uri) / ledger.checkpoints[-1].ref.uri / "state.json", b"other")
    ledger.resume_from()
    assert planned(None).startswith(f"{begun} 10 (step 15 is quarantined: {training}/checkpoints/15-g0/state.json does")

    run.store.create_json(layout.result(training), ledger.checkpoints[-1].to_json())
    assert planned(None) == f"train     reuse   {training} is finished: step 10"
    with pytest.raises(UsageError, match=f"{training} is finished: it handed over step 10, which is never taken back"):
        planned(5)


def test_a_run_with_a_verdict_does_not_go_back(run: Run) -> None:
    report = RunReport(run_id=run.run_id, pipeline="tiny", verdict="promoted", exit_code=0, sentence="", stages=[])
    run.store.create_json(layout.report(run.run_id), report.to_json())
    line = attach(lambda run: pytest.fail("carried out again"))
    assert line(reopen_run(run.run_id, run.store.uri)) == report
    with pytest.raises(UsageError, match=r"has ended \(promoted\) and cannot continue from step 5"):
        line(reopen_run(run.run_id, run.store.uri, 5))
