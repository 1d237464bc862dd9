"""What predict_step may return, and which columns it becomes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import torch

from data_contracts.errors import UsageError
from training.predict.worker import columns_of


class Parts(NamedTuple):
    score: torch.Tensor
    kind: list[str]


NUMBERS = torch.tensor([1.5, 2.5])


@pytest.mark.parametrize(
    ("outputs", "columns"),
    [
        (NUMBERS, {"prediction": (pa.float32(), [1.5, 2.5])}),
        (NUMBERS.reshape(2, 1), {"prediction": (pa.float32(), [1.5, 2.5])}),
        (NUMBERS.to(torch.bfloat16), {"prediction": (pa.float32(), [1.5, 2.5])}),
        (torch.tensor([True, False]), {"prediction": (pa.bool_(), [True, False])}),
        (torch.arange(4).reshape(2, 2), {"prediction": (pa.list_(pa.int64(), 2), [[0, 1], [2, 3]])}),
        (
            torch.arange(8).reshape(2, 2, 2),
            {"prediction": (pa.list_(pa.list_(pa.int64(), 2), 2), [[[0, 1], [2, 3]], [[4, 5], [6, 7]]])},
        ),
        ({"score": NUMBERS, "loss": torch.tensor(3.0)}, {"score": (pa.float32(), [1.5, 2.5])}),
        ((NUMBERS, NUMBERS), {f"prediction_{at}": (pa.float32(), [1.5, 2.5]) for at in (0, 1)}),
        (Parts(NUMBERS, ["x", "y"]), {"score": (pa.float32(), [1.5, 2.5]), "kind": (pa.string(), ["x", "y"])}),
    ],
)
def test_one_value_or_vector_for_each_row(outputs: Any, columns: dict[str, tuple[pa.DataType, list[Any]]]) -> None:
    found, left_out = columns_of(outputs, 2)
    assert {name: (column.type, column.to_pylist()) for name, column in found.items()} == columns
    assert left_out == (["loss"] if isinstance(outputs, dict) else [])


def test_one_row_may_be_a_number_and_no_rows_keep_their_type() -> None:
    assert columns_of(torch.tensor(2.0), 1)[0]["prediction"].to_pylist() == [2.0]
    assert columns_of(torch.empty(0, 3), 0)[0]["prediction"].type == pa.list_(pa.float32(), 3)


@pytest.mark.parametrize(
    "outputs", [torch.tensor(1.0), torch.zeros(3), None, {"a": 1}, ["x"], [object()] * 2, torch.zeros(2, 0)]
)
def test_anything_else_is_refused(outputs: Any) -> None:
    with pytest.raises(UsageError, match="predict needs a value or a vector for each row"):
        columns_of(outputs, 2)


def test_a_column_keeps_its_values_when_the_module_reuses_the_memory() -> None:
    memory = torch.zeros(2)
    columns = [columns_of(memory.fill_(value), 2)[0]["prediction"] for value in (1.0, 2.0)]
    assert [column.to_pylist() for column in columns] == [[1.0, 1.0], [2.0, 2.0]]
