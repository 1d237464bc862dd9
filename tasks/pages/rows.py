"""The rows of an evaluation: which were scored worst, what they hold, and truth and prediction of each, if kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Dataset, Evaluation, ShardFile
from infra import scratch
from infra.store import Store
from training import formats
from training.formats.schema import read_schema

OUTCOMES = "outcomes.parquet"
WORST = 10
# A page is made in seconds: larger files are not read for it.
_MOST_BYTES = 2**28
_MOST_ROWS = 2_000_000
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
    """Truth and prediction of each row for a metric; None if the evaluation keeps none.

    The one place that knows how an evaluation keeps them: `pairs` names a file for each metric, with the columns
    `target` and `prediction`, or `prediction_0`, `prediction_1`, … for a score of each class.
    """
    files: dict[str, str] = getattr(evaluation, "pairs", {})
    name = files.get(metric) or next(iter(files.values()), None)
    table = None if name is None else _table(store, evaluation, name)
    if table is None or "target" not in table.column_names:
        return None
    if "prediction" in table.column_names:
        columns = ["prediction"]
    else:
        columns = [f"prediction_{at}" for at in range(len(table.column_names) - 1)]
    if not set(columns) <= set(table.column_names):
        return None
    scores = np.column_stack([table.column(one).to_numpy() for one in columns])
    return pairs_of(table.column("target").to_numpy(), scores)


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
    if whole and set(np.unique(truth)) <= {0, 1} and prediction.min() >= 0 and prediction.max() <= 1:
        ones = prediction >= 0.5
        return Pairs(truth, ones.astype(np.int64), np.where(ones, prediction, 1 - prediction), classes=True)
    return Pairs(truth.astype(np.float64), prediction.astype(np.float64), None, classes=False)


def worst_rows(store: Store, evaluation: Evaluation, metric: str) -> Worst | None:
    """The worst rows by a metric with an outcome for each row; None if there are no such outcomes."""
    known = evaluation.metrics.get(metric)
    table = None if known is None or known.unit != "row" else _table(store, evaluation, OUTCOMES)
    if known is None or table is None:
        return None
    mine = table.filter(pc.equal(table.column("metric"), metric))
    values = mine.column("value").to_numpy()
    positions = mine.column("position").to_numpy()
    if not len(values):
        return None
    order = values if known.mode == "max" else -values
    order = np.where(np.isfinite(order), order, -math.inf)
    worse = order < order.max()
    number = min(WORST, int(worse.sum()))
    if not number:
        return Worst(metric, [], [], 0, len(values))
    edge = np.partition(order, number - 1)[number - 1]
    # Of rows that are as bad as the last one, the first in the set.
    candidates = np.flatnonzero(order <= edge)
    chosen = candidates[np.lexsort((positions[candidates], order[candidates]))][:number]
    return Worst(metric, positions[chosen].tolist(), values[chosen].tolist(), len(candidates), len(values))


def rows_at(store: Store, dataset: Dataset, split: str, positions: Sequence[int]) -> dict[int, dict[str, str]]:
    """The columns of rows of a split by their positions, as short texts.

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
                rows = _rows_of(_local(store, shard, folder.path), schema, dataset, mine)
                found.update({start + number: row for number, row in rows.items()})
            start += shard.rows
    return found


def _rows_of(path: Path, schema: pa.Schema, dataset: Dataset, wanted: Sequence[int]) -> dict[int, dict[str, str]]:
    names = [name for name in schema.names if name in dataset.columns][:_MOST_COLUMNS]
    found, at = {}, 0
    for block in formats.get(dataset.format).read_blocks(path, schema, names):
        here = [one for one in wanted if at <= one < at + block.num_rows]
        for number, row in zip(here, block.take([one - at for one in here]).to_pylist(), strict=True):
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
    """The shard on this machine, every byte as sealed; a copy of it in `folder` from a store elsewhere."""
    if store.is_local:
        path = store.local(shard.uri) / shard.path
        digest = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest() if shard.bytes else shard.blake3
    else:
        data = store.read(f"{shard.uri}/{shard.path}")
        path, digest = folder / shard.path, blake3(data).hexdigest()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if digest != shard.blake3:
        raise CorruptError(f"Shard {shard.path} does not hold the bytes that were sealed.")
    return path


def _table(store: Store, evaluation: Evaluation, name: str) -> pa.Table | None:
    """A table beside an evaluation; None if there is none, or it is too large for a page."""
    manifest = store.manifest(evaluation.ref)
    entry = next((file for file in manifest.files if file.path == name), None)
    if entry is None or entry.bytes > _MOST_BYTES:
        return None
    with pq.ParquetFile(pa.BufferReader(store.read_sealed(manifest, name))) as file:
        if file.metadata.num_rows > _MOST_ROWS:
            return None
        return file.read()
