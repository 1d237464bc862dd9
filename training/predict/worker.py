"""The child process of `predict`: predicts for each row of raw files, part by part, and joins the parts to one file.

Run as `python -m training.predict.worker REQUEST ANSWER` by `infra.child`. A killed attempt is continued after its last
finished part.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.utilities.model_helpers import is_overridden

from data_contracts.errors import TrainwrightError, UserCodeError
from data_contracts.messages.raw_data import PREDICT, Predicted, PredictRequest
from infra.processes.child_main import Report, child_main
from infra.store import open_at
from training.checkpoint import load_module_weights
from training.predict.batches import Batches, Features, bytes_in, copied, steps_of, units_of
from training.predict.output import Draft, join, names_in, output_exists, read_parts, room, schema_of, suffix_of
from training.predict.part_writer import PartWriter
from training.predict.raw_rows import look_at
from training.score.team import CountBatches, Progress, local_copy, read_again
from training.shard.two_passes import Meter
from training.user.imports import user_code
from training.user.ready import build_module, call_forward, plain_trainer

# With one of these, a module gets its batches one by one, because Lightning calls it for each batch.
_BATCH_HOOKS = (
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
    "on_predict_batch_start",
    "on_predict_batch_end",
)


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
        units = units_of(request)
        grouped = not any(is_overridden(hook, module, L.LightningModule) for hook in _BATCH_HOOKS)
        grouped = grouped and not _takes(module.predict_step, "dataloader_iter")
        batches = Batches(raw, features, request, units, self._resumed, grouped=grouped)
        if grouped:
            step, first = module.predict_step, self._resumed // request.batch_size
            numbered, moved = _takes_number(step), self._progress.moved
            module.predict_step = steps_of(step, batches, first, numbered=numbered, moved=moved)  # type: ignore[method-assign]
        with closing(PartWriter(self._draft, request, self._resumed, units.resume)) as writer:
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
            if batches.waiting and " of the input" not in error.message:
                error.message = f"{error.message.rstrip('.')}, on {self._raw.in_words(*batches.waiting[0].current)}."
            raise

    def _count(self, rows: int) -> None:
        self._meter.add(rows, round(rows * self._raw.row_bytes))


class _Predictions(L.Callback):
    """Passes each group's predictions on."""

    def __init__(self, batches: Batches, writer: PartWriter, count: Callable[[int], None]) -> None:
        self._batches, self._writer, self._count = batches, writer, count

    def on_predict_batch_end(self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, *_: Any) -> None:
        """Write the predictions of a group."""
        group = self._batches.waiting.popleft()
        made = outputs if self._batches.grouped else [copied(outputs)]
        self._writer.add(group, made)
        self._batches.output_bytes = bytes_in(made) / max(group.rows, 1)
        self._count(group.rows)


def _takes(step: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(step).parameters


def _takes_number(step: Callable[..., Any]) -> bool:
    """Whether a `predict_step` takes the number of the batch, as Lightning decides it."""
    try:
        inspect.signature(step).bind(None, 0)
    except TypeError:
        return False
    return True


if __name__ == "__main__":
    child_main(PREDICT, main)
