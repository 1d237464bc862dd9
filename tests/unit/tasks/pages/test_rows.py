"""The worst rows of an evaluation, what they hold, and truths and predictions: from real sealed files."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Dataset, Evaluation, MetricValue, Ref
from infra.records.handoffs import find_dataset, read_handoff
from infra.store import Store, open_store
from tasks.pages.facts import pairs_of, read_pairs, rows_at, shown, worst_rows
from tests.support.damage import overwrite

EVALUATION = "evaluations/042cb27e80d05357ec029211c385218d0bd9d064-0"
DATASET = "datasets/05f9dcaa92a4cbeeb1262b123947299990be89e1-0"

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(tmp_path: Path, repository: Path) -> Store:
    """A copy of the golden store."""
    return open_store(str(shutil.copytree(repository / "tests/golden/store-v1/store", tmp_path / "store")))


def dataset_of(store: Store) -> Dataset:
    return find_dataset(store, DATASET)


def sealed(store: Store, tables: dict[str, pa.Table], folder: Path) -> Ref:
    """A sealed directory with these tables."""
    writer = store.writer("evaluations/made-0")
    files = []
    for name, table in tables.items():
        pq.write_table(table, folder / name)
        files.append(writer.put(name, folder / name))
    return writer.seal("evaluation", {}, {}, files)


def outcomes(values: list[float], metric: str = "loss") -> pa.Table:
    rows = len(values)
    columns = {"metric": [metric] * rows, "unit": ["row"] * rows, "position": range(rows), "rows": [1] * rows}
    return pa.table({**columns, "value": values})


def evaluation(ref: Ref, mode: str, rows: int = 3, **pairs: str) -> Evaluation:
    """In place of an evaluation: what a page reads of one."""
    metric = MetricValue.model_validate({"value": 0.5, "mode": mode, "rows": rows, "unit": "row"})
    metrics = dict.fromkeys(["loss", "hard/loss", *pairs], metric)
    return cast("Evaluation", SimpleNamespace(ref=ref, metrics=metrics, pairs=pairs, shown={}, sealed=[]))


def test_the_wrong_rows_of_a_real_evaluation_with_their_columns(store: Store) -> None:
    worst = worst_rows(store, read_handoff(store, store.manifest(EVALUATION).ref, Evaluation), "accuracy")
    assert (worst.positions, worst.values, worst.alike, worst.rows) == ([2, 56], [0.0, 0.0], 2, 59)
    rows = rows_at(store, dataset_of(store), "test", worst.positions)
    table = pq.read_table(Path(store.uri) / DATASET / "test-00000.parquet")
    assert rows == {
        at: {name: shown(value) for name, value in table.slice(at, 1).to_pylist()[0].items()} for at in (2, 56)
    }
    names = table.column_names
    moved = rows_at(store, dataset_of(store), "test", worst.positions, names[-1])
    assert (moved, list(moved[2])) == (rows, [names[-1], *names[:-1]])


@pytest.mark.parametrize(
    ("mode", "values", "positions", "alike"),
    [
        ("max", [1.0, 0.0, 1.0, 0.0], [1, 3], 2),
        ("min", [0.1, 9.0, 0.2, 5.0], [1, 3, 2], 3),
        ("max", [0.0] * 12 + [1.0], list(range(10)), 12),
        ("max", [1.0] * 5, [], 0),
        ("min", [0.0, float("nan"), 1.0], [1, 2], 2),
        ("min", [float(at) for at in range(30)], list(range(29, 19, -1)), 10),
    ],
)
def test_the_worst_rows(
    mode: str, values: list[float], positions: list[int], alike: int, store: Store, tmp_path: Path
) -> None:
    ref = sealed(store, {"outcomes.parquet": outcomes(values)}, tmp_path)
    worst = worst_rows(store, evaluation(ref, mode, len(values)), "loss")
    assert (worst.positions, worst.alike, worst.rows) == (positions, alike, len(values))


def test_a_metric_without_outcomes_for_rows_has_no_worst_rows(store: Store, tmp_path: Path) -> None:
    ref = sealed(store, {"other.parquet": outcomes([1.0])}, tmp_path)
    assert worst_rows(store, evaluation(ref, "max"), "unknown") is None
    assert worst_rows(store, evaluation(ref, "max", rows=0), "loss") is None
    with pytest.raises(CorruptError):
        worst_rows(store, evaluation(ref, "max"), "loss")


def test_a_shard_with_other_rows_than_were_sealed_is_not_shown(store: Store) -> None:
    folder = Path(store.uri) / DATASET
    overwrite(folder / "test-00000.parquet", (folder / "val-00000.parquet").read_bytes())
    with pytest.raises(CorruptError):
        rows_at(store, dataset_of(store), "test", [2])


def test_truths_and_predictions_of_a_metric(store: Store, tmp_path: Path) -> None:
    scores = pa.table({"target": [0, 1, 1], "prediction_0": [0.9, 0.2, 0.6], "prediction_1": [0.1, 0.8, 0.4]})
    ref = sealed(store, {"pairs-0.parquet": scores}, tmp_path)
    found = read_pairs(store, evaluation(ref, "max", loss="pairs-0.parquet"), "loss")
    assert (found.prediction.tolist(), found.classes) == ([0, 1, 0], True)
    assert found.sure.tolist() == pytest.approx([0.9, 0.8, 0.6])
    assert read_pairs(store, evaluation(ref, "max"), "loss") is None
    assert read_pairs(store, evaluation(ref, "max", f1="pairs-0.parquet"), "loss") is not None, "of the same rows"
    assert read_pairs(store, evaluation(ref, "max", loss="pairs-0.parquet"), "hard/loss") is None, "of other rows"
    assert read_pairs(store, evaluation(ref, "max", rows=2_000_001, loss="pairs-0.parquet"), "loss") is None


@pytest.mark.parametrize(
    ("truth", "values", "prediction", "sure"),
    [
        ([0, 1, 1], [[0.2], [0.9], [0.4]], [0, 1, 0], [0.8, 0.9, 0.6]),
        ([0, 1, 1], [[5.0, -5.0], [0.0, 0.0], [-2.0, 2.0]], [0, 0, 1], [1.0, 0.5, 0.982]),
        ([0, 1, 1], [[-3.0], [2.0], [-1.0]], [0, 1, 0], [0.9526, 0.8808, 0.7311]),
        ([1.5, 2.5], [[1.0], [3.0]], [1.0, 3.0], None),
    ],
    ids=["probabilities", "logits", "a logit", "numbers"],
)
def test_what_a_prediction_is_follows_from_its_values(
    truth: list[Any], values: list[Any], prediction: list[Any], sure: list[float] | None
) -> None:
    found = pairs_of(np.array(truth), np.array(values, np.float32))
    assert (found.prediction.tolist(), found.classes) == (prediction, sure is not None)
    assert (None if found.sure is None else found.sure.tolist()) == (sure and pytest.approx(sure, abs=1e-3))
    assert pairs_of(np.zeros(0), np.zeros((0, 1))) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "missing"),
        (0.1234567, "0.123457"),
        (b"abc", "3 bytes"),
        ([1, 2], "1, 2"),
        (list(range(64)), "0, 1, 2, 3, … (64 values)"),
        ("x" * 90, "x" * 59 + "…"),
    ],
)
def test_a_value_is_a_short_text(value: object, text: str) -> None:
    assert shown(value) == text
