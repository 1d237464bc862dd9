"""Scores a module on one set: Lightning's Trainer runs its `predict_step` and `test_step`, and the metrics are computed
from the predictions and from the logged values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import Metric

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import MetricSpec
from training.lightning_adapter import weigh_logged_by
from training.loader.row_counts import rows_of
from training.score.logged_score import LoggedScore
from training.score.metrics import PredictionScore
from training.score.progress import CountBatches, Progress
from training.score.rows_digest import RowDigest
from training.score.scored import Scored
from training.user.assemble import plain_trainer
from training.user.imports import user_code


def score(
    module: L.LightningModule,
    batches: Any,
    metrics: dict[str, MetricSpec],
    classes: dict[str, type[Metric]],
    train: dict[str, Any],
    project: Path,
    progress: Progress,
) -> dict[str, Scored]:
    """Compute every metric over the batches: a loader, or a data module whose test loader is used.

    Args:
        classes: the torchmetrics class of each metric that names one.
    """
    found: dict[str, Scored] = {}
    predicted = {name: metric for name, metric in metrics.items() if metric.class_path}
    logged = {name: metric for name, metric in metrics.items() if metric.logged}
    if predicted:
        # The id of a dataset of ours stands for its rows; a data module of the user's may read anything.
        digest = RowDigest if isinstance(batches, L.LightningDataModule) else lambda: None
        scores = {name: PredictionScore(name, one, classes[name], digest()) for name, one in predicted.items()}
        found |= _predict(module, batches, predicted, scores, train, project, progress)
    if logged:
        found |= _test(module, batches, logged, train, project, progress)
    return {name: found[name] for name in metrics}


class _Predictions(L.Callback):
    """Passes each batch's predictions to the scores."""

    def __init__(self, scores: dict[str, PredictionScore], specs: dict[str, MetricSpec], train: dict[str, Any]) -> None:
        self._scores, self._specs, self._train = scores, specs, train

    def on_predict_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, loader: int = 0
    ) -> None:
        for name, one in self._scores.items():
            spec = self._specs[name]
            one.update(_prediction(name, spec, outputs), _target(name, spec, batch, self._train["batch"]))


def _predict(
    module: L.LightningModule,
    batches: Any,
    metrics: dict[str, MetricSpec],
    scores: dict[str, PredictionScore],
    train: dict[str, Any],
    project: Path,
    progress: Progress,
) -> dict[str, Scored]:
    if not is_overridden("predict_step", module, L.LightningModule):
        targets = {spec.target for spec in metrics.values()}

        def predict_step(batch: Any, *_: Any) -> Any:
            return module(_inputs(batch, targets))

        module.predict_step = predict_step  # type: ignore[method-assign]
    trainer = plain_trainer(train, [_Predictions(scores, metrics, train), CountBatches(progress)])
    with user_code("the module's predict_step", project):
        if isinstance(batches, L.LightningDataModule):
            with _predicting_tests(batches):
                trainer.predict(module, datamodule=batches, return_predictions=False)
        else:
            trainer.predict(module, dataloaders=batches, return_predictions=False)
    found = {}
    for name, one in scores.items():
        with user_code(f"evaluate.metrics.{name}", project):
            found[name] = one.result()
    return found


class _Logged(L.Callback):
    """Records the number of rows of each batch, for outcomes captured at `self.log`."""

    def __init__(self, scores: dict[str, LoggedScore], digest: RowDigest | None) -> None:
        self._scores = scores
        self._digest = digest
        self.num_rows = 0
        self.logged_size: int | None = None  # the batch_size that the current step gave

    def on_test_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int, loader: int = 0
    ) -> None:
        size = rows_of(batch, trainer.test_dataloaders, batch_idx, loader)
        if size is not None:
            weigh_logged_by(trainer, size)
        if self._digest is not None:
            self._digest.update(batch)

    def on_test_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, loader: int = 0
    ) -> None:
        size = rows_of(batch, trainer.test_dataloaders, batch_idx, loader)
        size = self.logged_size if size is None else size
        if size is None:
            raise UsageError(
                f"evaluate: batch {batch_idx} of your test_dataloader does not say how many rows it has.",
                remedy="Give batch_size to self.log in test_step, or let all tensors of a batch have an entry per row.",
            )
        self.num_rows += size
        self.logged_size = None
        for one in self._scores.values():
            one.end_batch(size)


def _test(
    module: L.LightningModule,
    batches: Any,
    metrics: dict[str, MetricSpec],
    train: dict[str, Any],
    project: Path,
    progress: Progress,
) -> dict[str, Scored]:
    if not is_overridden("test_step", module, L.LightningModule):
        raise UsageError(
            f"evaluate.metrics.{next(iter(metrics))}.logged: {type(module).__name__} has no test_step.",
            remedy="Write one that logs the metric, or name a torchmetrics class.",
        )
    scores = {name: LoggedScore(name, spec) for name, spec in metrics.items()}
    digest = RowDigest() if isinstance(batches, L.LightningDataModule) else None
    original, counter = module.log, _Logged(scores, digest)

    def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        counter.logged_size = kwargs.get("batch_size", counter.logged_size)
        for one in scores.values():
            if one.spec.logged == name:
                one.capture(value, kwargs.get("reduce_fx", "mean"))
        original(name, value, *args, **kwargs)

    module.log = log  # type: ignore[method-assign]
    trainer = plain_trainer(train, [counter, CountBatches(progress)])
    try:
        with user_code("the module's test_step", project):
            source = "datamodule" if isinstance(batches, L.LightningDataModule) else "dataloaders"
            trainer.test(module, **{source: batches}, verbose=False)
    finally:
        del module.log
    found = {name: one.result(counter.num_rows, trainer.callback_metrics) for name, one in scores.items()}
    if digest is not None:
        for one in found.values():
            one.rows = {"of": "batches", "digest": digest.hexdigest()}
    return found


@contextmanager
def _predicting_tests(datamodule: L.LightningDataModule) -> Iterator[None]:
    """Make a data module answer `predict` with its test rows; all its other hooks stay as they are."""
    setup = datamodule.setup
    datamodule.setup = lambda stage: setup("test")  # type: ignore[method-assign]
    datamodule.predict_dataloader = datamodule.test_dataloader  # type: ignore[method-assign]
    try:
        yield
    finally:
        del datamodule.setup, datamodule.predict_dataloader


def _prediction(name: str, spec: MetricSpec, outputs: Any) -> torch.Tensor:
    if isinstance(outputs, dict):
        if spec.prediction not in outputs:
            raise UsageError(
                f"evaluate.metrics.{name}.prediction: predict_step returns {', '.join(map(str, outputs))}.",
                remedy="Name one of these.",
            )
        outputs = outputs[spec.prediction]
    if not isinstance(outputs, torch.Tensor):
        raise UsageError(
            f"evaluate.metrics.{name}: predict_step returns a {type(outputs).__name__}, a tensor is needed.",
            remedy="Return a tensor, or a dictionary and name its key in prediction.",
        )
    return outputs if outputs.ndim else outputs.reshape(1)


def _target(name: str, spec: MetricSpec, batch: Any, columns: Any) -> torch.Tensor:
    """The target in a batch: a key, a position, or a column's name where `train.batch` lists columns."""
    assert spec.target is not None
    found = _entry(name, spec.target, batch, columns)
    if not isinstance(found, torch.Tensor):
        raise UsageError(
            f"evaluate.metrics.{name}.target: {spec.target} is a {type(found).__name__} in a batch, "
            "a tensor is needed.",
            remedy="Turn it into numbers in shards.transform or train.transform.",
        )
    return found if found.ndim else found.reshape(1)


def _entry(name: str, wanted: str, batch: Any, columns: Any) -> Any:
    if isinstance(batch, dict) and wanted in batch:
        return batch[wanted]
    if isinstance(batch, (tuple, list)):
        if isinstance(columns, list) and wanted in columns:
            return batch[columns.index(wanted)]
        if wanted.lstrip("-").isdigit() and -len(batch) <= int(wanted) < len(batch):
            return batch[int(wanted)]
    there = ", ".join(map(str, batch)) if isinstance(batch, dict) else f"positions 0 to {len(batch) - 1}"
    what = f"evaluate.metrics.{name}.target: a batch has no {wanted}; it has {there}."
    raise UsageError(what, remedy="Name one of these.")


def _inputs(batch: Any, targets: set[str | None]) -> Any:
    """The inputs of a module without its own predict_step: the batch without the targets."""
    if isinstance(batch, (tuple, list)):
        return batch[0]
    if isinstance(batch, dict):
        left = {key: value for key, value in batch.items() if key not in targets}
        return next(iter(left.values())) if len(left) == 1 else left
    return batch
