"""Keeps what a model predicts for each row of a set as a table in a Parquet file, for `contract.predictions`.

The table is made from what `predict_step` returns, with one line per row in the order of the set; docs/evaluate.md has
the rules. If no table can be made, the reason is kept instead: only the contract needs the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from data_contracts.handoffs import Predictions
from training.score.table_file import TableFile

NAME = "prediction"
# With more values per row, only the place of the largest becomes a column.
MAX_VALUES = 100
# So that the file does not depend on how rows were batched.
_GROUP_ROWS = 2**16

# What a batch gave: its tensors by name, or why it gave none.
BatchTensors = tuple[dict[str, torch.Tensor], str]


class PredictionTable:
    """The predictions of one set, written to a file in `folder` while they come.

    Attributes:
        undecided: why a metric over these predictions has no value; "" if all have one.
    """

    def __init__(self, folder: Path, set_name: str) -> None:
        self.path = folder / f"predictions{f'-{set_name}' if set_name else ''}.parquet"
        self._file = TableFile(self.path, _GROUP_ROWS)
        self._missing = ""
        self.undecided = ""

    def refuse(self, reason: str) -> None:
        """There is no table for this reason; the first one counts."""
        self._missing = self._missing or reason
        self._file.drop()

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Append the rows of a batch: tensors (B,) or (B, n) by name, as `tensors_of` gives them."""
        if self._missing:
            return
        columns: dict[str, pa.Array] = {}
        for name, tensor in tensors.items():
            for column, values in _columns(name, tensor).items():
                if column in columns:
                    self.refuse(f"predict_step returns two columns with the name {column}")
                    return
                columns[column] = values
        table = pa.table(columns)
        if not self._file.append(table):
            assert self._file.schema is not None
            now, first = _described(table.schema), _described(self._file.schema)
            self.refuse(f"predict_step returns other columns ({now}) than for the first batch ({first})")

    def close(self) -> Predictions:
        """Complete the file; returns its name and columns, or why there is none."""
        written = self._file.close()
        if self._missing or not written or self._file.schema is None:
            return Predictions(missing=self._missing or "the set has no rows")
        return Predictions(file=self.path.name, columns=self._file.schema.names)


def tensors_of(outputs: Any, rows: int | None) -> BatchTensors:
    """The tensors with one value, or one list of values, per row in what `predict_step` returned for a batch.

    Args:
        rows: of the batch; None if unknown.
    """
    if isinstance(outputs, torch.Tensor):
        tensor = _per_row(outputs, rows)
        shape = tuple(outputs.shape)
        reason = f"predict_step returns a tensor of shape {shape}, not one value or one list of values for each row"
        return ({}, reason) if tensor is None else ({NAME: tensor}, "")
    if not isinstance(outputs, Mapping):
        return {}, f"predict_step returns a {type(outputs).__name__}, not a tensor or a dictionary of tensors"
    found = {str(name): one for name, value in outputs.items() if (one := _per_row(value, rows)) is not None}
    if not found or len({len(one) for one in found.values()}) > 1:
        return {}, "predict_step returns a dictionary, no entry of which has one value for each row"
    return found, ""


def _per_row(value: Any, rows: int | None) -> torch.Tensor | None:
    """`value` on the CPU, if it is a tensor of numbers with one entry per row, of one or several values."""
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return None
    value = value.detach().cpu()
    if value.ndim == 0:
        value = value.reshape(1)
    if value.ndim > 2 or (rows is not None and len(value) != rows) or (value.ndim == 2 and not value.shape[1]):
        return None
    # Parquet has no bfloat16.
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _columns(name: str, tensor: torch.Tensor) -> dict[str, pa.Array]:
    """The columns of one tensor: its values, or the place of the largest of a row and then each."""
    if tensor.ndim == 1 or tensor.shape[1] == 1:
        return {name: pa.array(tensor.reshape(-1).numpy())}
    # torch takes a NaN for the largest.
    nan = tensor.isnan().any(1)
    columns = {name: pa.array(tensor.to(torch.float64).argmax(1).numpy(), mask=nan.numpy())}
    if tensor.shape[1] <= MAX_VALUES:
        columns |= {f"{name}_{at}": pa.array(tensor[:, at].contiguous().numpy()) for at in range(tensor.shape[1])}
    return columns


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
