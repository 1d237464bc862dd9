"""Checks, before a node is launched, that the columns named in a spec exist; an error names the nearest that does."""

from __future__ import annotations

from collections.abc import Iterable

from data_contracts.contract.suites import nearest
from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset
from data_contracts.pipeline_spec import EvaluateSpec, TrainSpec
from data_contracts.pipeline_spec.loader import LENGTH
from data_contracts.quoting import columns_shown
from tasks.run.run import Run


def refuse_unknown(run: Run, dataset: Dataset | None) -> None:
    """UsageError if `train.batch` or a metric's target names a column that the dataset does not have."""
    if dataset is not None and "data" not in run.resolved.lightning:
        check(run.spec.train, run.spec.evaluate, dataset.columns, sensitive=run.withholds)


def check(train: TrainSpec, evaluate: EvaluateSpec, columns: Iterable[str], *, sensitive: bool = False) -> None:
    """UsageError if there is no batch of these columns, or no target in it. The columns that a transform makes are
    unknown.

    Args:
        sensitive: whether a value of the data may stand for a column's name.
    """
    there = [*columns, *(name + LENGTH for name in train.loader.pad)]
    for name in sorted(train.batch_columns or ()):
        if name not in there:
            raise UsageError(
                f"train.batch: the dataset has no column {name!r}{nearest(name, [] if sensitive else there) or '.'}",
                remedy=f"It has {columns_shown(there, sensitive)}.",
            )
    if train.transform is not None:
        return
    # A tuple's part is named by its position, or by its column if it is one column.
    names = [entry for entry in (there if train.batch is None else train.batch) if isinstance(entry, str)]
    hidden = sensitive and train.batch is None
    near = [] if hidden else names
    size = len(train.batch) if isinstance(train.batch, list) else 0
    for name, metric in evaluate.metrics.items():
        wanted = metric.target
        if wanted is None or wanted in names or wanted in map(str, range(-size, size)):
            continue
        raise UsageError(
            f"evaluate.metrics.{name}.target: a batch has no {wanted!r}{nearest(wanted, near) or '.'}",
            remedy=f"It has {columns_shown(names, hidden)}{f' (positions 0 to {size - 1})' if size else ''}.",
        )
