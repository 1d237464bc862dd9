"""The table of predictions: what becomes a column, and what is said where nothing does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from training.score import outcomes
from training.score.outcomes import PredictionTable, tensors_of

NAN = float("nan")


def kept(folder: Path, *outputs: Any, rows: int | None = None) -> Any:
    """The table of these batches, as columns; or why there is none."""
    table = PredictionTable(folder, "")
    for one in outputs:
        tensors, reason = tensors_of(one, rows)
        table.file.refuse(reason) if reason else table.add(tensors)
    answer = table.close()
    if answer.missing:
        assert not answer.file
        return answer.missing
    found = pq.read_table(folder / answer.file)
    assert found.column_names == answer.columns
    return found.to_pydict()


@pytest.mark.parametrize(
    ("outputs", "columns"),
    [
        (torch.tensor([1, 0]), {"prediction": [1, 0]}),
        (torch.tensor([[1.5], [2.5]]), {"prediction": [1.5, 2.5]}),
        (torch.tensor([1.5], dtype=torch.bfloat16), {"prediction": [1.5]}),
        (torch.tensor(2.0), {"prediction": [2.0]}),
        (
            torch.tensor([[0.25, 0.75], [NAN, 1.0], [3.0, 1.0]]),
            {"prediction": [1, None, 0], "prediction_0": [0.25, NAN, 3.0], "prediction_1": [0.75, 1.0, 1.0]},
        ),
        (torch.eye(101)[:2], {"prediction": [0, 1]}),  # too many values for a column each
        (
            {"logits": torch.tensor([[0.0, 1.0]]), "sure": torch.tensor([True]), "map": torch.zeros(1, 2, 2), "n": "x"},
            {"logits": [1], "logits_0": [0.0], "logits_1": [1.0], "sure": [True]},
        ),
    ],
    ids=["classes", "numbers", "half", "one", "scores", "many", "dictionary"],
)
def test_what_predict_step_returns_becomes_columns(tmp_path: Path, outputs: Any, columns: dict[str, Any]) -> None:
    found = kept(tmp_path, outputs)
    assert repr(found) == repr(columns)  # NaN equals itself here


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ([torch.zeros(2, 3, 4)], r"returns a tensor of shape \(2, 3, 4\), not one value or one list of values"),
        ([torch.zeros(3)], r"returns a tensor of shape \(3,\)"),
        ([None], "returns a NoneType, not a tensor or a dictionary of tensors"),
        ([{"a": torch.zeros(3), "b": "text"}], "returns a dictionary, no entry of which has one value for each row"),
        ([{"a": torch.zeros(2, 2), "a_0": torch.zeros(2)}], "returns two columns with the name a_0"),
        ([torch.zeros(2, 2), torch.zeros(2, 3)], "returns other columns .*prediction_2 float.* than for the first"),
        ([], "the set has no rows"),
    ],
)
def test_without_a_table_there_is_a_reason(tmp_path: Path, outputs: list[Any], reason: str) -> None:
    assert re.search(reason, kept(tmp_path, *outputs, rows=2))


def test_the_file_does_not_depend_on_how_rows_were_batched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "_GROUP_ROWS", 8)
    values, files = torch.arange(21.0), []
    for size in (1, 5, 21):
        folder = tmp_path / str(size)
        folder.mkdir()
        assert kept(folder, *values.split(size)) == {"prediction": values.tolist()}
        files.append((folder / "predictions.parquet").read_bytes())
    assert files[0] == files[1] == files[2]
    assert pq.read_metadata(folder / "predictions.parquet").num_row_groups == 3


def test_rows_are_written_while_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "_GROUP_ROWS", 8)
    table = PredictionTable(tmp_path, "hard")
    table.add({"prediction": torch.arange(7)})
    assert not table.path.exists()
    table.add({"prediction": torch.arange(7)})
    assert table.path.name == "predictions-hard.parquet"
    assert table.path.exists()
    table.close()
