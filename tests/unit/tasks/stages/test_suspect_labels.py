"""Rows whose label may be wrong, from what an evaluation sealed: by number, ranked, and never of sensitive data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.handoffs import Evaluation
from infra.records.handoffs import put_handoff
from infra.store import Store, open_store
from tasks.run.run import Run
from tasks.stages.evaluate import about, first_rows, suspect_labels, suspect_lines
from tests.support.runs import make_run
from tests.support.tiny import SPEC

ROWS = 200


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def evaluation(store: Store, wrong: list[int]) -> Evaluation:
    """An evaluation of a sure model on rows of two classes, of which these have the other label."""
    true = np.arange(ROWS) % 2
    sure = np.linspace(0.6, 0.99, ROWS)
    scores = np.where(true == 1, sure, 1 - sure).astype(np.float32)
    labels = true.copy()
    labels[wrong] = 1 - labels[wrong]
    written = io.BytesIO()
    pq.write_table(pa.table({"target": labels, "prediction_0": 1 - scores, "prediction_1": scores}), written)
    writer = store.writer("evaluations/e-0")
    writer.put("shown.parquet", written.getvalue())
    metric = {"value": 0.9, "mode": "max", "rows": ROWS, "unit": "row"}
    fields: dict[str, Any] = {
        **{"schema_version": 1, "key": "e", "checkpoint_id": "c", "dataset_ids": {}, "metrics": {"accuracy": metric}},
        "shown": {"accuracy": "shown.parquet"},
    }
    put_handoff(writer, fields)
    return Evaluation.from_json({**fields, "ref": writer.seal("evaluation", {}, {}).to_json()})


def run_of(store: Store, withholds: bool = False) -> Run:
    return make_run(store, spec={**SPEC, "data": {"source": "rows.csv", "sensitive": ["a"] if withholds else []}})


def test_the_rows_are_named_by_number_the_most_suspicious_first(store: Store) -> None:
    scored = evaluation(store, [150, 198, 199])
    found = suspect_labels(run_of(store), scored)
    assert found is not None
    assert found.positions.tolist() == [199, 198, 150]
    assert first_rows(found)[0] == (199, "0 (0.01)", "1 (0.99)")
    assert about(found, "test").startswith("In 3 of 200 rows of test, the model is confident of another class than the")
    lines = suspect_lines(run_of(store), scored)
    assert "| 199 | 0 (0.01) | 1 (0.99) |" in lines


def test_many_rows_are_cut_and_counted(store: Store) -> None:
    found = suspect_labels(run_of(store), evaluation(store, list(range(150, 180, 2))))
    assert found is not None
    assert len(first_rows(found)) == 10
    assert "15 of 200 rows of test" in about(found, "test")
    assert "; the 10 most suspicious are shown." in about(found, "test")


def test_nothing_is_said_without_rows_and_of_sensitive_data(store: Store) -> None:
    scored = evaluation(store, [199])
    assert suspect_labels(run_of(store, withholds=True), scored) is None
    assert suspect_lines(run_of(store), scored.model_copy(update={"shown": {}})) == []


def test_a_damaged_file_is_a_warning_on_a_page(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    scored = evaluation(store, [199])
    path = Path(store.uri) / scored.ref.uri / "shown.parquet"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert suspect_lines(run_of(store), scored) == []
    assert "has no suspect labels: CorruptError" in caplog.text
