"""What a page about a run shows, read from the store. A part that cannot be read is missing; it ends nothing.

Of an evaluation it reads which rows were scored worst, what they hold, and truth and prediction of each, if kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray
from scipy.special import expit, softmax

from data_contracts.errors import CorruptError, TrainwrightError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset, Evaluation, Receipt, ShardFile
from data_contracts.records import GateResult
from data_contracts.run_report import RunReport, StageResult
from infra import scratch
from infra.gang.ledger import GenerationSpan, committed, generation_spans
from infra.records import evaluations
from infra.records.handoffs import find_dataset_by_id, read_handoff
from infra.store import Store, layout
from infra.store.records import corrupt
from infra.store.seal import pass_over
from tasks.queries.history import logged_metrics
from tasks.run.report import latest_report
from tasks.run.run import Run
from tasks.stages.artifacts import gates_in, own_report, receipt_of
from tasks.stages.evaluate import evaluation_key
from tasks.stages.shard import sets_to_score
from tasks.stages.trainings import training_of
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
log = logging.getLogger("trainwright")
T = TypeVar("T")
# How many evaluations are looked at for one that its key does not find.
_SCANNED = 200


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
            largest = softmax(scores, axis=1).max(axis=1)
        return Pairs(truth, prediction, largest, classes=True)
    prediction = scores[:, 0]
    whole = truth.dtype.kind in "biuSUO"
    if whole and prediction.dtype.kind in "biuSUO":
        return Pairs(truth, prediction, None, classes=True)
    if whole and set(np.unique(truth)) <= {0, 1}:
        if prediction.min() < 0 or prediction.max() > 1:  # as torchmetrics takes them
            prediction = expit(prediction.astype(np.float64))
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
    path: Path, schema: pa.Schema, encoding: str, names: list[str], positions: Sequence[int]
) -> dict[int, dict[str, str]]:
    rows, at = {}, 0
    for block in formats.get(encoding).read_blocks(path, schema, names):
        for number in (position for position in positions if at <= position < at + block.num_rows):
            # In the order of `names`: readers give columns as they are written. Not by `take`, which imports pandas.
            [row] = block.select(names).slice(number - at, 1).to_pylist()
            rows[number] = {name: shown(value) for name, value in row.items()}
        at += block.num_rows
        if positions and at > positions[-1]:
            break
    return rows


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


@dataclass(frozen=True)
class Facts:
    """A run, its report (None while it runs) and what it made or reused.

    Attributes:
        stages: how the stages ended, in order.
        training: its directory in the store.
        spans: what the generations of its training did.
        history: what the training logged.
    """

    run: Run
    report: RunReport | None
    stages: list[StageResult] = field(default_factory=list)
    contract: ContractReport | None = None
    dataset: Dataset | None = None
    training: str | None = None
    checkpoint: Checkpoint | None = None
    evaluation: Evaluation | None = None
    receipt: Receipt | None = None
    spans: Sequence[GenerationSpan] = ()
    history: Sequence[Mapping[str, Any]] = ()

    @property
    def gates(self) -> list[GateResult]:
        """What the gates found: from the receipt, or from the error that refused the candidate."""
        report = self.report
        return [] if report is None else tried(lambda: gates_in(report, self.receipt)) or []

    @property
    def own_spans(self) -> list[GenerationSpan]:
        """The generations that this run launched; another run may have begun the training, or continued it."""
        return [one for one in self.spans if one.run_id == self.run.run_id]

    @property
    def restarts(self) -> int:
        """How often this run launched the training again."""
        return max(len(self.own_spans) - 1, 0)

    @property
    def main_metric(self) -> str:
        """The metric that the first gate is about, else the first; "" if nothing was evaluated."""
        metrics = self.evaluation.metrics if self.evaluation is not None else {}
        named = [one.metric for one in self.gates] + [gate.name for gate in self.run.spec.promote.gates]
        return next((name for name in [*named, *metrics] if name in metrics), "")

    @cached_property
    def pairs(self) -> Pairs | None:
        """Truth and prediction of each row; None if they are not kept, or withheld as those of sensitive columns."""
        evaluation = self.evaluation
        if evaluation is None or self.run.withholds:
            return None
        return tried(lambda: read_pairs(self.run.store, evaluation, self.main_metric))

    def stage(self, name: str) -> StageResult | None:
        """How a stage ended; None if the run did not get so far."""
        return next((one for one in self.stages if one.name == name), None)


def gather(run: Run, report: RunReport | None, made: Mapping[str, Any] | None = None) -> Facts:
    """The facts about a run.

    Args:
        made: hand-offs that are known already: `dataset`, `checkpoint`, `evaluation` and `receipt`.
    """
    given = {name: one for name, one in (made or {}).items() if one is not None}
    stages = _stages(run, report)
    ids = {one.name: one.id for one in stages}
    checkpoint: Checkpoint | None = given.get("checkpoint")
    training = checkpoint.training if checkpoint is not None else tried(lambda: training_of(run))
    if checkpoint is None and training is not None and "train" in ids:
        checkpoint = tried(lambda: run.store.find_as(layout.result(training), Checkpoint.from_json))
    dataset: Dataset | None = given.get("dataset")
    wanted = ids.get("shard")
    if dataset is None and wanted:
        dataset = tried(lambda: find_dataset_by_id(run.store, wanted))
    receipt: Receipt | None = given.get("receipt") or (
        None if report is None else tried(lambda: receipt_of(run, report))
    )
    evaluation: Evaluation | None = given.get("evaluation")
    if evaluation is None and checkpoint is not None and "evaluate" in ids:
        parts = (checkpoint, dataset, receipt, ids["evaluate"])
        evaluation = tried(lambda: _evaluation(run, *parts))
    return Facts(
        run=run,
        report=report,
        stages=stages,
        contract=tried(lambda: own_report(run)) or _rejection(report),
        dataset=dataset,
        training=training,
        checkpoint=checkpoint,
        evaluation=evaluation,
        receipt=receipt,
        spans=() if training is None else tried(lambda: generation_spans(run.store, training)) or (),
        history=tried(lambda: _history(run.store, checkpoint, training)) or (),
    )


def facts_of(run: Run) -> Facts:
    """The facts about a run from the store alone."""
    return gather(run, latest_report(run.store, run.run_id))


def tried(read: Callable[[], T]) -> T | None:
    """What `read` returns; None if it raises, which a page must survive."""
    try:
        return read()
    except TrainwrightError as error:
        if isinstance(error, CorruptError) or "file" in error.details:
            pass_over(error)
        return None
    except Exception as error:  # of a store of any age and state; the text may quote a value
        log.debug("A part of a page could not be read: %s", type(error).__name__)
        return None


def seconds_between(started: str, finished: str) -> float | None:
    """Seconds between two times in ISO 8601; None if one is not known."""
    found = tried(lambda: (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds())
    return found if found is not None and found >= 0 else None


def _stages(run: Run, report: RunReport | None) -> list[StageResult]:
    if report is not None:
        return list(report.stages)
    found = [tried(partial(_stage, run, name)) for name in run.store.list(f"{layout.run(run.run_id)}/stages")]
    order = ["validate", "shard", "train", "verify", "evaluate", "promote"]
    return sorted((one for one in found if one), key=lambda one: order.index(one.name) if one.name in order else 99)


def _history(store: Store, checkpoint: Checkpoint | None, training: str | None) -> Sequence[Mapping[str, Any]]:
    """What was logged up to the checkpoint that was handed over, or up to the newest of a training that is not done."""
    if checkpoint is None and training is not None:
        kept, _ = committed(store, training)
        checkpoint = kept[-1] if kept else None
    return () if checkpoint is None else logged_metrics(store, checkpoint)


def _stage(run: Run, file: str) -> StageResult:
    return run.store.read_as(layout.stage(run.run_id, file.removesuffix(".json")), StageResult.model_validate)


def _rejection(report: RunReport | None) -> ContractReport | None:
    details = ((report.error if report is not None else None) or {}).get("details", {})
    return tried(lambda: ContractReport.model_validate(details)) if "suite_digest" in details else None


def _evaluation(
    run: Run, checkpoint: Checkpoint, dataset: Dataset | None, receipt: Receipt | None, evaluation_id: str | None
) -> Evaluation | None:
    """The evaluation that the receipt names, else the one with the id in the stage's record."""
    store = run.store
    if receipt is not None and receipt.evaluation is not None:
        return read_handoff(store, receipt.evaluation, Evaluation)
    key = tried(lambda: evaluation_key(run, checkpoint, sets_to_score(run, dataset)))
    names = store.list("evaluations")
    first = [name for name in names if key is not None and name.startswith(f"{key}-")]
    for name in [*reversed(first), *reversed(names[-_SCANNED:])]:
        manifest = tried(partial(store.manifest, f"evaluations/{name}"))
        if manifest is not None and manifest.ref.id == evaluation_id:
            return read_handoff(store, manifest.ref, Evaluation)
    return None
