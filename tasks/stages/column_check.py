"""Checks, before a node is launched, that the columns named in a spec exist; an error names the nearest that does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.arrow_rows import UnfitColumn, rows_that_meet
from data_contracts.contract.suites import nearest
from data_contracts.errors import UsageError
from data_contracts.expressions import Condition
from data_contracts.handoffs import Dataset
from data_contracts.pipeline_spec import EvaluateSpec, SliceSpec, TrainSpec
from data_contracts.pipeline_spec.train import LENGTH
from data_contracts.quoting import absent_name, columns_shown
from tasks.run.run import Run
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


def check_unit_and_slices(
    unit: str | None, slices: Mapping[str, SliceSpec], schema: pa.Schema, *, sensitive: bool = False
) -> None:
    """UsageError if the unit or a slice names no column, or one whose type does not fit the slice's condition."""
    wanted = [("evaluate.unit", unit)] if unit is not None else []
    conditions = {name: one.condition for name, one in slices.items()}
    for name, condition in conditions.items():
        wanted += [(f"evaluate.slices.{name}", column) for column in condition.columns]
    for field, column in wanted:
        if schema.get_field_index(column) < 0:
            visible = [] if sensitive else schema.names
            hint = nearest(column, visible) or "."
            raise UsageError(
                f"{field}: the dataset keeps no column {absent_name(column, visible)}{hint}",
                remedy=f"It has {columns_shown(schema.names, sensitive)}.",
            )
    for name, condition in conditions.items():
        meeting(name, condition, {column: pa.array([], schema.field(column).type) for column in condition.columns})


def meeting(name: str, condition: Condition, columns: Mapping[str, pa.Array]) -> NDArray[np.bool_]:
    """Which rows are in a slice: (rows,); UsageError if a column's type does not fit its condition."""
    try:
        return rows_that_meet(condition, {column: columns[column] for column in condition.columns})
    except UnfitColumn as error:
        raise UsageError(
            f"evaluate.slices.{name}: the condition {error}.", remedy="Correct it, or leave the slice out."
        ) from error


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
