"""Reads what an evaluation sealed beside its metrics, to compare two models row by row; every byte is checked first.

    outcomes_of(store, evaluation, metric) -> Outcomes                       values, rows, unit
    pairs_of(store, evaluation, metric) -> (target, prediction) or None      for a metric that is computed again
    shown_of(store, evaluation, metric) -> (target, prediction) or None      for pages alone
    unsealed(store, evaluation) -> Evaluation                                with the metrics of sealed sets

`metric` is a name in `evaluation.metrics`, such as `accuracy` or `hard/accuracy`. Rows stand in the order of the set,
so the same place belongs to the same row in two evaluations of the same rows. `training.score` writes the files.

A set of rows is also known by a sketch of what is in them: their different digests, or the smallest of these. Two
sketches are compared where both are whole, below the smaller of their largest digests (bottom-k sampling; Broder 1997).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_contracts.arrow_rows import num_rows
from data_contracts.errors import CorruptError
from data_contracts.foreign_files import parse_json
from data_contracts.handoffs import Evaluation
from infra.store import Store
from infra.store.records import corrupt

OUTCOMES = "outcomes.parquet"
# The metrics of sealed sets, which no hand-off has, and their outcomes, apart from those that people read.
SEALED, SEALED_OUTCOMES = "sealed.json", "sealed-outcomes.parquet"
# Classes that a model may give scores for, with the truth.
_MOST_COLUMNS = 2**10
T = TypeVar("T")
# Of a set with more different rows, so many of the smallest digests stand for it: a share is known to one in a hundred.
SAMPLE = 8192
# Below so many rows that can be compared, a share is rounded up, because an unlucky sample could miss the shared rows.
_FEW = 64
_ID_LENGTH = 40


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of one metric: their mean, weighted by `rows`, is the metric.

    Attributes:
        values: (outcomes,).
        rows: (outcomes,) number of rows of each.
        unit: what one outcome belongs to: a `row`, a `batch`, or the whole `dataset`, which has one outcome.
    """

    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    unit: str


def unsealed(store: Store, evaluation: Evaluation) -> Evaluation:
    """The evaluation with the metrics of its sealed sets, for a gate alone: nobody may see them.

    Raises:
        CorruptError: the file is missing, or is not what was sealed.
    """
    if not evaluation.sealed:
        return evaluation

    def with_metrics(data: pa.Buffer) -> Evaluation:
        more, fields = parse_json(data.to_pybytes()), evaluation.to_json()
        for part in ("metrics", "pairs", "undefined"):
            fields[part] = {**fields.get(part, {}), **more.get(part, {})}
        return Evaluation.from_json(fields)

    return _parsed(store, evaluation, SEALED, with_metrics)


def outcomes_of(store: Store, evaluation: Evaluation, metric: str) -> Outcomes:
    """The outcomes of a metric of the evaluation.

    Raises:
        CorruptError: the file is missing, is not what was sealed, or does not have the metric's outcomes.
    """
    value = evaluation.metrics[metric]

    def parsed(data: pa.Buffer) -> Outcomes:
        with pq.ParquetFile(pa.BufferReader(data), read_dictionary=["metric", "unit"]) as kept:
            # Few bytes may stand for very many outcomes; each has a row or more.
            if num_rows(kept) > sum(one.rows for one in evaluation.metrics.values()):
                raise ValueError("it has more outcomes than the metrics have rows")
            table = kept.read(columns=["metric", "unit", "rows", "value"])
        of_metric = table.filter(pc.equal(table["metric"], metric))
        if of_metric["unit"].unique().to_pylist() not in ([], [value.unit]):
            raise ValueError(f"{metric} has outcomes of another unit than {value.unit}")
        rows, values = of_metric["rows"].to_numpy(), of_metric["value"].to_numpy()
        outcomes = Outcomes(values.astype(np.float64, copy=False), rows.astype(np.int64, copy=False), value.unit)
        if int(outcomes.rows.sum()) != value.rows:
            raise ValueError(f"it does not have the outcomes of {metric}")
        return outcomes

    if not value.rows:  # no outcome tells its unit
        return Outcomes(np.zeros(0), np.zeros(0, np.int64), value.unit)
    return _parsed(store, evaluation, SEALED_OUTCOMES if metric in evaluation.sealed else OUTCOMES, parsed)


def pairs_of(store: Store, evaluation: Evaluation, metric: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """The truth (rows,) and the prediction (rows,) or (rows, n) of each row; None if the evaluation has none.

    They have the types that the metric got: predictions that are not whole numbers are in single precision.

    Raises:
        CorruptError: the file is missing, or is not what was sealed.
    """
    return _pairs_in(store, evaluation, metric, evaluation.pairs.get(metric), None)


def shown_of(
    store: Store, evaluation: Evaluation, metric: str, most_values: int
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """As `pairs_of`, also if they are kept for pages alone; None if there are more than `most_values`, too."""
    return _pairs_in(store, evaluation, metric, {**evaluation.shown, **evaluation.pairs}.get(metric), most_values)


def _pairs_in(
    store: Store, evaluation: Evaluation, metric: str, file: str | None, most_values: int | None
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    if file is None:
        return None

    def pairs(data: pa.Buffer) -> tuple[NDArray[Any], NDArray[Any]] | None:
        # Few bytes may stand for very many values, so what is claimed is compared before anything is decoded.
        with pq.ParquetFile(pa.BufferReader(data)) as kept:
            schema, rows = kept.schema_arrow, num_rows(kept)
            if rows != evaluation.metrics[metric].rows or len(schema) > _MOST_COLUMNS:
                raise ValueError(f"it does not have the rows of {metric}")
            if not all(pa.types.is_primitive(one.type) for one in schema):
                raise ValueError(f"it does not have numbers alone for {metric}")
            if most_values is not None and rows * len(schema) > most_values:
                return None
            table = kept.read()
        target, *predictions = (column.to_numpy() for column in table.columns)
        one = table.column_names == ["target", "prediction"]
        return target, predictions[0] if one else np.stack(predictions, axis=1)

    return _parsed(store, evaluation, file, pairs)


def measures_of(store: Store, evaluation: Evaluation) -> dict[str, float]:
    """What was measured of the model itself, such as `latency_ms`, by name."""
    return store.manifest(evaluation.ref).provenance.get("measures", {})


def _parsed(store: Store, evaluation: Evaluation, file: str, parse: Callable[[pa.Buffer], T]) -> T:
    manifest = store.manifest(evaluation.ref)
    try:
        return parse(pa.py_buffer(store.read_sealed(manifest, file)))
    except CorruptError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, OSError) as error:  # pyarrow's, too
        raise corrupt(f"{manifest.uri}/{file}", f"cannot be read: {error}") from error


@dataclass(frozen=True)
class TestRows:
    """The rows of a test set, known by their digests.

    Attributes:
        digests: (≤ SAMPLE,) the smallest different digests of its rows, ascending.
        counts: (≤ SAMPLE,) how often each of them occurs; ones if the rows were read from a ledger.
    """

    __test__: ClassVar[bool] = False  # pytest: this is not a test

    digests: NDArray[np.uint64]
    counts: NDArray[np.int64] = field(repr=False)

    @classmethod
    def of(cls, digests: NDArray[np.uint64]) -> TestRows:
        """From the digests (rows,) of all rows in any order."""
        different, counts = np.unique(digests.astype(np.uint64, copy=False), return_counts=True)
        return cls(different[:SAMPLE], counts[:SAMPLE].astype(np.int64))

    def with_more(self, digests: NDArray[np.uint64]) -> TestRows:
        """With the digests (rows,) of further rows; the same as if all came at once, in the memory of a sketch."""
        if len(self.digests) == SAMPLE:
            digests = digests[digests <= self.digests[-1]]  # a larger one cannot come in
        more, counts = np.unique(digests, return_counts=True)
        both, places = np.unique(np.concatenate([self.digests, more]), return_inverse=True)
        total = np.zeros(len(both), np.int64)
        np.add.at(total, places, np.concatenate([self.counts, counts]))
        return TestRows(both[:SAMPLE], total[:SAMPLE])

    @classmethod
    def of_digest(cls, hexadecimal: str) -> TestRows:
        """From one digest of all rows together, which shares everything or nothing with another."""
        whole = int.from_bytes(hashlib.sha256(hexadecimal.encode()).digest()[:8], "little")
        return cls.of(np.array([whole], np.uint64))

    @classmethod
    def from_bytes(cls, data: bytes) -> TestRows:
        """What `to_bytes` wrote; ValueError if it is not a sketch."""
        digests = np.frombuffer(data, "<u8").astype(np.uint64)
        if len(digests) > SAMPLE or bool(np.any(digests[1:] <= digests[:-1])):
            raise ValueError("not a sketch of rows")
        return cls(digests, np.ones(len(digests), np.int64))

    def to_bytes(self) -> bytes:
        """Its digests, little-endian."""
        return self.digests.astype("<u8").tobytes()

    @property
    def id(self) -> str:
        """The same for the same rows, in whatever order and however often each occurs."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:_ID_LENGTH]

    def covered_by(self, other: TestRows) -> float:
        """The share of these rows that the other set has, too, from 0 to 1.

        It is the larger of two shares, of the rows and of the different rows: neither a row that is repeated often nor
        one that is exposed and repeated hides behind the others. Where few rows can be compared it is rounded up.
        """
        if not len(self.digests) or not len(other.digests):
            return 0.0
        ends = [one.digests[-1] for one in (self, other) if len(one.digests) == SAMPLE]
        comparable = len(self.digests)
        if ends:
            comparable = int(np.searchsorted(self.digests, min(ends), side="right"))
        mine, counts = self.digests[:comparable], self.counts[:comparable]
        places = np.minimum(np.searchsorted(other.digests, mine), len(other.digests) - 1)
        shared = other.digests[places] == mine
        sampled = comparable < len(self.digests)
        if sampled and comparable < _FEW:
            return float((shared.sum() + 1) / (comparable + 1))
        return float(max(shared.mean(), counts[shared].sum() / counts.sum()))
