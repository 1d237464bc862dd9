"""The batches that a module gets for raw rows, some of them at a time.

Lightning's hooks, and the columns of the result, cost as much for a group of batches as for one batch, so batches come
in groups. Each batch is still a step of its own, because hardware adds the values of another batch in another order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from data_contracts.messages.raw_data import PredictRequest
from training.predict.features import Features
from training.predict.raw_rows import RawRows, block_rows
from training.shard.first_pass import TRANSFORM_ROWS

# Bytes of a group's tensors and predictions; a group has one batch at least.
GROUP_BYTES = 2**24
# Rows that are prepared at once if there is no transform.
_AT_ONCE = 2**14


@dataclass(frozen=True)
class Units:
    """How many rows are prepared together, and where an interrupted attempt can continue.

    Attributes:
        at_once: most rows that are prepared together.
        block: no group crosses the end of a block.
        resume: a part ends at a multiple of this many rows.
    """

    at_once: int
    block: int
    resume: int


def units_of(request: PredictRequest) -> Units:
    """With a transform, which may look at neighbouring rows, each attempt prepares the same rows together."""
    size = request.batch_size
    if request.transform is not None:
        block = block_rows(size, TRANSFORM_ROWS)
        return Units(TRANSFORM_ROWS, block, block)
    block = block_rows(size, _AT_ONCE)
    return Units(block, block, size)


@dataclass
class Group:
    """Batches that follow each other.

    Attributes:
        first: row number of the first row.
        sizes: rows of each batch.
        kept: columns of the raw rows to copy to the output.
        done: batches that have predictions.
    """

    first: int
    sizes: list[int]
    kept: dict[str, pa.ChunkedArray]
    done: int = 0

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(self.sizes)

    @property
    def current(self) -> tuple[int, int]:
        """The first row of the batch that has no predictions yet, and how many rows it has."""
        at = min(self.done, len(self.sizes) - 1)
        return self.first + sum(self.sizes[:at]), self.sizes[at]


class Batches:
    """What Lightning iterates: groups of batches as lists, or single batches.

    Attributes:
        waiting: the groups that were handed out and have no predictions yet.
        only_none: give one batch without rows.
        output_bytes: of the predictions of a row, once some are known.
        grouped: whether it yields lists of batches; else each batch by itself.
    """

    def __init__(
        self, raw: RawRows, features: Features, request: PredictRequest, units: Units, first: int, *, grouped: bool
    ) -> None:
        """Begin at row `first`, where a unit of `Units.resume` begins; `grouped` as below."""
        self._raw, self._features, self._keep = raw, features, request.keep
        self._size, self._first, self._units, self.grouped = request.batch_size, first, units, grouped
        self.waiting: deque[Group] = deque()
        self.only_none = False
        self.output_bytes: float | None = None

    def __iter__(self) -> Iterator[Any]:
        raw, features, size = self._raw, self._features, self._size
        if self.only_none:
            none = pa.RecordBatch.from_pylist([], raw.schema)
            yield from self._of(0, [features.rows(0, none)], [self._beside(none)], 0)
            return
        rows: list[pa.Table] = []
        kept: list[pa.Table] = []
        have, at = 0, self._first
        for first, batch in raw.batches(self._first, self._units.block, self._units.at_once):
            rows.append(features.rows(first, batch))
            kept.append(self._beside(batch))
            have += batch.num_rows
            at_end = (first + batch.num_rows) % self._units.block == 0
            ready = have if at_end else have - have % size
            if ready:
                yield from self._of(at, rows, kept, ready)
                rows, kept, have, at = _rest(rows, ready), _rest(kept, ready), have - ready, at + ready
        if have:
            yield from self._of(at, rows, kept, have)

    def _beside(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch.select(self._keep)])

    def _of(self, at: int, rows: list[pa.Table], kept: list[pa.Table], ready: int) -> Iterator[Any]:
        """The first `ready` rows of tables in groups."""
        table = pa.concat_tables(rows).slice(0, ready)
        beside = pa.concat_tables(kept) if self._keep else None
        done, rows_in, sizes, held = 0, 0, list[int](), list[Any]()
        row_bytes: float | None = None
        for batch in self._features.batches(at, table, self._size):
            held.append(batch)
            sizes.append(min(self._size, ready - done - rows_in))
            rows_in += sizes[-1]
            if row_bytes is None:
                row_bytes = bytes_in(batch) / max(rows_in, 1)
            made = self.output_bytes
            if self.grouped and made is not None and (row_bytes + made) * rows_in < GROUP_BYTES:
                continue
            yield self._handed(at, beside, done, sizes, held)
            done, rows_in, sizes, held = done + rows_in, 0, [], []
        if held:
            yield self._handed(at, beside, done, sizes, held)

    def _handed(self, at: int, beside: pa.Table | None, done: int, sizes: list[int], batches: list[Any]) -> Any:
        columns = {} if beside is None else dict(zip(self._keep, beside.columns, strict=True))
        kept = {name: column.slice(done, sum(sizes)) for name, column in columns.items()}
        self.waiting.append(Group(at + done, sizes, kept))
        return batches if self.grouped else batches[0]


def steps_of(
    step: Callable[..., Any], batches: Batches, first: int, *, numbered: bool, moved: Callable[[], None]
) -> Any:
    """A `predict_step` for a group: it calls the module's own for each batch and returns their results as a list.

    Args:
        first: number of the first batch.
        numbered: whether the module's takes the number of a batch.
        moved: called after each batch.
    """
    number = first

    def predict_step(group: list[Any]) -> list[Any]:
        nonlocal number
        outputs = []
        for batch in group:
            outputs.append(copied(step(batch, number) if numbered else step(batch)))
            number += 1
            batches.waiting[0].done += 1
            moved()
        return outputs

    return predict_step


def copied(outputs: Any) -> Any:
    """The outputs with tensors of their own: a compiled module may reuse their memory for the next batch."""
    if isinstance(outputs, torch.Tensor):
        return outputs.detach().clone()
    if isinstance(outputs, dict):
        return {name: copied(value) for name, value in outputs.items()}
    if isinstance(outputs, tuple):
        parts = [copied(value) for value in outputs]
        return type(outputs)(*parts) if hasattr(outputs, "_fields") else tuple(parts)
    return outputs


def bytes_in(value: Any) -> int:
    """Bytes of the tensors in a batch or in outputs."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(bytes_in, value.values()))
    return sum(map(bytes_in, value)) if isinstance(value, tuple | list) else 0


def _rest(parts: list[pa.Table], done: int) -> list[pa.Table]:
    """What is left of tables after their first `done` rows."""
    left = []
    for one in parts:
        if done < one.num_rows:
            left.append(one.slice(done))
        done = max(0, done - one.num_rows)
    return left
