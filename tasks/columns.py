"""Whether the columns that a spec names are there: found out before a node is launched, with the nearest that is."""

from __future__ import annotations

from collections.abc import Iterable

from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset
from data_contracts.spec import EvaluateSpec, TrainSpec
from data_contracts.spec.model import LENGTH
from data_contracts.suites import nearest
from tasks.run import Run


def refuse_unknown(run: Run, dataset: Dataset | None) -> None:
    """UsageError if `train.batch` or a metric's target names what the dataset does not have."""
    if dataset is not None and "data" not in run.resolved.lightning:
        check(run.spec.train, run.spec.evaluate, dataset.columns)


def check(train: TrainSpec, evaluate: EvaluateSpec, columns: Iterable[str]) -> None:
    """UsageError if there is no batch of these columns, or no truth in it; what a transform makes is not known."""
    there = [*columns, *(name + LENGTH for name in train.loader.pad)]
    for name in sorted(train.batch_columns or ()):
        if name not in there:
            raise UsageError(
                f"train.batch: the dataset has no column {name!r}{nearest(name, there) or '.'}",
                remedy=f"It has {', '.join(there)}.",
            )
    if train.transform is not None:
        return
    # A tuple's part is called by its position, or by its column if it is one column.
    names = [entry for entry in (there if train.batch is None else train.batch) if isinstance(entry, str)]
    size = len(train.batch) if isinstance(train.batch, list) else 0
    for name, metric in evaluate.metrics.items():
        wanted = metric.target
        if wanted is None or wanted in names or wanted in map(str, range(-size, size)):
            continue
        raise UsageError(
            f"evaluate.metrics.{name}.target: a batch has no {wanted!r}{nearest(wanted, names) or '.'}",
            remedy=f"It has {', '.join(names)}{f' (positions 0 to {size - 1})' if size else ''}.",
        )
