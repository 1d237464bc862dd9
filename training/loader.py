"""Our loader: the rows of a sealed split, held in memory as arrays, handed over as torch batches in a given order.

`TrainLoader` follows the sample order and has a cursor, the samples consumed over all ranks; `OrderedLoader` yields
each row once, in stored order, for validation and evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset
from training import formats
from training.formats.schema import pick, read_schema, tensor_of
from training.order import global_order
from training.plan import Plan

Transform = Callable[[Any], Any]
BatchSpec = list[str | list[str]] | dict[str, str | list[str]] | None


class Split:
    """The rows of one split.

    Attributes:
        num_rows: rows in it.
    """

    def __init__(
        self, folder: Path, dataset: Dataset, split: str, batch: BatchSpec = None, transform: Transform | None = None
    ) -> None:
        """Read the columns that `batch` (the spec's `train.batch`) names from the dataset's local folder.

        Args:
            transform: the user's `train.transform`, applied to every batch; it raises UserCodeError.

        Raises:
            UsageError: no such split or column, or a column that a tensor cannot hold.
            CorruptError: a shard's file is not what its schema says.
        """
        if not dataset.splits.get(split):
            raise UsageError(
                f"The dataset has no split {split!r}; it has {', '.join(dataset.splits)}.",
                remedy="Name one of these, or change shards.split.",
            )
        self.split = split
        self._transform = transform
        table = self._read(folder, dataset, batch)
        self.num_rows = table.num_rows
        entries = {name: name for name in table.column_names} if batch is None else batch
        self._as_tuple = isinstance(entries, list)
        pairs = enumerate(entries) if isinstance(entries, list) else entries.items()
        self._sources = {key: self._source(table, columns) for key, columns in pairs}

    def take(self, rows: np.ndarray | slice) -> Any:
        """The batch of these rows: a tuple or dictionary as `train.batch` says, after the user's transform.

        Numbers are tensors of their own dtype (float64 becomes float32, torch's default), times integers of their
        unit, texts and bytes lists, lists of numbers a list of tensors, other lists as they are.
        """
        values = {key: source(rows) for key, source in self._sources.items()}
        batch = tuple(values.values()) if self._as_tuple else values
        return batch if self._transform is None else self._transform(batch)

    def _read(self, folder: Path, dataset: Dataset, batch: BatchSpec) -> pa.Table:
        schema = read_schema(folder)
        wanted = None
        if batch is not None:
            entries = batch if isinstance(batch, list) else list(batch.values())
            listed = [name for entry in entries for name in ([entry] if isinstance(entry, str) else entry)]
            wanted = list(dict.fromkeys(listed))
            pick(schema, wanted)
        reader = formats.get(dataset.format)
        tables = [reader.read_shard(folder / shard.path, schema, wanted) for shard in dataset.splits[self.split]]
        return pa.concat_tables(tables).combine_chunks()

    def _source(self, table: pa.Table, columns: str | list[str]) -> Callable[[np.ndarray | slice], Any]:
        if isinstance(columns, str):
            return self._column(table, columns)
        arrays = []
        for name in columns:
            array = self._numbers(table, name)
            if array is None or array.ndim != 1:
                raise UsageError(
                    f"train.batch: column {name!r} is no number per row, so it cannot be stacked with others.",
                    remedy="Name it on its own.",
                )
            arrays.append(array)
        stacked = np.stack(arrays, axis=1).astype(np.float32)
        return lambda rows: _tensor(stacked, rows)

    def _column(self, table: pa.Table, name: str) -> Callable[[np.ndarray | slice], Any]:
        array = self._numbers(table, name)
        if array is not None:
            return lambda rows: _tensor(array, rows)
        column = table.column(name).combine_chunks()
        kind = column.type.value_type if pa.types.is_list(column.type) else None
        is_tensors = kind is not None and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        )

        def take(rows: np.ndarray | slice) -> list[Any]:
            values = column[rows] if isinstance(rows, slice) else column.take(pa.array(rows))
            if is_tensors:
                return [None if value.values is None else torch.from_numpy(np.array(value.values)) for value in values]
            return values.to_pylist()

        return take

    def _numbers(self, table: pa.Table, name: str) -> np.ndarray | None:
        """The column as an array with one row per row, None if its values are no numbers."""
        field = table.schema.field(name)
        column = table.column(name).combine_chunks()
        kind = column.type
        tensor = tensor_of(field)
        is_time = pa.types.is_temporal(kind)
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if tensor is None and not (is_time or is_number or pa.types.is_decimal(kind)):
            return None
        if column.null_count and not pa.types.is_floating(kind):
            raise UsageError(
                f"Column {name!r} has no value in {column.null_count} rows of split {self.split}, "
                f"which a tensor of {kind} cannot say.",
                remedy="Fill or drop them in shards.transform, or leave the column out of train.batch.",
            )
        if tensor is not None:
            dtype, shape = tensor
            start = column.offset * kind.byte_width
            stop = start + len(column) * kind.byte_width
            flat = np.frombuffer(column.buffers()[1], np.uint8)[start:stop]
            array = flat.view(dtype.newbyteorder("<")).reshape(len(column), *shape)
        elif is_time:
            array = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_numpy()
        else:
            array = (column.cast(pa.float64()) if pa.types.is_decimal(kind) else column).to_numpy(zero_copy_only=False)
        return array.astype(np.float32) if array.dtype == np.float64 else array


class TrainLoader:
    """One rank's micro-batches, epoch after epoch, from a cursor that any number of ranks can go on from."""

    def __init__(self, split: Split, plan: Plan, dataset_id: str, seed: int, rank: int) -> None:
        self.split = split
        self.plan = plan
        self._order_of = (dataset_id, seed)
        self._rank = rank
        self._order: tuple[int, np.ndarray] | None = None
        self._served = 0

    @property
    def samples(self) -> int:
        """Samples consumed over all ranks and epochs, in whole global batches."""
        return self._served // self.plan.accumulate * self.plan.global_batch

    def __len__(self) -> int:
        return self.plan.steps_per_epoch * self.plan.accumulate

    def __iter__(self) -> Iterator[Any]:
        # It goes on where the cursor stands: an epoch that Lightning cuts short (`limit_train_batches`) skips nothing.
        for _ in range(len(self)):
            step, micro_step = divmod(self._served, self.plan.accumulate)
            epoch, step_in_epoch = self.plan.position(step * self.plan.global_batch)
            rows = self.plan.micro_rows(self._epoch_order(epoch), step_in_epoch, micro_step, self._rank)
            batch = self.split.take(rows)
            self._served += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The cursor: `{"samples": …}`."""
        return {"samples": self.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after so many samples; UsageError if they are no whole number of global batches."""
        steps, rest = divmod(state["samples"], self.plan.global_batch)
        if rest:
            raise UsageError(
                f"The checkpoint stands at {state['samples']} samples, in the middle of a global batch of "
                f"{self.plan.global_batch}.",
                remedy="Resume with the train.global_batch_size that it was made with.",
            )
        self._served = steps * self.plan.accumulate

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, global_order(self.plan.num_rows, *self._order_of, epoch))
        return self._order[1]


class OrderedLoader:
    """Every row of a split once, in stored order, in batches of at most `batch_size` (one more where ranks demand it).

    With several ranks each takes its share, and all take the same number of batches, so that collectives in a step
    meet; nothing is padded, batches differ by a row instead. A split with fewer rows than ranks goes to every rank.
    """

    def __init__(self, split: Split, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self.split = split
        rows = split.num_rows
        share = world_size if rows >= world_size else 1
        per_rank = -(-rows // (batch_size * share))
        # Fewer batches, of a row more, where the last round would leave a rank with an empty one.
        pieces = max(1, min(per_rank, rows // share)) * share if rows else 0
        mine = range(rank % share, pieces, share)
        self.bounds = (
            [(at * batch_size, min((at + 1) * batch_size, rows)) for at in mine]
            if share == 1
            else [(at * rows // pieces, (at + 1) * rows // pieces) for at in mine]
        )

    def __len__(self) -> int:
        return len(self.bounds)

    def __iter__(self) -> Iterator[Any]:
        for start, stop in self.bounds:
            yield self.split.take(slice(start, stop))


def _tensor(array: np.ndarray, rows: np.ndarray | slice) -> torch.Tensor:
    part = array[rows]
    # A slice is a view into memory that Arrow owns and forbids to change; a gather is a copy already.
    return torch.from_numpy(part.copy() if isinstance(rows, slice) else part)
