"""From raw rows to the batches that a module gets.

`shards.transform`, the types of the shards, `train.batch` and `train.transform` come in turn; the same functions as in
sharding and loading do the work. Only the label may be missing: it gets a placeholder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.messages.raw_data import PredictRequest
from data_contracts.quoting import column_shown, type_shown
from training.formats.schema import conform_rows, field_of, holds, narrow, tensor_of
from training.loader import stored_order
from training.loader.rows import Fixed, columns_of, names_of
from training.predict.raw_rows import RawRows, block_rows, label_columns, no_column, type_from
from training.shard.first_pass import checked_rows, fewest_rows
from training.user.imports import add_project, borrowed, load_callable
from training.user.ready import batch_transform


@dataclass(frozen=True)
class BatchRows:
    """The raw rows of a batch.

    Attributes:
        first: number of the first row.
        kept: columns to copy to the output.
    """

    first: int
    count: int
    kept: dict[str, pa.ChunkedArray]


class Batches:
    """What Lightning iterates.

    Attributes:
        waiting: the rows of the batches that were handed out and have no predictions yet.
        only_none: give one batch without rows.
    """

    def __init__(self, raw: RawRows, features: Features, request: PredictRequest, first: int) -> None:
        """Begin at row `first`, where a block begins."""
        self._raw, self._features, self._keep = raw, features, request.keep
        self._size, self._first, self._block = request.batch_size, first, block_rows(request.batch_size)
        self.waiting: deque[BatchRows] = deque()
        self.only_none = False

    def __iter__(self) -> Iterator[Any]:
        raw, features, size = self._raw, self._features, self._size
        if self.only_none:
            none = pa.RecordBatch.from_pylist([], raw.schema)
            yield from self._of(0, [features.rows(0, none)], [self._beside(none)], 0)
            return
        rows: list[pa.Table] = []
        kept: list[pa.Table] = []
        have, at = 0, self._first
        for first, batch in raw.batches(self._first, self._block):
            rows.append(features.rows(first, batch))
            kept.append(self._beside(batch))
            have += batch.num_rows
            at_end = (first + batch.num_rows) % self._block == 0
            ready = have if at_end else have - have % size
            if ready:
                yield from self._of(at, rows, kept, ready)
                rows, kept, have, at = _rest(rows, ready), _rest(kept, ready), have - ready, at + ready
        if have:
            yield from self._of(at, rows, kept, have)

    def _beside(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch.select(self._keep)])

    def _of(self, at: int, rows: list[pa.Table], kept: list[pa.Table], ready: int) -> Iterator[Any]:
        """The first `ready` rows of tables in batches."""
        columns = pa.concat_tables(kept).columns if self._keep else []
        table = pa.concat_tables(rows).slice(0, ready)
        for number, batch in enumerate(self._features.batches(at, table, self._size)):
            start = number * self._size
            count = min(self._size, ready - start)
            beside = {name: column.slice(start, count) for name, column in zip(self._keep, columns, strict=True)}
            self.waiting.append(BatchRows(at + start, count, beside))
            yield batch


def _rest(parts: list[pa.Table], done: int) -> list[pa.Table]:
    """What is left of tables after their first `done` rows."""
    left = []
    for one in parts:
        if done < one.num_rows:
            left.append(one.slice(done))
        done = max(0, done - one.num_rows)
    return left


class Features:
    """Prepares rows as sharding and training did.

    Attributes:
        no_label: columns of the label that the rows lack.
    """

    def __init__(self, request: PredictRequest, raw: RawRows, project: Path) -> None:
        """Import the user's functions.

        Raises: UsageError or UserCodeError if they cannot be imported; UsageError if a column is missing that no
        transform could make.
        """
        self._raw, self._raw_types = raw, request.raw_types
        every = pa.schema([field_of(name, text) for name, text in request.dataset_columns.items()])
        self.keys, self._columns = columns_of(every, request.train["batch"], stored_order(request.train).pad)
        self.schema = pa.schema([every.field(name) for name in names_of(self._columns)])
        metrics = request.evaluate.get("metrics", {})
        self.label = label_columns(request.train["batch"], metrics, every.names) | set(request.label)
        own = request.path(request.rows_code)
        self._transform = None
        if request.transform is not None:
            with borrowed(own, project) if own != project else nullcontext():
                where = add_project(own)
                self._transform = load_callable(
                    request.transform.call, request.transform.args, "shards.transform", where
                )
        self._per_batch = batch_transform(request.train, project)
        trained = set(raw.trained)
        self.no_label = sorted((self.label & {*raw.absent, *self.schema.names}) - trained)
        if self._transform is None:
            for name in self.schema.names:
                if name not in trained and name not in self.label:
                    raise no_column("train.batch", name, raw.all_columns)

    def rows(self, at: int, batch: pa.RecordBatch) -> pa.Table:
        """The rows as shards would hold them, with the columns of `schema`, one for each raw row.

        Raises:
            UserCodeError: the transform raised, or returned another number of rows.
            UsageError: a column does not have the type that it had in training.
        """
        where = partial(self._raw.in_words, at, batch.num_rows)
        made = self._transformed(at, self._with_label(batch.select(self._raw.trained)))
        if made.num_rows != batch.num_rows:
            raise UserCodeError(
                f"shards.transform returned {made.num_rows:,} rows for {where()}; predict needs one for each.",
                remedy="Let it keep every row, in order, and leave rows out in the input instead.",
            )
        there = set(made.column_names)
        narrowed = narrow(made.select([name for name in self.schema.names if name in there]))
        columns = [self._conformed(where, narrowed, field, batch.num_rows) for field in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def batches(self, at: int, rows: pa.Table, size: int) -> Iterator[Any]:
        """Batches of `size` rows as the module gets them; UsageError for a missing value that a tensor cannot show."""
        columns = []
        try:
            for column in self._columns:
                values: Any
                if isinstance(column, Fixed):
                    values = np.empty((rows.num_rows, *column.shape), column.dtype)
                    column.decode(rows, values)
                else:
                    values = column.decode(rows)
                columns.append(column.batches(values, size))
        except UsageError as error:
            raise UsageError(
                f"{error.message.rstrip('.')} ({self._raw.in_words(at, rows.num_rows)}).", remedy=error.remedy
            ) from error
        if not rows.num_rows:
            columns = [one or [_empty(column)] for one, column in zip(columns, self._columns, strict=True)]
        for number, one in enumerate(zip(*columns, strict=True)):
            batch: Any = one if self.keys is None else dict(zip(self.keys, one, strict=True))
            if self._per_batch is not None:
                first = number * size
                try:
                    batch = self._per_batch(batch)
                except UserCodeError as error:
                    name_rows(error, partial(self._raw.in_words, at + first, min(size, rows.num_rows - first)))
                    raise
            yield batch

    def _with_label(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The raw rows with nulls for a label that they lack, where sharding read it."""
        if self._transform is None or not self.no_label:
            return rows
        arrays = []
        there = set(rows.schema.names)
        names = [name for name in self._raw_types if name in there or name in self.no_label]
        for name in names:
            kind = type_from(self._raw_types[name]) or pa.null()
            arrays.append(rows.column(name) if name in there else pa.nulls(rows.num_rows, kind))
        return pa.RecordBatch.from_arrays(arrays, names=names) if names else rows

    def _transformed(self, at: int, rows: pa.RecordBatch) -> pa.Table:
        if self._transform is None:
            return pa.Table.from_batches([rows])
        try:
            return checked_rows(self._transform(rows))
        except UserCodeError as error:
            first, last = fewest_rows(self._transform, rows, error)
            error.message = f"{error.message.rstrip('.')}, on {self._raw.in_words(at + first, last - first)}."
            missing = [name for name in self._raw.absent if name not in self.no_label]
            if missing:
                error.message += f" The input has no column {', '.join(map(column_shown, missing))}."
                error.remedy = "Add it; if it is a label, name it with --label."
            elif self.no_label:
                error.remedy = f"If it cannot take a null {', '.join(self.no_label)}, add that column with any value."
            raise

    def _conformed(self, where: Callable[[], str], rows: pa.Table, want: pa.Field, count: int) -> pa.ChunkedArray:
        is_label = want.name in self.label
        if rows.schema.get_field_index(want.name) < 0:
            if is_label:
                return pa.chunked_array([placeholder(want, count)])
            raise UserCodeError(
                f"shards.transform gives no column {column_shown(want.name)} for {where()}; train.batch needs it.",
                remedy="Let it give the same columns for all rows.",
            )
        have, column = rows.schema.field(want.name), rows.column(want.name)
        if holds(want, have):
            column = conform_rows(rows.select([want.name]), pa.schema([want])).column(0)
        elif tensor_of(want) is None and tensor_of(have) is None:
            try:
                column = column.cast(want.type)
            except pa.ArrowException:
                raise _other(where(), want, have) from None
        else:
            raise _other(where(), want, have)
        if is_label and column.null_count:
            empty = placeholder(want, count)
            column = pa.chunked_array([pc.if_else(column.is_valid().combine_chunks(), column.combine_chunks(), empty)])
        return column


def placeholder(field: pa.Field, rows: int) -> pa.Array:
    """Rows of a column whose values do not matter: zeros, empty texts, empty lists."""
    kind = field.type
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([bytes(kind.byte_width)] * rows, kind)
    if pa.types.is_list(kind):
        return pa.array([[]] * rows, kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([""] * rows, pa.string()).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array([False] * rows, kind)
    return pa.array(np.zeros(rows, np.int32 if kind.bit_width == 32 else np.int64)).cast(kind, safe=False)


def name_rows(error: UserCodeError, where: Callable[[], str]) -> None:
    """Let an error say on which rows the user's code worked, unless it does."""
    if " of the input" not in error.message:
        error.message = f"{error.message.rstrip('.')}, on {where()}."


def _empty(column: Any) -> Any:
    """A batch's entry of no rows."""

    if isinstance(column, Fixed):
        return torch.from_numpy(np.empty((0, *column.shape), column.dtype))
    return torch.empty(0) if column.lengths or column.pad is not None else []


def _other(where: str, want: pa.Field, have: pa.Field) -> UsageError:
    return UsageError(
        f"The column {column_shown(want.name)} is {type_shown(have.type)} in {where}, but was "
        f"{type_shown(want.type)} in training.",
        remedy="Correct the values, or shards.transform.",
    )
