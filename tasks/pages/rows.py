"""The rows of an evaluation: which were scored worst, what they hold, and truth and prediction of each, if kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.handoffs import Dataset, Evaluation, ShardFile
from infra import scratch
from infra.records import evaluations
from infra.store import Store
from infra.store.records import corrupt
from training import formats
from training.formats.schema import read_schema

WORST = 10
# A page is made in seconds: larger files are not read for it.
_MOST_BYTES = 2**28
_MOST_ROWS, _MOST_VALUES = 2_000_000, 2**26
# More columns of a row do not fit on a page.
_MOST_COLUMNS = 12
_MOST_TEXT = 60
# So many rows say whether scores are probabilities.
_SAMPLED = 10_000
MASKED = "•••"


@dataclass(frozen=True)
class Pairs:
    """Truth and prediction of each row, in the order of the set.

    Attributes:
        prediction: one value per row: a class or a number.
        sure: the probability that the model gave its prediction, where it gives probabilities.
        classes: whether they are classes, not numbers.
    """

    truth: NDArray
    prediction: NDArray
    sure: NDArray | None
    classes: bool


@dataclass(frozen=True)
class Worst:
    """The rows that were scored worst: their positions in the set, and their scores.

    Attributes:
        alike: how many rows were scored as badly as the last one shown, or worse.
    """

    metric: str
    positions: list[int]
    values: list[float]
    alike: int
    rows: int


def read_pairs(store: Store, evaluation: Evaluation, metric: str) -> Pairs | None:
    """Truth and prediction of each row for a metric, or for another one of the same set; None if none are kept."""
    of_set = metric.rpartition("/")[0]
    alike = [name for name in {**evaluation.pairs, **evaluation.shown} if name.rpartition("/")[0] == of_set]
    name = metric if metric in alike else next(iter(alike), None)
    if name is None or evaluation.metrics[name].rows > _MOST_ROWS:
        return None
    found = evaluations.shown_of(store, evaluation, name, _MOST_VALUES)
    if found is None:
        return None
    truth, scores = found
    return pairs_of(truth, scores if scores.ndim > 1 else scores[:, None])


def pairs_of(truth: NDArray, scores: NDArray) -> Pairs | None:
    """Pairs of truths (rows,) and what a model returned (rows, n): a value, or a score for each class."""
    if not len(truth) or len(truth) != len(scores):
        return None
    if scores.shape[1] > 1:
        prediction, largest = scores.argmax(axis=1), scores.max(axis=1)
        few = scores[:_SAMPLED]
        if few.min() < 0 or not np.allclose(few.sum(axis=1), 1, atol=1e-3):
            # The softmax of scores that are no probabilities: of the largest, 1 over the sum.
            largest = 1 / np.exp(scores - largest[:, None]).sum(axis=1)
        return Pairs(truth, prediction, largest, classes=True)
    prediction = scores[:, 0]
    whole = truth.dtype.kind in "biuSUO"
    if whole and prediction.dtype.kind in "biuSUO":
        return Pairs(truth, prediction, None, classes=True)
    if whole and set(np.unique(truth)) <= {0, 1}:
        if prediction.min() < 0 or prediction.max() > 1:  # as torchmetrics takes them
            prediction = 1 / (1 + np.exp(-prediction.astype(np.float64)))
        ones = prediction >= 0.5
        return Pairs(truth, ones.astype(np.int64), np.where(ones, prediction, 1 - prediction), classes=True)
    return Pairs(truth.astype(np.float64), prediction.astype(np.float64), None, classes=False)


def worst_rows(store: Store, evaluation: Evaluation, metric: str) -> Worst | None:
    """The worst rows by a metric with an outcome for each row; None if there are no such outcomes."""
    known = evaluation.metrics.get(metric)
    if known is None or known.unit != "row" or not 0 < known.rows <= _MOST_ROWS:
        return None
    values = evaluations.outcomes_of(store, evaluation, metric).values
    order = values if known.mode == "max" else -values
    order = np.where(np.isfinite(order), order, -math.inf)
    worse = order < order.max()
    number = min(WORST, int(worse.sum()))
    if not number:
        return Worst(metric, [], [], 0, len(values))
    edge = np.partition(order, number - 1)[number - 1]
    # Of rows that are as bad as the last one, the first in the set. Outcomes are in the order of the rows.
    candidates = np.flatnonzero(order <= edge)
    chosen = candidates[np.argsort(order[candidates], kind="stable")][:number]
    return Worst(metric, chosen.tolist(), values[chosen].tolist(), len(candidates), len(values))


def rows_at(
    store: Store, dataset: Dataset, split: str, positions: Sequence[int], first: str = ""
) -> dict[int, dict[str, str]]:
    """The columns of rows of a split by their positions, as short texts; the column `first` before the others.

    Only the shards that hold one of the rows are read; rows in shards that are too large are left out.
    """
    found: dict[int, dict[str, str]] = {}
    start, spent = 0, 0
    with scratch.make("page") as folder:
        for shard in dataset.splits.get(split, []):
            mine = sorted(one - start for one in positions if start <= one < start + shard.rows)
            if mine and spent + shard.bytes <= _MOST_BYTES:
                spent += shard.bytes
                schema = read_schema(_schema_folder(store, dataset, folder.path))
                names = [one for one in schema.names if one in dataset.columns]
                names = sorted(names, key=lambda one: one != first)[:_MOST_COLUMNS]
                rows = _rows_of(_local(store, shard, folder.path), schema, dataset.format, names, mine)
                found.update({start + number: row for number, row in rows.items()})
            start += shard.rows
    return found


def _rows_of(
    path: Path, schema: pa.Schema, encoding: str, names: list[str], wanted: Sequence[int]
) -> dict[int, dict[str, str]]:
    found, at = {}, 0
    for block in formats.get(encoding).read_blocks(path, schema, names):
        for number in (one for one in wanted if at <= one < at + block.num_rows):
            # In the order of `names`: readers give columns as they are written. Not by `take`, which imports pandas.
            [row] = block.select(names).slice(number - at, 1).to_pylist()
            found[number] = {name: shown(value) for name, value in row.items()}
        at += block.num_rows
        if wanted and at > wanted[-1]:
            break
    return found


def _schema_folder(store: Store, dataset: Dataset, folder: Path) -> Path:
    if store.is_local:
        return store.local(dataset.ref)
    (folder / "schema.json").write_bytes(store.read_sealed(store.manifest(dataset.ref), "schema.json"))
    return folder


def shown(value: Any) -> str:
    """A value of a row as a short text."""
    if value is None:
        return "missing"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, list | np.ndarray):
        flat = np.asarray(value).ravel().tolist()
        head = ", ".join(shown(one) for one in flat[:4])
        return f"{head}, … ({len(flat):,} values)" if len(flat) > 4 else head
    text = str(value)
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


def _local(store: Store, shard: ShardFile, folder: Path) -> Path:
    """A copy of the shard in `folder`, every byte as sealed."""
    path = folder / shard.path
    path.parent.mkdir(parents=True, exist_ok=True)
    data = store.read(f"{shard.uri}/{shard.path}")
    path.write_bytes(data)
    if blake3(data).hexdigest() != shard.blake3:
        raise corrupt(f"{shard.uri}/{shard.path}", "does not hold the bytes that were sealed")
    return path
