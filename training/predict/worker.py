"""The child process of `predict`: predicts for each row of raw files, part by part, and joins the parts to one file.

Run as `python -m training.predict.worker REQUEST ANSWER` by `infra.child`. A killed attempt is continued after its last
finished part. What `predict_step` returned for a batch becomes columns, one value or one vector for each row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pyarrow as pa
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from data_contracts.errors import TrainwrightError, UsageError, UserCodeError
from data_contracts.messages.raw_data import PREDICT, Predicted, PredictRequest
from infra.processes.child_main import Report, child_main
from infra.store import open_at
from training.checkpoint import load_module_weights
from training.predict.batches import Batches, BatchRows, Features, name_rows
from training.predict.output import (
    UnfinishedOutput,
    join,
    names_in,
    output_exists,
    read_parts,
    refuse_columns,
    refuse_twice,
    room,
    schema_of,
    suffix_of,
)
from training.predict.raw_rows import block_rows, input_rows_shown, look_at
from training.score.outcomes import NAME, columns_and_types
from training.score.team import CountBatches, Progress, local_copy, read_again
from training.shard.two_passes import Meter
from training.user.imports import user_code
from training.user.ready import build_module, call_forward, plain_trainer

# A part ends with a block, after so many rows or seconds.
PART_ROWS = 2**16
PART_S = 5.0
# Rows whose predictions are written at once, fewer if they have more bytes.
_CHUNK_ROWS, _CHUNK_BYTES = 2**13, 2**24


class PartWriter:
    """Writes predictions to parts.

    Attributes:
        end: the row after the last one that was added.
        finished: whether a part was finished.
        left_out: entries of the predictions that are not written.
    """

    def __init__(self, draft: UnfinishedOutput, request: PredictRequest, first: int) -> None:
        self._draft, self._keep, self._output = draft, request.keep, Path(request.output)
        self._block, self.end, self._first = block_rows(request.batch_size), first, first
        self.left_out: list[str] = []
        self.finished = bool(first)
        self._schema: pa.Schema | None = schema_of(draft.parts()[0][2]) if first else None
        self._waiting: list[pa.RecordBatch] = []
        self._file: Any = None
        self._stream: Any = None
        self._since = time.monotonic()

    def add(self, rows: BatchRows, outputs: Any) -> None:
        """Write the rows of a batch with what the module returned; UsageError if its columns are not as before."""
        found, self.left_out = columns_of(outputs, rows.count)
        if self._schema is None:
            refuse_twice(["row", *self._keep, *found])
        kept = {name: column.combine_chunks() for name, column in rows.kept.items()}
        end = rows.first + rows.count
        numbers = pa.array(np.arange(rows.first, end, dtype=np.int64))
        batch = pa.RecordBatch.from_pydict({"row": numbers, **kept, **found})
        if self._schema is None:
            refuse_columns(batch.schema, self._output)
            self._schema = batch.schema
        if batch.schema != self._schema:
            raise UsageError(
                f"predict_step returns other columns for {input_rows_shown(rows.first, rows.count)} "
                f"({columns_and_types(batch.schema)}) than before ({columns_and_types(self._schema)}).",
                remedy="Let it return values of one shape and type for each row.",
            )
        self._waiting.append(batch)
        self.end = end
        if _is_chunk(self._waiting):
            self._flush()
        if self.end % self._block == 0:
            long = time.monotonic() - self._since >= PART_S
            if long or self.end - self._first >= PART_ROWS:
                self.finish_part()

    def finish_part(self) -> None:
        """Complete the part, if it has rows or is the only one."""
        if self._schema is None or (self.end == self._first and self.finished):
            return
        with room(self._output, self._first):
            self._flush()
            self._stream.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._stream = self._file = None
            self._draft.finish(self._first, self.end)
        self._first, self._since, self.finished = self.end, time.monotonic(), True

    def close(self) -> None:
        """Drop the part that is not complete."""
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        with room(self._output, self._first):
            if self._stream is None:
                self._file = self._draft.unfinished.open("wb")
                self._stream = pa.ipc.new_file(self._file, self._schema)
            if self._waiting:
                self._stream.write_table(pa.Table.from_batches(self._waiting).combine_chunks())
        self._waiting = []


def _is_chunk(batches: list[pa.RecordBatch]) -> bool:
    return sum(one.num_rows for one in batches) >= _CHUNK_ROWS or sum(one.nbytes for one in batches) >= _CHUNK_BYTES


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
            f"predict_step returns {_type_of(outputs)} for {rows} rows; predict needs a value or a vector for each "
            "row.",
            remedy="Return a tensor whose first dimension is the batch, or a dictionary of such tensors.",
        )
    return found, [name for name in parts if name not in found]


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
    # A copy: a compiled module may reuse the memory for the next batch.
    array = np.array(value.numpy(), order="C")
    column = pa.array(array.reshape(-1))
    if value.ndim == 1 or tuple(value.shape[1:]) == (1,):
        return column
    for size in reversed(value.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _type_of(outputs: Any) -> str:
    if isinstance(outputs, torch.Tensor):
        return f"a tensor of shape {tuple(outputs.shape)}"
    return f"a {type(outputs).__name__}"


def main(request: PredictRequest, report: Report) -> Predicted:
    """Predict for the rows that a request names; continues an interrupted attempt.

    Raises:
        UsageError: a column is missing or of another type, the output exists, another process writes it.
        UserCodeError: the user's code raised, or gives other rows than it gets.
        StorageUnavailable: the disk is full. CorruptError: the checkpoint or the input changed.
    """
    output = Path(request.output)
    suffix_of(output)
    draft = UnfinishedOutput(output, request.identity)
    with closing(draft):
        try:
            if os.path.lexists(output) and not request.overwrite:
                raise output_exists(output)
            return _Work(request, report, draft).done()
        except TrainwrightError:
            with suppress(OSError):  # the error of the work is the one to tell
                if not draft.parts():  # nothing to continue from
                    draft.remove()
            raise


class _Work:
    """One attempt."""

    def __init__(self, request: PredictRequest, report: Report, draft: UnfinishedOutput) -> None:
        self._request, self._draft = request, draft
        self._meter, self._progress = Meter(report), Progress(report)
        self._left_out: list[str] = []
        self._raw = look_at(request.files, request.sources, Path(request.root), request.raw_types, request.keep)
        self._resumed = draft.parts()[-1][1] if draft.parts() else 0

    def done(self) -> Predicted:
        """The answer, once the output has its name."""
        request, draft = self._request, self._draft
        module = self._module()
        features = Features(request, self._raw, request.project)
        self._predict(module, features)
        parts = draft.parts()
        schema, rows = schema_of(parts[0][2]), parts[-1][1]
        self._meter.begin("writing", rows)
        with room(draft.output, rows), draft.whole.open("wb") as file:
            pass
        with room(draft.output, rows):
            paths = [path for _, _, path in parts]
            join(read_parts(paths, self._written), schema, draft.output, draft.whole)
            with draft.whole.open("rb") as file:
                os.fsync(file.fileno())
        answer = Predicted(
            rows=rows,
            columns=names_in(schema, draft.output),
            resumed_rows=self._resumed,
            begun_anew=draft.begun_anew,
            left_out=self._left_out,
            no_label=features.no_label,
            bytes=draft.whole.stat().st_size,
        )
        with room(draft.output, rows):
            draft.publish(overwrite=request.overwrite)
        return answer

    def _written(self, rows: int) -> None:
        self._progress.moved()
        self._meter.add(rows)

    def _module(self) -> L.LightningModule:
        """The module, which loads the weights of the checkpoint; their bytes are compared with its seal first."""
        request, store = self._request, open_at(self._request.store)
        self._progress.moved(long=True)
        read_again(store, request.checkpoint, self._progress, None)
        folder = local_copy(store, request.checkpoint.ref, None)
        module = build_module(request.train, request.project, load=lambda module: load_module_weights(module, folder))
        if not is_overridden("predict_step", module, L.LightningModule):
            targets = {one.get("target") for one in request.evaluate.get("metrics", {}).values()}

            def predict_step(batch: Any, *_: Any) -> Any:
                return call_forward(module, batch, targets, request.train.get("batch"))

            module.predict_step = predict_step  # type: ignore[method-assign]
        return module

    def _predict(self, module: L.LightningModule, features: Features) -> None:
        """Predict for all rows that no finished part has."""
        request, raw = self._request, self._raw
        if raw.total is not None and self._resumed == raw.total > 0:
            return
        total_bytes = sum(file.bytes for file in raw.files)
        self._meter.begin("predicting", raw.total, total_bytes)
        self._count(self._resumed)
        batches = Batches(raw, features, request, self._resumed)
        with closing(PartWriter(self._draft, request, self._resumed)) as writer:
            self._run(module, batches, writer)
            if not writer.end and not writer.finished:
                # No rows at all: the columns come from a batch of none.
                batches.only_none = True
                self._run(module, batches, writer)
            writer.finish_part()
        self._left_out = writer.left_out

    def _run(self, module: L.LightningModule, batches: Batches, writer: PartWriter) -> None:
        callback = _Predictions(batches, writer, self._count)
        trainer = plain_trainer(self._request.train, [callback, CountBatches(self._progress)])
        try:
            with user_code("the module's predict_step", self._request.project):
                trainer.predict(module, dataloaders=batches, return_predictions=False)
        except UserCodeError as error:
            if batches.waiting:
                rows = batches.waiting[0]
                name_rows(error, partial(self._raw.in_words, rows.first, rows.count))
            raise

    def _count(self, rows: int) -> None:
        self._meter.add(rows, round(rows * self._raw.row_bytes))


class _Predictions(L.Callback):
    """Passes each batch's predictions on."""

    def __init__(self, batches: Batches, writer: PartWriter, count: Callable[[int], None]) -> None:
        self._batches, self._writer, self._count = batches, writer, count

    def on_predict_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any) -> None:
        """Write the predictions of a batch."""
        rows = self._batches.waiting.popleft()
        self._writer.add(rows, outputs)
        self._count(rows.count)


if __name__ == "__main__":
    child_main(PREDICT, main)
