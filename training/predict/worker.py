"""The child process of `predict`: predicts for each row of raw files, part by part, and joins the parts to one file.

Run as `python -m training.predict.worker REQUEST ANSWER` by `infra.child`. A killed attempt is continued after its last
finished part.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import lightning as L
import pyarrow as pa
from lightning.pytorch.utilities.model_helpers import is_overridden

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.messages.predicting import PREDICT, Predicted, PredictRequest
from infra.processes.child_main import Report, child_main
from infra.store import open_at
from training.checkpoint import load_module_weights
from training.predict.columns import columns_of, refuse_collisions
from training.predict.draft import Draft, room, taken
from training.predict.features import Features, said_rows
from training.predict.output import join, names_in, read_parts, refuse_columns, schema_of, suffix_of
from training.predict.raw_rows import RawRows, block_rows, look_at
from training.score.batch_entries import inputs_of
from training.score.progress import CountBatches, Progress
from training.score.team import local_copy, read_again
from training.shard.progress import Meter
from training.user.assemble import build_module, plain_trainer
from training.user.imports import user_code

# A part ends at a block's end, after so many rows or seconds.
PART_ROWS = 2**16
PART_S = 5.0
# Rows whose predictions are written at once.
_CHUNK_ROWS = 2**13


def main(request: PredictRequest, report: Report) -> Predicted:
    """Predict for the rows that a request names; continues an interrupted attempt.

    Raises:
        UsageError: a column is missing or of another type, the output exists, another process writes it.
        UserCodeError: the user's code raised, or gives other rows than it gets.
        StorageUnavailable: the disk is full. CorruptError: the checkpoint or the input changed.
    """
    output = Path(request.output)
    suffix_of(output)
    draft = Draft(output, request.identity)
    with closing(draft):
        if (answer := draft.published()) is not None:
            draft.remove()
            return Predicted.from_json(answer)
        if os.path.lexists(output) and not request.overwrite:
            raise taken(output)
        return _Work(request, report, draft).done()


class _Work:
    """One attempt."""

    def __init__(self, request: PredictRequest, report: Report, draft: Draft) -> None:
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
            draft.publish(answer.to_json(), overwrite=request.overwrite)
        return answer

    def _written(self, rows: int) -> None:
        self._progress.moved()
        self._meter.add(rows)

    def _module(self) -> L.LightningModule:
        """The module with the weights of the checkpoint, whose bytes are compared with its seal first."""
        request, store = self._request, open_at(self._request.store)
        self._progress.moved(long=True)
        module = build_module(request.train, request.project)
        read_again(store, request.checkpoint, self._progress, None)
        load_module_weights(module, local_copy(store, request.checkpoint.ref, None))
        if not is_overridden("predict_step", module, L.LightningModule):
            targets = {one.get("target") for one in request.evaluate.get("metrics", {}).values()}

            def predict_step(batch: Any, *_: Any) -> Any:
                return module(inputs_of(batch, targets))

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
        batches = _Batches(raw, features, request.batch_size, self._resumed)
        with closing(_Writer(self._draft, request, raw, self._resumed)) as writer:
            self._run(module, batches, writer)
            if not writer.end and not writer.finished:
                # No rows at all: the columns come from a batch of none.
                batches.only_none = True
                self._run(module, batches, writer)
            writer.finish_part()
        self._left_out = writer.left_out

    def _run(self, module: L.LightningModule, batches: _Batches, writer: _Writer) -> None:
        callback = _Predictions(batches, writer, self._count)
        trainer = plain_trainer(self._request.train, [callback, CountBatches(self._progress)])
        try:
            with user_code("the module's predict_step", self._request.project):
                trainer.predict(module, dataloaders=batches, return_predictions=False)
        except UserCodeError as error:
            if batches.waiting and " of the input" not in error.message:
                first, kept = batches.waiting[0]
                error.message = f"{error.message.rstrip('.')}, on {said_rows(first, kept.num_rows)}."
            raise

    def _count(self, rows: int) -> None:
        self._meter.add(rows, round(rows * self._raw.row_bytes))


class _Batches:
    """What Lightning iterates: the module's batches, in order.

    Attributes:
        waiting: first row and kept columns of each batch that was handed out and has no predictions yet.
        only_none: give one batch without rows.
    """

    def __init__(self, raw: RawRows, features: Features, size: int, first: int) -> None:
        self._raw, self._features, self._size, self._first = raw, features, size, first
        self.waiting: deque[tuple[int, pa.RecordBatch]] = deque()
        self.only_none = False

    def __iter__(self) -> Iterator[Any]:
        raw, features, size = self._raw, self._features, self._size
        if self.only_none:
            none = pa.RecordBatch.from_pylist([], raw.schema)
            self.waiting.append((0, none))
            yield from features.batches(0, features.rows(0, none), size)
            return
        block = block_rows(size)
        rows: list[pa.Table] = []
        kept: list[pa.RecordBatch] = []
        have, at = 0, self._first
        for first, batch in raw.batches(self._first, block):
            rows.append(features.rows(first, batch))
            kept.append(batch)
            have += batch.num_rows
            at_end = (first + batch.num_rows) % block == 0
            ready = have if at_end else have - have % size
            if ready:
                yield from self._of(at, rows, kept, ready)
                rows, kept, have, at = _rest(rows, ready), _rest(kept, ready), have - ready, at + ready
        if have:
            yield from self._of(at, rows, kept, have)

    def _of(self, at: int, rows: list[pa.Table], kept: list[pa.RecordBatch], ready: int) -> Iterator[Any]:
        table = pa.concat_tables(rows).slice(0, ready)
        beside = pa.Table.from_batches(kept).slice(0, ready)
        for number, batch in enumerate(self._features.batches(at, table, self._size)):
            part = beside.slice(number * self._size, self._size).combine_chunks()
            [whole] = part.to_batches()
            self.waiting.append((at + number * self._size, whole))
            yield batch


def _rest(parts: list[Any], done: int) -> list[Any]:
    """What is left of tables after their first `done` rows."""
    left = []
    for one in parts:
        if done < one.num_rows:
            left.append(one.slice(done))
        done = max(0, done - one.num_rows)
    return left


class _Predictions(L.Callback):
    """Passes each batch's predictions on."""

    def __init__(self, batches: _Batches, writer: _Writer, count: Any) -> None:
        self._batches, self._writer, self._count = batches, writer, count

    def on_predict_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any) -> None:
        """Write the predictions of a batch."""
        first, kept = self._batches.waiting.popleft()
        self._writer.add(first, kept, outputs)
        self._count(kept.num_rows)


class _Writer:
    """Writes predictions to parts.

    Attributes:
        end: the row after the last one that was added.
        finished: whether a part was finished.
        left_out: entries of the predictions that are not written.
    """

    def __init__(self, draft: Draft, request: PredictRequest, raw: RawRows, first: int) -> None:
        self._draft, self._keep, self._output = draft, request.keep, Path(request.output)
        self._block, self.end, self._first = block_rows(request.batch_size), first, first
        self.left_out: list[str] = []
        self.finished = bool(first)
        self._schema: pa.Schema | None = schema_of(draft.parts()[0][2]) if first else None
        self._waiting: list[pa.RecordBatch] = []
        self._file: Any = None
        self._stream: Any = None
        self._since = time.monotonic()

    def add(self, first: int, kept: pa.RecordBatch, outputs: Any) -> None:
        """Write a batch's rows; UsageError if its columns are not those of earlier batches."""
        found, self.left_out = columns_of(outputs, kept.num_rows)
        if self._schema is None:
            refuse_collisions(self._keep, list(found))
        columns = {
            "row": pa.array(range(first, first + kept.num_rows), pa.int64()),
            **{name: kept.column(name) for name in self._keep},
            **found,
        }
        batch = pa.RecordBatch.from_pydict(columns)
        if self._schema is None:
            refuse_columns(batch.schema, self._output)
            self._schema = batch.schema
        if batch.schema != self._schema:
            raise UsageError(
                f"predict_step returns other columns for {said_rows(first, kept.num_rows)} ({_said(batch.schema)}) "
                f"than before ({_said(self._schema)}).",
                remedy="Let it return values of one shape and type for each row.",
            )
        self._waiting.append(batch)
        self.end = first + kept.num_rows
        if sum(one.num_rows for one in self._waiting) >= _CHUNK_ROWS:
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
                self._file = self._draft.unfinished().open("wb")
                self._stream = pa.ipc.new_file(self._file, self._schema)
            if self._waiting:
                self._stream.write_table(pa.Table.from_batches(self._waiting).combine_chunks())
        self._waiting = []


def _said(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


if __name__ == "__main__":
    child_main(PREDICT, main)
