"""What `predict_step` returned for a batch as columns, one value or one vector for each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from data_contracts.errors import UsageError

NAME = "prediction"


def columns_of(outputs: Any, rows: int) -> tuple[dict[str, pa.Array], list[str]]:
    """The columns by name, and the names of entries of a dictionary or tuple that have no value for each row.

    A tensor (B,) or (B, 1) gives numbers, (B, n, …) vectors, a list of texts or numbers a column of these. float16 and
    bfloat16 become float32, which has all their values.

    Args:
        rows: of the batch, B.

    Raises: UsageError if no entry has one value for each row.
    """
    parts = dict(_parts(outputs))
    found = {name: column for name, value in parts.items() if (column := _column(value, rows)) is not None}
    if not found:
        raise UsageError(
            f"predict_step returns {_said(outputs)} for {rows} rows; predict needs a value or a vector for each row.",
            remedy="Return a tensor whose first dimension is the batch, or a dictionary of such tensors.",
        )
    return found, [name for name in parts if name not in found]


def joined(outputs: Sequence[Any], sizes: Sequence[int]) -> dict[str, torch.Tensor] | None:
    """The outputs of batches that follow each other as those of one batch, where all are tensors of one shape and type.

    Args:
        sizes: rows of each batch.
    """
    every = [dict(_parts(one)) for one in outputs]
    found = {}
    for name, first in every[0].items():
        values: list[Any] = [parts.get(name) for parts in every]
        if not all(_alike(value, first, rows) for value, rows in zip(values, sizes, strict=True)):
            return None
        found[name] = torch.cat(values)
    return found if all(len(parts) == len(found) for parts in every) else None


def _alike(value: Any, first: Any, rows: int) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(first, torch.Tensor):
        return False
    kind = (value.dtype, value.device, value.layout)
    same = value.shape[1:] == first.shape[1:] and kind == (first.dtype, first.device, first.layout)
    return value.ndim > 0 and len(value) == rows and same


def _parts(outputs: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(outputs, Mapping):
        yield from ((str(name), value) for name, value in outputs.items())
    elif isinstance(outputs, tuple):
        names = getattr(outputs, "_fields", None) or [f"{NAME}_{at}" for at in range(len(outputs))]
        yield from zip(names, outputs, strict=True)
    else:
        yield NAME, outputs


def _column(value: Any, rows: int) -> pa.Array | None:
    if isinstance(value, list):
        plain = len(value) == rows and all(isinstance(one, str | int | float | None) for one in value)
        try:
            return pa.array(value) if plain and rows else None
        except pa.ArrowException:  # numbers and texts
            return None
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return None
    value = value.detach().cpu()
    if value.ndim == 0 and rows == 1:
        value = value.reshape(1)
    if value.ndim == 0 or len(value) != rows or 0 in value.shape[1:]:
        return None
    if value.dtype in (torch.float16, torch.bfloat16):
        value = value.float()
    array = np.ascontiguousarray(value.numpy())
    column = pa.array(array.reshape(-1))
    if value.ndim == 1 or tuple(value.shape[1:]) == (1,):
        return column
    for size in reversed(value.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _said(outputs: Any) -> str:
    if isinstance(outputs, torch.Tensor):
        return f"a tensor of shape {tuple(outputs.shape)}"
    return f"a {type(outputs).__name__}"
