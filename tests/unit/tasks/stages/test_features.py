"""`contract.features`: the rows in the shards are held to a suite, of a new dataset and of a reused one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.handoffs import ContractReport
from infra.contract.file_statistics import read_profile
from tasks.queries.plan import plan
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import shard as stage
from tasks.stages.shard import dataset_key, shard
from tasks.stages.validate import contract_key, features_key, features_report, validate
from tests.support.expectations import E
from tests.support.files import write_files
from tests.support.tiny import SPEC, write_project

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.warm]
TRANSFORM = """
import pyarrow as pa
import pyarrow.compute as pc

def build(batch):
    twice = pc.multiply(batch["a"], 2.0)
    pixels = pa.array([[1.0, 2.0]] * batch.num_rows)  # becomes a tensor, which no expectation reads
    return pa.RecordBatch.from_pydict({"id": batch["id"], "twice": twice, "pixels": pixels, "label": batch["label"]})
"""


IN_TWO = E("column_values_to_be_between", column="twice", min_value=-2, max_value=2)
IN_ONE = E("column_values_to_be_between", column="twice", min_value=-1, max_value=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tiny", {"features_of_a_test.py": TRANSFORM})


def opened(folder: Path, *expectations: dict[str, Any], **data: Any) -> Run:
    features = {"suite": {"name": "features", "expectations": list(expectations)}}
    spec = {
        "contract": {**SPEC["contract"], **({"features": features} if expectations else {})},
        "shards": {"split": {"key": "id"}, "target_size_bytes": 4096, "transform": "features_of_a_test.build"},
        "data": {"source": "rows.csv", **data},
    }
    return open_run(read_spec(write_project(folder, spec)), recorded=False)


def report_of(run: Run) -> ContractReport:
    dataset = stage.find_dataset(run)
    key = features_key(run, dataset)
    report = features_report(run, key)
    assert read_profile(run.store, report.ref) is None  # a transform may write a sensitive column under another name
    return report


def test_a_reused_dataset_is_read_for_it_and_then_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = opened(folder)
    first = shard.find_or_make(plain, validate(plain))
    assert "contract.features" not in first.sentence
    run = opened(folder, IN_TWO)
    assert dataset_key(run) == dataset_key(plain)
    assert contract_key(run) == contract_key(plain)
    monkeypatch.setattr(stage, "run_child", lambda *_, **__: pytest.fail("it was sharded again"))
    assert plan(run, [shard])[0].why.startswith("the dataset is not checked against contract.features yet")
    done = shard.find_or_make(run, validate(run))
    assert done.status == "ran"
    assert done.error is None
    assert done.handoff == first.handoff
    assert done.sentence == f"{first.sentence}; contract.features: 600 rows meet 1 expectation"
    report = report_of(run)
    parents = run.store.manifest(report.ref).provenance["parents"]
    assert [parent["uri"] for parent in parents] == [first.ref.uri]
    monkeypatch.setattr(stage, "checked", lambda *_: pytest.fail("it was checked again"))
    assert shard.find_or_make(opened(folder, IN_TWO), None).status == "reused"


def test_rows_that_break_it_end_the_run_in_shard_before_anything_is_trained(folder: Path) -> None:
    run = opened(folder, IN_ONE, sensitive=["twice", "id"][1:])
    done = shard.find_or_make(run, validate(run))
    assert done.error.exit_code == 3
    said = "contract.features: The contract rejects the shards: expect_column_values_to_be_between on twice: "
    assert done.error.message.startswith(said)
    report = report_of(run)
    assert not report.accepted
    assert f"{report.failures[0].rows} of 600 rows (rows " in done.error.message
    [step] = plan(opened(folder, IN_ONE, sensitive=["id"]), [shard])
    assert step.action == "reuse"
    assert said in step.why


def test_a_column_that_the_transform_does_not_make_is_one_sentence(folder: Path) -> None:
    run = opened(folder, E("column_values_to_not_be_null", column="a"))
    done = shard.find_or_make(run, validate(run))
    assert "the data has no column a (it has id, twice, pixels, label)" in done.error.message


def test_a_sensitive_column_that_the_transform_keeps_is_masked(folder: Path) -> None:
    (folder / "features_of_a_test.py").write_text(
        TRANSFORM.replace('"twice": twice', '"twice": twice, "a": batch["a"]')
    )
    run = opened(folder, E("column_values_to_be_between", column="a", min_value=2), sensitive=["a", "b"])
    assert shard.find_or_make(run, validate(run)).error is not None
    assert set(report_of(run).failures[0].values) == {"•••"}
