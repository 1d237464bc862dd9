"""The inputs of an exported model: a dataset's columns as they are, and how a batch is made of them in a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from data_contracts.errors import UsageError
from data_contracts.messages.commands import TensorFacts
from training.formats.schema import pick, tensor_of, type_text
from training.formats.shards import Shards
from training.loader.columns import Fixed, columns_of, names_of, numbers

# The largest sample, and the longest run of rows in it that follow each other.
SAMPLE = 256
RUN = 32


class NotTensors(UsageError):
    """A batch holds something that cannot be an input of a graph."""

    default_remedy = (
        "Pad the column (train.loader.pad), make tensors in train.transform, or export the weights alone (--to "
        "safetensors)."
    )


@dataclass(frozen=True)
class Entry:
    """One entry of a batch: columns that are stacked, or one column in the loader's type."""

    columns: tuple[str, ...]
    stacked: bool
    dtype: torch.dtype

    def made(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The entry, as the loader makes it: (rows, columns) or (rows, *shape)."""
        parts = [inputs[name].to(self.dtype) for name in self.columns]
        return torch.stack(parts, 1) if self.stacked else parts[0]


@dataclass(frozen=True)
class Columns:
    """Makes a batch of a dataset's columns, as `train.batch` says.

    Attributes:
        keys: of the batch; None: it is a tuple.
        facts: of the inputs, one for each column that is read.
    """

    keys: Sequence[str] | None
    entries: Sequence[Entry]
    facts: Sequence[TensorFacts]

    def batch(self, inputs: Mapping[str, Tensor]) -> Any:
        """The batch of these inputs, by column."""
        made = [entry.made(inputs) for entry in self.entries]
        return tuple(made) if self.keys is None else dict(zip(self.keys, made, strict=True))


def columns_in(schema: pa.Schema, train: Mapping[str, Any]) -> Columns | None:
    """The columns that a batch is made of; None if one of them is not a tensor of the same shape in each row."""
    pad = (train.get("loader") or {}).get("pad", {})
    keys, columns = columns_of(schema, train.get("batch"), pad)
    if not columns or not all(isinstance(one, Fixed) for one in columns):
        return None
    fields = {name: pick(schema, [name]).field(0) for name in names_of(columns)}
    facts = [_facts(field) for field in fields.values()]
    shapes = {one.name: one.shape[1:] for one in facts}
    entries = [
        Entry(one.columns, list(one.shape) != shapes[one.columns[0]], _torch_type(one.dtype))
        for one in columns
        if isinstance(one, Fixed)
    ]
    return Columns(keys, entries, facts)


def _facts(field: pa.Field) -> TensorFacts:
    tensor = tensor_of(field)
    dtype, shape = (tensor[0].name, tensor[1]) if tensor is not None else (_dtype(field.type), ())
    return TensorFacts(name=field.name, dtype=dtype, shape=["rows", *shape], column=type_text(field))


def _dtype(kind: pa.DataType) -> str:
    """NumPy's name of a column's type, as `training.loader.columns.numbers` reads it."""
    if pa.types.is_temporal(kind):
        return "int32" if kind.bit_width == 32 else "int64"
    return "float64" if pa.types.is_decimal(kind) else np.dtype(kind.to_pandas_dtype()).name


def _torch_type(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def sampled(num_rows: int) -> list[tuple[int, int]]:
    """Runs (from, to) of rows that are spread over all rows, the first and the last among them; at most SAMPLE rows."""
    if num_rows <= SAMPLE:
        return [(0, num_rows)]
    starts = np.linspace(0, num_rows - RUN, SAMPLE // RUN).astype(int).tolist()
    runs: list[tuple[int, int]] = []
    for start in starts:
        begin = max(start, runs[-1][1] if runs else 0)
        runs.append((begin, start + RUN))
    return runs


def read_columns(shards: Shards, facts: Sequence[TensorFacts], runs: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """The values of these rows, by column, in the dataset's own types."""
    names = [one.name for one in facts]
    starts = np.cumsum([0, *shards.rows]).tolist()
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for first, end in runs:
        for number, start in enumerate(starts[:-1]):
            begin, stop = max(first, start), min(end, starts[number + 1])
            for table in shards.tables(number, names, begin - start, stop - start) if begin < stop else ():
                for name in names:
                    parts[name].append(np.array(numbers(table, name)))
    return {one.name: torch.from_numpy(np.concatenate(parts[one.name])) for one in facts}


def flattened(batch: Any, columns: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors in a batch by name, and what puts them together again.

    Args:
        columns: the spec's `train.batch`, whose columns name the entries of a tuple.

    Raises: NotTensors if the batch holds anything else.
    """
    paths, spec = pytree.tree_flatten_with_path(batch)
    found: dict[str, Tensor] = {}
    for path, value in paths:
        name = "_".join(_part(key, columns if len(path) == 1 else None) for key in path) or "input"
        if not isinstance(value, Tensor):
            raise NotTensors(
                f"The model cannot be exported: the entry {name} of a batch is a {type(value).__name__}, not a tensor."
            )
        found[name if name not in found else f"{name}_{len(found)}"] = value
    return found, spec


def _part(key: Any, columns: Any) -> str:
    at = getattr(key, "idx", None)
    if at is None:
        return str(getattr(key, "key", getattr(key, "name", key)))
    named = columns[at] if isinstance(columns, list) and at < len(columns) else None
    return named if isinstance(named, str) else f"input_{at}"
