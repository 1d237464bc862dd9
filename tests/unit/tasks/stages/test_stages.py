"""The stages as plain functions, without Prefect: what is used again, what is not, and what a cut-off run says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_contracts.errors import Cancelled, CorruptError, GateNotMet, NodeLost
from data_contracts.run_report import Cost
from flows.stages import verbs
from infra import stopping
from infra.garbage import Limits, collect
from infra.store import layout
from tasks.queries.proof import prove
from tasks.run.report import report
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run, reopen_run
from tasks.run.spec_check import read_spec
from tasks.stages.evaluate import evaluation_key
from tasks.stages.shard import sets_to_score, shard
from tasks.stages.train import train
from tasks.stages.trainings import find_training, trained_with, training_key
from tasks.stages.validate import validate
from tasks.stages.verify import verify
from tests.support.damage import overwrite
from tests.support.runs import carry_out

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.warm]


def opened(spec: Path, store: Path, *overrides: str, fresh: bool = False) -> Run:
    return open_run(read_spec(spec, overrides), store_uri=str(store), options=RunOptions(fresh=fresh))


@pytest.fixture(scope="module")
def spec(promoted: tuple[Path, Path]) -> Path:
    return promoted[0]


@pytest.fixture(scope="module")
def store(promoted: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one promoted run, which the tests of this file share."""
    return Path(shutil.copytree(promoted[1], tmp_path_factory.mktemp("store") / "store"))


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test that changes it."""
    return Path(shutil.copytree(store, tmp_path / "store"))


def test_a_signal_whose_exception_was_lost_stops_at_the_next_stage(
    spec: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened(spec, store)
    monkeypatch.setattr(stopping, "received", [2])
    with pytest.raises(Cancelled):
        validate(run)
    assert run.live.results["validate"].status == "cancelled"


def test_a_panic_of_a_library_is_a_failure_and_no_stop(
    spec: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    run = opened(spec, store)
    monkeypatch.setattr(stopping, "check", Mock(side_effect=panic("index out of bounds")))
    with pytest.raises(panic):
        validate(run)
    assert (run.live.results["validate"].status, run.live.results["validate"].sentence) == (
        "failed",
        "PanicException: index out of bounds",
    )


def test_what_a_model_is_rebuilt_from_is_sealed_beside_its_weights(spec: Path, store: Path) -> None:
    run = opened(spec, store)
    dataset = shard(run, validate(run))
    checkpoint = train(run, dataset)
    assert run.live.results["train"].status == "reused"
    told = trained_with(run.store, checkpoint)
    assert told.train["lightning"]["model"]["class_path"] == "net.Net"
    assert (told.code, told.dataset) == (run.resolved.code, dataset.ref)
    path = store / checkpoint.ref.uri / "train.json"
    kept = path.read_bytes()
    overwrite(path, kept.replace(b"net.Net", b"net.Ney"))
    with pytest.raises(CorruptError, match=r"train\.json is not what was sealed"):
        trained_with(run.store, checkpoint)
    overwrite(path, kept)


def test_the_same_weights_from_other_arguments_are_another_checkpoint(spec: Path, store: Path) -> None:
    """An argument that acts in `predict_step` alone trains the same bytes, and scores otherwise."""
    one, two = opened(spec, store), opened(spec, store, "train.lightning.trainer.log_every_n_steps=7")
    dataset = shard(one, validate(one))
    first, second = train(one, dataset), train(two, dataset)
    assert two.live.results["train"].status == "ran"
    assert first.ref.id != second.ref.id
    sets = sets_to_score(one, dataset)
    assert evaluation_key(one, first, sets) != evaluation_key(one, second, sets)


def test_a_quarantined_checkpoint_is_not_handed_over_again(spec: Path, copy: Path) -> None:
    run = opened(spec, copy)
    dataset = shard(run, validate(run))
    key = training_key(run, dataset)
    _, checkpoint, _ = find_training(run, key)
    reason = {"schema_version": 1, "reason": "not finite"}
    run.store.create_json(layout.quarantined(checkpoint.ref.uri), reason)
    assert find_training(run, key) == (layout.attempt("trainings", key, 1), None, False)


def test_new_is_asked_for_once_however_often_the_run_is_gone_on_with(spec: Path, copy: Path) -> None:
    run = opened(spec, copy, fresh=True)
    dataset = shard(run, validate(run))
    key = training_key(run, dataset)
    training, found, _ = find_training(run, key)
    assert found is None
    made = train(run, dataset)
    assert made.training == training
    assert find_training(reopen_run(run.run_id, str(copy)), key)[:2] == (training, made)
    assert find_training(opened(spec, copy, fresh=True), key)[1] is None


def test_a_set_that_was_not_sharded_is_asked_for_and_not_made(spec: Path, store: Path) -> None:
    run = opened(spec, store, "evaluate.sets.hard.source=rows.csv")
    dataset = shard(opened(spec, store), None)
    before = sorted(path.name for path in (store / "datasets").iterdir())
    with pytest.raises(Exception, match=r"no dataset of evaluate\.sets\.hard .* Run `trainwright shard`"):
        sets_to_score(run, dataset)
    assert sorted(path.name for path in (store / "datasets").iterdir()) == before


def test_cost_is_counted_over_all_attempts(spec: Path, tmp_path: Path) -> None:
    run = opened(spec, tmp_path / "store")
    run.live.add_cost(Cost(node_seconds=10, usd=0.5))
    assert report(run, error=NodeLost("gone")).cost.node_seconds == 10
    again = reopen_run(run.run_id, str(tmp_path / "store"))
    again.live.add_cost(Cost(node_seconds=1, usd=0.25))
    last = report(again, error=GateNotMet("no"))
    assert (last.cost.node_seconds, last.cost.usd) == (11, 0.75)
    assert json.loads((tmp_path / "store" / layout.report(run.run_id)).read_text())["cost"]["node_seconds"] == 11


def test_a_mark_of_another_checkpoint_verifies_nothing(spec: Path, copy: Path) -> None:
    run = opened(spec, copy)
    checkpoint = train(run, shard(run, validate(run)))
    mark = layout.verified(checkpoint.ref.uri)
    told = run.store.read_json(mark)
    (copy / mark).unlink()
    run.store.create_json(mark, {**told, "checkpoint": {**told["checkpoint"], "seal": "0" * 64}})
    with pytest.raises(CorruptError, match="marks another checkpoint than"):
        verify(run, checkpoint)
    assert (copy / layout.quarantined(checkpoint.ref.uri)).exists()


def test_a_collection_leaves_all_that_a_model_is_proven_by_and_the_line_reuses_it(spec: Path, copy: Path) -> None:
    held = opened(spec, copy).store
    shutil.rmtree(copy / "uses")
    before = {link.uri for link in prove(held, "tiny@champion").links}
    collect(held, by="a test", limits=Limits(keep_s=0, grace_s=0))
    assert {link.uri for link in prove(held, "tiny@champion").links} == before
    run = opened(spec, copy)
    assert carry_out(run).decision == "unchanged"
    assert {name: one.status for name, one in run.live.results.items()} == dict.fromkeys(verbs(), "reused")
