"""What an evaluation sealed beside its metrics is read back as it was computed, or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Evaluation, MetricValue
from data_contracts.messages.children import EvaluateRequest, StoreAddress
from data_contracts.pipeline_spec import MetricSpec
from infra.records.evaluations import outcomes_of, pairs_of, shown_of, unsealed
from infra.store import Store
from training.score.evaluate_worker import Kept, seal
from training.score.outcomes import Outcomes, PairTable, Scored, pair_tables

TRUTH = torch.tensor([1, 0, 1, 1, 0])
SCORES = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.9, 0.1]])


def scored(unit: Any, values: list[float], rows: list[int]) -> Scored:
    value = MetricValue(value=0.5, mode="max", rows=sum(rows), unit=unit)
    return Scored(value, Outcomes(unit, values, rows))


def metric(kind: str) -> MetricSpec:
    return MetricSpec(class_path=f"torchmetrics.classification.{kind}", target="y", mode="max")


def request_for(store: Store, shown: str = "") -> EvaluateRequest:
    checkpoint = type("C", (), {"ref": type("R", (), {"id": "c"})})
    return EvaluateRequest.model_construct(
        store=StoreAddress(uri=store.uri), uri="evaluations/e-0", key="e", sets={}, settings={}, evaluate={},
        provenance={}, checkpoint=checkpoint, shown=shown,
    )  # fmt: skip


def sealed(store: Store, folder: Path, *batches: tuple[torch.Tensor, torch.Tensor]) -> Evaluation:
    """An evaluation of three metrics on two sets, which got these batches (prediction, target)."""
    metrics = {
        "f1": scored("dataset", [0.5], [5]),
        "hard/f1": scored("dataset", [0.25], [5]),
        "right": scored("row", [1.0, 0.0, 1.0, 1.0, 0.0], [1] * 5),
        "loss": scored("batch", [0.5, 0.25], [3, 2]),
    }
    tables = pair_tables(folder, ["", "hard"], {"f1": metric("BinaryF1Score"), "right": metric("BinaryAccuracy")})
    for one in tables.values():
        for table in one.values():
            for prediction, target in batches:
                table.add(prediction, target)
    return seal(request_for(store), metrics, Kept(folder, pairs=tables))


def test_what_another_process_is_writing_stays_and_is_not_sealed(store: Store, tmp_path: Path) -> None:
    store.writer("evaluations/e-0").put("outcomes.parquet", b"of another process")
    evaluation = sealed(store, tmp_path, (SCORES, TRUTH))
    assert evaluation.ref.uri == "evaluations/e-1"
    assert store.read("evaluations/e-0/outcomes.parquet") == b"of another process"


@pytest.mark.parametrize(
    ("prediction", "target"),
    [(SCORES, TRUTH), (SCORES[:, 1], TRUTH), (SCORES[:, :1], TRUTH.reshape(-1, 1)), (TRUTH, TRUTH.bool())],
    ids=["scores", "probabilities", "columns", "classes"],
)
def test_pairs_are_read_as_the_metric_got_them(
    store: Store, tmp_path: Path, prediction: torch.Tensor, target: torch.Tensor
) -> None:
    cut = [(prediction[:2], target[:2]), (prediction[2:], target[2:])]
    evaluation = sealed(store, tmp_path, *cut)
    assert evaluation.pairs == {"f1": "pairs-0.parquet", "hard/f1": "pairs-2.parquet"}  # a mean over rows needs none
    assert pairs_of(store, evaluation, "right") is None
    pairs = pairs_of(store, evaluation, "hard/f1")
    assert pairs is not None
    for found, expected in zip(pairs, (target, prediction), strict=True):
        expected = expected[:, 0] if expected.ndim == 2 and expected.shape[1] == 1 else expected
        np.testing.assert_array_equal(found, expected.numpy(), strict=True)


def test_pairs_are_kept_by_what_the_metric_is_and_not_by_what_a_model_answers(tmp_path: Path) -> None:
    # F1 of a model that never says yes is 0 on any rows, and so is its mean.
    [tables] = pair_tables(tmp_path, [""], {"f1": metric("BinaryF1Score"), "right": metric("BinaryAccuracy")}).values()
    always_no = scored("row", [0.0] * 5, [1] * 5)
    for name, kept in (("f1", "pairs-0.parquet"), ("right", "")):
        tables[name].add(torch.zeros(5), TRUTH)
        assert tables[name].close(name, always_no) == kept


@pytest.mark.parametrize("file", ["outcomes.parquet", "pairs-0.parquet"])
def test_a_changed_file_is_refused(store: Store, tmp_path: Path, file: str) -> None:
    evaluation = sealed(store, tmp_path, (SCORES, TRUTH))
    path = Path(store.uri) / evaluation.ref.uri / file
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptError, match=f"evaluations/e-0/{file} is not what was sealed"):
        outcomes_of(store, evaluation, "right") if file.startswith("outcomes") else pairs_of(store, evaluation, "f1")


def forged(store: Store, table: pa.Table, rows: int = 10, name: str = "pairs-0.parquet") -> Evaluation:
    """An evaluation of f1 whose pairs, or outcomes, someone else wrote and sealed."""
    writer, written = store.writer("evaluations/forged-0"), io.BytesIO()
    pq.write_table(table, written)
    writer.put(name, written.getvalue())
    metric = MetricValue(value=0.5, mode="max", rows=rows, unit="row" if name.startswith("outcomes") else "dataset")
    fields: dict[str, Any] = {"key": "f", "checkpoint_id": "c", "dataset_ids": {}, "pairs": {"f1": "pairs-0.parquet"}}
    return Evaluation(ref=writer.seal("evaluation", {}, {}), metrics={"f1": metric}, **fields)


MANY = np.zeros(10_000)
FEW_BYTES = {
    "it does not have the rows of f1": pa.table({"target": MANY, "prediction": MANY}),
    "not have numbers alone for f1": pa.table({"target": ["x" * 99] * 10, "prediction": np.zeros(10)}),
    "it does not have the rows of f1.": pa.table({f"c{at}": np.zeros(10) for at in range(1_100)}),
    "it has more outcomes than the metrics have rows": pa.table(
        {"metric": ["f1"] * 10_000, "unit": ["row"] * 10_000, "rows": MANY.astype(int), "value": MANY}
    ),
}


@pytest.mark.parametrize("words", FEW_BYTES)
def test_few_bytes_that_stand_for_many_values_are_not_decoded(
    words: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("read", "iter_batches"):
        monkeypatch.setattr(f"pyarrow.parquet.ParquetFile.{method}", lambda *_, **__: pytest.fail("it was decoded"))
    read, name = (outcomes_of, "outcomes.parquet") if "outcomes" in words else (pairs_of, "pairs-0.parquet")
    with pytest.raises(CorruptError, match=words.rstrip(".")):
        read(store, forged(store, FEW_BYTES[words], name=name), "f1")


def test_more_values_than_are_wanted_are_not_decoded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = forged(store, pa.table({"target": np.zeros(10), "prediction": np.zeros(10)}), 10)
    assert shown_of(store, evaluation, "f1", 20) is not None
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read", lambda *_: pytest.fail("it was decoded"))
    assert shown_of(store, evaluation, "f1", 19) is None


@pytest.mark.parametrize("data", [b"[]", b"null", b'{"metrics": 3}', b"[" * 100_000, b"{", b'{"metrics": {"a": 1}}'])
def test_a_file_of_sealed_metrics_that_someone_else_wrote_is_refused(store: Store, data: bytes) -> None:
    writer = store.writer("evaluations/forged-0")
    writer.put("sealed.json", data)
    evaluation = Evaluation(
        ref=writer.seal("evaluation", {}, {}), key="f", checkpoint_id="c", dataset_ids={}, metrics={}, sealed=["h/f1"]
    )
    with pytest.raises(CorruptError, match=r"evaluations/forged-0/sealed.json cannot be read: "):
        unsealed(store, evaluation)


def test_outcomes_are_read_as_they_were_computed_if_they_are_of_the_metrics_rows(store: Store, tmp_path: Path) -> None:
    evaluation = sealed(store, tmp_path, (SCORES, TRUTH))
    right, loss = outcomes_of(store, evaluation, "right"), outcomes_of(store, evaluation, "loss")
    assert (right.unit, right.values.tolist(), right.rows.tolist()) == ("row", [1.0, 0.0, 1.0, 1.0, 0.0], [1] * 5)
    assert (loss.unit, loss.values.tolist(), loss.rows.tolist()) == ("batch", [0.5, 0.25], [3, 2])
    assert outcomes_of(store, evaluation, "hard/f1").values.tolist() == [0.25]
    wrong = evaluation.metrics["loss"].model_copy(update={"rows": 6})
    other = evaluation.model_copy(update={"metrics": {**evaluation.metrics, "loss": wrong}})
    with pytest.raises(CorruptError, match="cannot be read: it does not have the outcomes of loss"):
        outcomes_of(store, other, "loss")


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        ([(torch.zeros(2, 3, 4), torch.zeros(2, 4))], r"of shape \(2, 3, 4\), and the truth of shape \(2, 4\), which"),
        ([(torch.zeros(5, 101), TRUTH)], "a row's prediction has 101 values, and at most 100 are kept"),
        ([(SCORES, TRUTH), (SCORES[:, 0], TRUTH)], "the shape or type of the predictions changes from batch to batch"),
    ],
)
def test_what_cannot_be_kept_is_said(store: Store, tmp_path: Path, batches: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"evaluate.metrics.f1 cannot be resampled: .*{reason}"):
        sealed(store, tmp_path, *batches)


@pytest.mark.parametrize(
    ("asked", "files", "shown"),
    [
        ([], {}, {"right": "shown.parquet"}),
        (["right"], {}, {"right": "pairs-0.parquet"}),  # kept for the gate, which needs none: the mean tells as much
        (["f1"], {"f1": "pairs-0.parquet"}, {}),  # the gate's show the same rows
    ],
)
def test_truths_and_predictions_are_kept_once_for_pages(
    store: Store, tmp_path: Path, asked: list[str], files: dict[str, str], shown: dict[str, str]
) -> None:
    kinds = {"f1": "BinaryF1Score", "right": "BinaryAccuracy"}
    pairs = pair_tables(tmp_path, [""], {name: metric(kinds[name]) for name in asked})
    kept = Kept(tmp_path, pairs=pairs)
    if "right" not in asked:
        kept.shown["right"] = PairTable(tmp_path / "shown.parquet", most_values=15)
    for table in kept.pairs_on("").values():
        table.add(SCORES, TRUTH)
    evaluation = seal(
        request_for(store, shown="right"),
        {"f1": scored("dataset", [0.5], [5]), "right": scored("row", [1.0, 0.0, 1.0, 1.0, 0.0], [1] * 5)},
        kept,
    )
    assert (evaluation.pairs, evaluation.shown) == (files, shown)
    assert pairs_of(store, evaluation, "right") is None, "no gate sees what is kept for pages"
    found = shown_of(store, evaluation, next(iter({**files, **shown})), 15)
    np.testing.assert_array_equal(found[1], SCORES.numpy())
