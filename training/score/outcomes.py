"""What is kept of a scored set: a metric's value and the outcomes whose mean it is, the rows' digest, pairs,
predictions.

A macro average over two classes of nearly the same size is close to a mean over rows without being one. So closeness
over the whole set proves nothing: a metric counts as the mean of its outcomes only if it is one in every checked part,
too.

Truth and prediction of each row are kept for a metric that is computed again on resampled rows, or for pages. Most
gates need no pairs, because the mean of a metric's outcomes is the metric. `infra.records.evaluations` reads the file.
What a model predicts for each row is kept as a table, for `contract.predictions`: made from what `predict_step`
returns, with one line per row in the order of the set; docs/evaluate.md has the rules. If no table can be made, the
reason is kept instead: only the contract needs the table.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from blake3 import blake3
from torchmetrics import Metric

from data_contracts.errors import UsageError
from data_contracts.handoffs import MetricValue, Predictions
from data_contracts.pipeline_spec import MetricSpec
from training.formats.parquet import TableFile

SINGLE = 2.0**-23
DOUBLE = 1e-12
# An outcome in single precision is rounded several times; a sum in single precision once for each batch.
_FEW_ROUNDINGS = 4
_COARSEST = 1e-5
# With more values per row, only the place of the largest becomes a column.
MAX_VALUES = 100
# For pages: 64 MiB of truths and predictions.
MOST_SHOWN = 2**24
SHOWN = "shown.parquet"
NAME = "prediction"
# So that the file does not depend on how rows were batched.
_GROUP_ROWS = 2**16
# What a batch gave: its tensors by name, or why it gave none.
BatchTensors = tuple[dict[str, torch.Tensor], str]
_PART, _LOWEST, _HIGHEST, _PARTS = 7, 2, 2, 4
TARGET, PREDICTION = "target", "prediction"


class NotFinite(UsageError):
    """A metric has no finite value for the rows that it was computed on."""


@dataclass
class Scored:
    """One metric's value over a set, with its outcomes, and a digest of the targets or the batches it was scored on.

    Attributes:
        undefined: why the value is NaN; "" if it is a number.
    """

    value: MetricValue
    outcomes: Outcomes
    rows: dict[str, str] = field(default_factory=dict)
    undefined: str = ""

    @classmethod
    def of(cls, value: float, mode: str, rows: int, outcomes: Outcomes) -> Scored:
        """A value over `rows` rows whose unit is that of its outcomes."""
        return cls(MetricValue(value=value, mode=mode, rows=rows, unit=outcomes.unit), outcomes)

    @classmethod
    def without_value(cls, reason: str, mode: str, rows: int) -> Scored:
        """A value that is NaN, and why."""
        return cls(MetricValue(value=math.nan, mode=mode, rows=rows, unit="dataset"), Outcomes("dataset", [], []),
                   undefined=reason)  # fmt: skip


def shortest(value: float, computed: Any) -> float:
    """The shortest decimal of a single-precision value: 0.949999988 must not miss a gate at 0.95."""
    single = isinstance(computed, torch.Tensor) and computed.dtype is torch.float32
    return float(str(np.float32(value))) if single else value


def finite_number(name: str, value: Any) -> float:
    """The value of a metric as a number; UsageError if it is several numbers, or not finite."""
    number = one_number(name, value)
    if not math.isfinite(number):
        raise NotFinite(
            f"evaluate.metrics.{name}: its value is {number}.",
            remedy="A gate needs a finite number; check the metric's settings and the test rows.",
        )
    return number


def one_number(name: str, value: Any) -> float:
    """The value of a metric as a number, which may be NaN; UsageError if it is several numbers."""
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise UsageError(
            f"evaluate.metrics.{name}: it gives {value.numel()} numbers, one is needed.",
            remedy="Choose an average in init_args.",
        )
    return float(value)


@dataclass
class Outcomes:
    """Outcomes of one metric on one set: a value and a number of rows per unit."""

    unit: str
    values: list[float]
    rows: list[int]

    def mean(self) -> float:
        """The mean of the outcomes, weighted by their rows."""
        return mean(self.values, self.rows)

    def has_mean(self, value: float, additions: int = 0, in_double: bool = False) -> bool:
        """Whether `value` is the mean of the outcomes.

        Args:
            additions: how many batches were added up in single precision to get `value`.
            in_double: whether `value` was computed in double precision; outcomes that are counts then must agree to it,
                others to single precision.
        """
        if in_double:
            whole = all(map(float.is_integer, self.values))
            return close(self.values, self.rows, value, DOUBLE if whole else SINGLE)
        return close(self.values, self.rows, value, min(_COARSEST, max(_FEW_ROUNDINGS, additions) * SINGLE))


def mean(values: Sequence[float], rows: Sequence[int]) -> float:
    """The mean of `values`, weighted by `rows`."""
    return math.fsum(v * n for v, n in zip(values, rows, strict=True)) / max(1, sum(rows))


def close(values: Sequence[float], rows: Sequence[int], value: float, precision: float = _COARSEST) -> bool:
    """Whether `value` is the mean of `values`, within `precision` of their mean size; False if any is not finite."""
    if not all(map(math.isfinite, (value, *values))):
        return False
    return abs(mean(values, rows) - value) <= precision * mean([abs(one) for one in values], rows)


def parts(values: Sequence[float]) -> list[list[int]]:
    """Positions of a few small parts of a batch that reveal a metric which is not a mean of these outcomes.

    Each part holds outcomes as different as possible, drawn at random among equal ones. Seven rows: no number of
    classes divides a prime number of rows evenly.
    """
    draw = random.Random(len(values))
    chosen = []
    for _ in range(_PARTS if len(values) > 1 else 0):
        order = draw.sample(range(len(values)), len(values))
        order.sort(key=values.__getitem__)
        ends = order[:_LOWEST] + order[_LOWEST:][-_HIGHEST:]
        between = order[_LOWEST:-_HIGHEST]
        chosen.append(ends + draw.sample(between, min(len(between), _PART - len(ends))))
    return chosen


def due(batches: int) -> bool:
    """Whether to check all batches so far as one part: after 1, 2, 4, 8, …"""
    return batches & (batches - 1) == 0


class RowDigest:
    """Takes batch after batch; equal values in the same order give equal digests, however they are batched."""

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, value: Any) -> None:
        """Take a batch: tensors, texts and numbers in any nesting; anything else counts by its type."""
        match value:
            case torch.Tensor():
                plain = value.detach().cpu().contiguous().reshape(-1)
                self._hash.update(plain.view(torch.uint8).numpy().tobytes())
            case str() | bytes() | int() | float() | None:
                self._hash.update(repr(value).encode())
            case Mapping():
                for key, one in value.items():
                    self._hash.update(repr(key).encode())
                    self.update(one)
            case list() | tuple():
                for one in value:
                    self.update(one)
            case _:
                self._hash.update(type(value).__qualname__.encode())

    def hexdigest(self) -> str:
        """The digest of everything taken so far."""
        return self._hash.hexdigest()


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


def _entry(name: str, target: str, batch: Any, columns: Any) -> Any:
    if isinstance(batch, dict) and target in batch:
        return batch[target]
    if isinstance(batch, (tuple, list)):
        if isinstance(columns, list) and target in columns:
            return batch[columns.index(target)]
        if target.lstrip("-").isdigit() and -len(batch) <= int(target) < len(batch):
            return batch[int(target)]
    there = ", ".join(map(str, batch)) if isinstance(batch, dict) else f"positions 0 to {len(batch) - 1}"
    what = f"evaluate.metrics.{name}.target: a batch has no {target}; it has {there}."
    raise UsageError(what, remedy="Name one of these.")


class PairTable:
    """The pairs of one metric on one set: columns `target`, and `prediction` or `prediction_0` … `prediction_<n-1>`."""

    def __init__(self, path: Path, *, of_mean: bool = False, most_values: int | None = None) -> None:
        """
        Args:
            of_mean: the metric is a mean over rows, whatever is predicted; its pairs are kept only if it must be.
            most_values: nothing is kept of a set that has more; None for no limit.
        """
        self._file, self._of_mean = TableFile(path), of_mean
        self._most = math.inf if most_values is None else most_values
        self._left = self._most

    def clear(self) -> None:
        """Forget all rows: they come again."""
        self._file.close()
        self._file, self._left = TableFile(self._file.path), self._most

    def add(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        """Append a batch: `prediction` (B,), (B, 1) or (B, n) and `target` (B,) or (B, 1)."""
        if self._file.refused:
            return
        prediction, target = _flat(prediction), _flat(target)
        if target.ndim != 1 or prediction.ndim > 2 or len(prediction) != len(target):
            shapes = f"{tuple(prediction.shape)}, and the truth of shape {tuple(target.shape)}"
            self._file.refuse(
                f"a batch's prediction is of shape {shapes}, which is not one value or one list for each row"
            )
            return
        columns = {TARGET: target}
        if prediction.ndim == 1:
            columns[PREDICTION] = prediction
        elif prediction.shape[1] <= MAX_VALUES:
            columns |= {f"{PREDICTION}_{at}": prediction[:, at].contiguous() for at in range(prediction.shape[1])}
        else:
            self._file.refuse(f"a row's prediction has {prediction.shape[1]} values, and at most {MAX_VALUES} are kept")
            return
        self._left -= len(target) * len(columns)
        if self._left < 0:
            self._file.refuse("the set has too many rows")
            return
        if not self._file.append(pa.table({name: pa.array(one.numpy()) for name, one in columns.items()})):
            self._file.refuse("the shape or type of the predictions changes from batch to batch")

    def close(self, name: str, scored: Scored) -> str:
        """Complete the file; returns its name, or "" if the outcomes tell as much.

        UsageError if the pairs are needed and could not be kept.
        """
        file = self.close_for_pages()
        # Some predictions make a mean of any metric, such as the precision of a model that always says yes. The pairs
        # are kept all the same: another model, for which it is none, is compared with this one.
        if scored.value.unit == "row" and self._of_mean:
            return ""
        if self._file.refused and scored.value.unit == "dataset":
            raise UsageError(
                f"evaluate.metrics.{name} cannot be resampled: {self._file.refused}.",
                remedy="Leave confidence, slice and max_gap out of its gates, or let predict_step return one value or "
                "one list of values for each row.",
            )
        return file

    def close_for_pages(self) -> str:
        """Complete the file; returns its name, or "" if the pairs could not be kept."""
        written = self._file.close()
        return self._file.path.name if written and not self._file.refused else ""


# By the name of the set, and then of the metric.
Pairs = Mapping[str, Mapping[str, PairTable]]


def pair_tables(folder: Path, sets: Sequence[str], metrics: Mapping[str, MetricSpec]) -> Pairs:
    """A table for each of the metrics on each set, whose files lie in `folder`."""
    return {
        name: {
            one: PairTable(folder / f"pairs-{at * len(metrics) + number}.parquet", of_mean=_is_mean(spec))
            for number, (one, spec) in enumerate(metrics.items())
        }
        for at, name in enumerate(sets)
    }


def _is_mean(spec: MetricSpec) -> bool:
    """Whether a torchmetrics class is the share of right rows."""
    name = (spec.class_path or "").rpartition(".")[2]
    average = spec.init_args.get("average", "macro" if name.startswith("Multiclass") else "micro")
    return name.endswith("Accuracy") and (name.startswith("Binary") or average == "micro")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    # Parquet has no bfloat16.
    tensor = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    return tensor[:, 0].contiguous() if tensor.ndim == 2 and tensor.shape[1] == 1 else tensor


class PredictionTable:
    """The predictions of one set, written to a file in `folder` while they come.

    Attributes:
        file: says why there is no table, if there is none.
        undecided: why a metric over these predictions has no value; "" if all have one.
    """

    def __init__(self, folder: Path, set_name: str) -> None:
        self.path = folder / f"predictions{f'-{set_name}' if set_name else ''}.parquet"
        self.file = TableFile(self.path, _GROUP_ROWS)
        self.undecided = ""

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Append the rows of a batch: tensors (B,) or (B, n) by name, as `tensors_of` gives them."""
        if self.file.refused:
            return
        columns: dict[str, pa.Array] = {}
        for name, tensor in tensors.items():
            for column, values in _columns(name, tensor).items():
                if column in columns:
                    self.file.refuse(f"predict_step returns two columns with the name {column}")
                    return
                columns[column] = values
        table = pa.table(columns)
        if not self.file.append(table):
            assert self.file.schema is not None
            now, first = columns_and_types(table.schema), columns_and_types(self.file.schema)
            self.file.refuse(f"predict_step returns other columns ({now}) than for the first batch ({first})")

    def close(self) -> Predictions:
        """Complete the file; returns its name and columns, or why there is none."""
        written = self.file.close()
        if self.file.refused or not written or self.file.schema is None:
            return Predictions(missing=self.file.refused or "the set has no rows")
        return Predictions(file=self.path.name, columns=self.file.schema.names)


def tensors_of(outputs: Any, rows: int | None) -> BatchTensors:
    """The tensors with one value, or one list of values, per row in what `predict_step` returned for a batch.

    Args:
        rows: of the batch; None if unknown.
    """
    if isinstance(outputs, torch.Tensor):
        tensor = _per_row(outputs, rows)
        shape = tuple(outputs.shape)
        reason = f"predict_step returns a tensor of shape {shape}, not one value or one list of values for each row"
        return ({}, reason) if tensor is None else ({NAME: tensor}, "")
    if not isinstance(outputs, Mapping):
        return {}, f"predict_step returns a {type(outputs).__name__}, not a tensor or a dictionary of tensors"
    found = {str(name): one for name, value in outputs.items() if (one := _per_row(value, rows)) is not None}
    if not found or len({len(one) for one in found.values()}) > 1:
        return {}, "predict_step returns a dictionary, no entry of which has one value for each row"
    return found, ""


def _per_row(value: Any, rows: int | None) -> torch.Tensor | None:
    """`value` on the CPU, if it is a tensor of numbers with one entry per row, of one or several values."""
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return None
    value = value.detach().cpu()
    if value.ndim == 0:
        value = value.reshape(1)
    if value.ndim > 2 or (rows is not None and len(value) != rows) or (value.ndim == 2 and not value.shape[1]):
        return None
    # Parquet has no bfloat16.
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _columns(name: str, tensor: torch.Tensor) -> dict[str, pa.Array]:
    """The columns of one tensor: its values, or the place of the largest of a row and then each."""
    if tensor.ndim == 1 or tensor.shape[1] == 1:
        return {name: pa.array(tensor.reshape(-1).numpy())}
    # torch takes a NaN for the largest.
    nan = tensor.isnan().any(1)
    columns = {name: pa.array(tensor.to(torch.float64).argmax(1).numpy(), mask=nan.numpy())}
    if tensor.shape[1] <= MAX_VALUES:
        columns |= {f"{name}_{at}": pa.array(tensor[:, at].contiguous().numpy()) for at in range(tensor.shape[1])}
    return columns


def columns_and_types(schema: pa.Schema) -> str:
    """The columns of a table, for a sentence."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
