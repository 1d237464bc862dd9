"""What a reuse key contains: a change that decides the result changes it, one that does not leaves it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run, reopen_run
from tasks.run.spec_check import read_spec
from tasks.stages.evaluate import evaluation_key
from tasks.stages.shard import dataset_key
from tasks.stages.trainings import sealed_settings
from tests.support.files import write_files
from tests.support.tiny import SPEC, write_project, write_rows

pytestmark = pytest.mark.usefixtures("home")


def opened(folder: Path, spec: dict[str, Any] | None = None, **asked: Any) -> Run:
    return open_run(read_spec(write_project(folder, spec)), recorded=asked.pop("recorded", False), **asked)


def with_set(source: Any) -> dict[str, Any]:
    return {"evaluate": {**SPEC["evaluate"], "sets": {"hard": {"source": source}}}}


def test_a_named_set_goes_by_what_its_paths_say_and_how_it_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    pattern = {"uri": "images/**/*.bin", "format": "files", "pattern": "{label}/{name}.bin"}
    write_files(folder, {"images/cat/one.bin": b"one"})
    cat = dataset_key(opened(folder, with_set(pattern)), "hard")
    assert dataset_key(opened(folder, with_set(pattern)), "hard") == cat
    shutil.move(folder / "images" / "cat", folder / "images" / "dog")
    dog = dataset_key(opened(folder, with_set(pattern)), "hard")
    assert dog != cat
    other = {**pattern, "pattern": "{kind}/{name}.bin"}
    assert dataset_key(opened(folder, with_set(other)), "hard") not in (cat, dog)


def test_the_window_is_not_for_a_named_set(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_rows(folder / "hard.csv", 40, seed=2)
    spec = {**with_set("hard.csv"), "data": {"source": "rows.csv", "window": {"column": "id"}}}
    first, second = (opened(folder, spec, options=RunOptions(window=f"2026-01-0{day}..2026-01-09")) for day in (1, 2))
    assert dataset_key(first, "hard") == dataset_key(second, "hard")
    assert dataset_key(first) != dataset_key(second)


def test_a_run_that_is_opened_again_has_its_mappings_in_the_order_of_the_spec(tmp_path: Path) -> None:
    fractions = {"train": 0.8, "zeta": 0.1, "test": 0.1}
    batch = {"z": ["a", "b", "c"], "a": "label"}
    spec = {"shards": {"split": {"key": "id", "fractions": fractions}}, "train": {**SPEC["train"], "batch": batch}}
    run = opened(tmp_path / "tiny", spec, recorded=True)
    again = reopen_run(run.run_id, str(tmp_path / "tiny" / ".trainwright"))
    assert list(again.spec.shards.split.fractions) == list(fractions)
    assert list(again.spec.train.batch or {}) == list(batch)
    assert dataset_key(again) == dataset_key(run)


def test_a_file_that_an_argument_names_counts_as_code(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    lightning = {"model": {"class_path": "net.Net", "init_args": {"vocabulary": "words.txt"}}}
    spec = {"train": {**SPEC["train"], "lightning": lightning}}
    digests = []
    for words in ("a b", "a b", "a c"):
        write_files(folder, {"words.txt": words})
        digests.append(opened(folder, spec).resolved.code_digest)
    assert digests[0] == digests[1] != digests[2]


def test_two_pipelines_that_would_share_pages_are_refused(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    opened(tmp_path / "one", {"name": "a_b"}, recorded=True, store_uri=store)
    opened(tmp_path / "one", {"name": "a_b"}, recorded=True, store_uri=store)
    with pytest.raises(UsageError, match=r"'a\.b' and the pipeline 'a_b' in this store would share their pages"):
        opened(tmp_path / "two", {"name": "a.b"}, recorded=True, store_uri=store)


def test_where_a_stage_runs_is_part_of_no_key(tmp_path: Path) -> None:
    there = {"launcher": "work-pool", "pool": "gpu"}
    spec = {"train": {**SPEC["train"], "strategy": "ddp", "nodes": 2}}
    placed = {
        "train": {**spec["train"], **there, "nodes": 4, "min_nodes": 2},
        "verify": there,
        "evaluate": {**SPEC["evaluate"], **there},
    }
    here, elsewhere = (opened(tmp_path / "tiny", one) for one in (spec, placed))
    assert sealed_settings(here, None) == sealed_settings(elsewhere, None)
    assert here.spec.evaluate.result == elsewhere.spec.evaluate.result
    assert "pool" not in here.spec.evaluate.result


def test_only_a_gate_that_computes_a_metric_again_changes_the_key_of_an_evaluation(tmp_path: Path) -> None:
    f1 = {"class_path": "torchmetrics.F1Score", "init_args": {"task": "binary"}, "target": "label", "mode": "max"}
    loss = {"logged": "test_loss", "mode": "min"}
    metrics = {**SPEC["evaluate"]["metrics"], "f1": f1, "loss": loss}
    checkpoint: Any = type("C", (), {"ref": type("R", (), {"id": "c"})})

    def key(**gate: Any) -> str:
        spec = {"evaluate": {**SPEC["evaluate"], "metrics": metrics}, "promote": {"gates": [gate]}}
        return evaluation_key(opened(tmp_path / "tiny", spec), checkpoint, {})

    plain = key(metric="f1", min_gain=0)
    assert key(metric="f1", min=0.5) == plain
    assert key(metric="loss", min_gain=0, confidence=0.95) == plain
    asked = key(metric="f1", min_gain=0, confidence=0.95)
    assert asked != plain
    assert key(metric="f1", margin=0.1, confidence=0.9) == asked
