"""The parts of a batch and of its outcome that a metric names: prediction and target."""

from __future__ import annotations

from typing import Any

import torch
from torchmetrics import Metric

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import MetricSpec


def prediction_of(name: str, spec: MetricSpec, outputs: Any) -> torch.Tensor:
    """The prediction in what `predict_step` returned; UsageError if there is none."""
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


def target_of(name: str, spec: MetricSpec, batch: Any, columns: Any) -> torch.Tensor:
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


def as_scored(kind: type[Metric], prediction: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch's prediction (B, …) and target (B, …) in the form that a metric takes.

    Of a prediction or target (B, 1) beside another shape, each row is one number. A loss may want labels as floats, and
    columns that are stacked are floats, but torchmetrics' classification metrics want labels as integers.
    """
    if target.shape[1:] == (1,) and prediction.shape != target.shape:
        target = target[:, 0]
    if prediction.shape[1:] == (1,) and target.ndim == 1:
        prediction = prediction[:, 0]
    wants_labels = any(base.__module__.startswith("torchmetrics.classification") for base in kind.__mro__)
    if wants_labels and target.is_floating_point() and bool((target.frac() == 0).all()):
        target = target.long()
    return prediction, target


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
