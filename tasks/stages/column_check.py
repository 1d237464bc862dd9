"""Checks, before a node is launched, that the columns named in a spec exist; an error names the nearest that does."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from data_contracts.contract.suites import nearest
from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset
from data_contracts.pipeline_spec import EvaluateSpec, TrainSpec
from data_contracts.pipeline_spec.train import LENGTH
from data_contracts.quoting import absent_name, columns_shown
from tasks.run.run import Run
from tasks.stages.gates.test_rows import check_unit_and_slices
from training.formats.schema import field_of


def refuse_unknown(run: Run, dataset: Dataset | None) -> None:
    """UsageError if `train.batch`, a metric, the unit or a slice names a column that the dataset does not have."""
    if dataset is None:
        return
    evaluate = run.spec.evaluate
    if "data" not in run.resolved.lightning:
        check(run.spec.train, evaluate, dataset.columns, sensitive=run.withholds)
    if evaluate.unit is not None or evaluate.slices:
        schema = pa.schema([field_of(name, text) for name, text in dataset.columns.items()])
        check_unit_and_slices(evaluate.unit, evaluate.slices, schema, sensitive=run.withholds)


def check(train: TrainSpec, evaluate: EvaluateSpec, columns: Iterable[str], *, sensitive: bool = False) -> None:
    """UsageError if there is no batch of these columns, or no target in it. The columns that a transform makes are
    unknown.

    Args:
        sensitive: whether a value of the data may stand for a column's name.
    """
    there = [*columns, *(name + LENGTH for name in train.loader.pad)]
    for name in sorted(train.batch_columns or ()):
        if name not in there:
            visible = [] if sensitive else there
            raise UsageError(
                f"train.batch: the dataset has no column {absent_name(name, visible)}{nearest(name, visible) or '.'}",
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
