"""Scores a canary and the champion on this run's fresh rows, and adds them to those of earlier runs.

Rows are fresh for a canary if no batch has them, and neither model was trained or chosen on them. They are compared one
by one, by the digests of what is in them; a row that occurs twice counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.alias_moves import ALIAS, CanaryStatus, CanaryTerms, ObservationBatch
from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, InsufficientEvidence, UsageError
from data_contracts.handoffs import Dataset, Evaluation, ModelVersion, Ref
from data_contracts.profile.sketches import mixed, value_hashes
from data_contracts.records import Evidence, GateResult
from infra.audit import now
from infra.models import canaries
from infra.models.canaries import Canary, Digests, ascending
from infra.records.evaluations import outcomes_of
from infra.records.handoffs import read_handoff
from infra.store import Store, layout
from tasks.evidence.sequential import Accumulator, decide
from tasks.gates.set_rows import hashed_columns, numbered, row_digests
from tasks.run.run import Run
from tasks.stages.evaluate import comparable, score
from tasks.stages.shard import sets_to_score
from tasks.stages.trainings import trained_with

_SHORT = 40
# No gain is as large: the end of an interval that is open there.
_NO_END = 1e60
# Tells the digest of a unit apart from that of a row.
_UNIT = np.uint64(0xA24BAED4963EE407)


@dataclass(frozen=True)
class CanaryObservations:
    """All observation batches of a canary beside one champion.

    Attributes:
        evaluation, champion: both models' evaluations on this run's sets.
    """

    batches: list[ObservationBatch]
    status: CanaryStatus
    evaluation: Evaluation
    champion: Evaluation


def observe(run: Run, canary: Canary, champion: ModelVersion, dataset: Dataset | None) -> CanaryObservations:
    """Add this run's fresh rows to the observation batches; without fresh rows, or if a batch has them, add nothing.

    Raises:
        UsageError: the spec has the metric no longer, or defines it in another way.
        InsufficientEvidence: a model has no finite score for a row, or the rows have other columns than the canary's.
    """
    terms, store = canary.terms, run.store
    _check_metric(run, canary)
    scored, split = sets_to_score(run, dataset)[terms.metric.rpartition("/")[0]]
    if dataset is not None and scored is dataset:
        refuse_other_columns(run, dataset, canary)
    mine, _ = score(run, canary.version.checkpoint, dataset)
    mine, theirs = comparable(run, canary.version.checkpoint, mine, champion.checkpoint, dataset, [terms.metric])
    rows = SetDigests(run, scored, split)
    rows.leave_out(canary, [canary.version, champion])
    batches: list[ObservationBatch] = []
    while True:
        earlier = canaries.observation_batches(store, canary, champion.version)
        fresh = rows.fresh(canary, earlier[len(batches) :])
        batches = earlier
        if not fresh.mask.any():
            break
        batch = ObservationBatch(
            run_id=run.run_id,
            at=now(),
            rows=int(fresh.mask.sum()),
            rows_id=canaries.put_rows(store, canary, fresh.digests),
            accumulator=_accumulated(run, terms, mine, theirs, fresh).to_json(),
            evaluations=(mine.ref.id[:_SHORT], theirs.ref.id[:_SHORT]),
        )
        if canaries.add_batch(store, canary, champion.version, len(batches), batch):
            batches = [*batches, batch]
            break
    return CanaryObservations(batches, status_of(canary, champion.version, batches), mine, theirs)


def stored_status(store: Store, canary: Canary, champion: int) -> CanaryStatus:
    """What the observation batches beside a version show so far; nothing is scored or written."""
    return status_of(canary, champion, canaries.observation_batches(store, canary, champion))


def status_of(canary: Canary, champion: int, batches: list[ObservationBatch]) -> CanaryStatus:
    """What these batches say together; CorruptError if one of them cannot be read."""
    terms, total = canary.terms, Accumulator()
    for n, batch in enumerate(batches):
        try:
            total += Accumulator.from_json(batch.accumulator)
        except ValueError as error:
            path = layout.canary_batch(canary.model, canary.k, champion, n)
            raise CorruptError(f"{path}: {error}.", details={"file": path}) from error
    found = decide(total, bound=terms.bound, confidence=terms.confidence)
    interval = found.interval
    missing = max(0, terms.min_rows - total.rows)
    return CanaryStatus(
        champion=champion,
        rows=total.rows,
        batches=len(batches),
        verdict="open" if missing else found.verdict,
        gain=found.gain,
        low=None if interval is None or interval.low <= -_NO_END else interval.low,
        high=None if interval is None or interval.high >= _NO_END else interval.high,
        method="" if interval is None else interval.method,
        rows_to_go=None if found.rows_to_go is None else max(missing, found.rows_to_go),
    )


def gate_result(canary: Canary, observations: CanaryObservations) -> GateResult:
    """The decision in the form of a gate's result, which receipts, questions and pages show."""
    terms, rows = canary.terms, observations.status
    evidence = None
    if rows.gain is not None and rows.low is not None and rows.high is not None:
        evidence = Evidence(
            verdict="insufficient" if rows.verdict == "open" else rows.verdict,
            estimate=rows.gain,
            low=rows.low,
            high=rows.high,
            confidence=terms.confidence,
            method=rows.method,
            # The test has a verdict at a level, but no p-value: this is an upper bound of the p-value.
            p_value=1 - terms.confidence if rows.verdict == "better" else 1.0,
            level=1 - terms.confidence,
            comparisons=0,
            promotions=0,
            rows=rows.rows,
        )
    return GateResult(
        metric=terms.metric,
        met=rows.verdict == "better",
        value=observations.evaluation.metrics[terms.metric].value,
        champion_value=observations.champion.metrics[terms.metric].value,
        bound=terms.bound,
        sentence=status_sentence(terms, rows),
        evidence=evidence,
    )


def status_sentence(terms: CanaryTerms, status: CanaryStatus) -> str:
    """What the rows say, such as `accuracy +0.012 (0.004 to 0.021) against version 3 on 2,310 fresh rows`."""
    gain = "" if status.gain is None else f" {status.gain:+.4g}"
    low, high = status.low, status.high
    span = f" ({low:.4g} to {high:.4g})" if low is not None and high is not None else ""
    return f"{terms.metric}{gain}{span} against version {status.champion} on {status.rows:,} fresh rows"


def metric_digest(run: Run, metric: str) -> str:
    """What distinguishes two definitions of a metric: its class and arguments, and the perturbation of its set."""
    of_set, _, name = metric.rpartition("/")
    wanted = run.spec.evaluate
    perturb = wanted.sets[of_set].perturb if of_set else None
    return digest([wanted.metrics[name].model_dump(mode="json"), perturb, wanted.unit])


def check_rows(evaluation: Evaluation, metric: str) -> None:
    """UsageError unless the metric has a value for each row of the evaluation."""
    found = evaluation.metrics.get(metric)
    if found is None or found.unit != "row":
        raise UsageError(
            f"promote.canary.metric: {metric} has no value for each row, so nights cannot be added up.",
            remedy="Name a torchmetrics class whose mean over rows it is, such as an accuracy.",
        )


def _check_metric(run: Run, canary: Canary) -> None:
    terms, wanted = canary.terms, run.spec.evaluate
    of_set, _, name = terms.metric.rpartition("/")
    known = name in wanted.metrics and (not of_set or of_set in wanted.sets)
    if not known or metric_digest(run, terms.metric) != terms.metric_digest:
        changed = "defines it in another way now" if known else "does not have it any more"
        raise UsageError(
            f"{canary.model}@canary, version {canary.version.version}, is judged by {terms.metric}, and the spec "
            f"{changed}.",
            remedy=f"Take the canary back: `trainwright canary {canary.model} --withdraw --reason WHY`.",
        )


def _accumulated(
    run: Run, terms: CanaryTerms, evaluation: Evaluation, champion_evaluation: Evaluation, fresh: FreshRows
) -> Accumulator:
    challenger, champion = (_scores(run, one, terms.metric, fresh.mask) for one in (evaluation, champion_evaluation))
    units = fresh.units
    sizes = None if units is None else np.bincount(units)
    if units is not None:
        challenger, champion = (np.bincount(units, one).astype(np.float64) for one in (challenger, champion))
    try:
        return Accumulator.of(champion, challenger, larger_is_better=terms.mode == "max", sizes=sizes)
    except ValueError as error:
        raise InsufficientEvidence(
            f"The canary cannot be judged by {terms.metric}: {error}.",
            remedy="If the champion's score is at fault, leave the row out; if the canary's is, take it back: "
            f"`trainwright canary {run.spec.model_name} --withdraw --reason WHY`.",
        ) from error


def _scores(run: Run, evaluation: Evaluation, metric: str, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    check_rows(evaluation, metric)
    outcomes = outcomes_of(run.store, evaluation, metric)
    if len(outcomes.values) != len(mask):
        raise InsufficientEvidence(
            f"{evaluation.ref.uri} has {len(outcomes.values):,} scores of {metric} for {len(mask):,} rows."
        )
    return outcomes.values[mask]


@dataclass(frozen=True)
class FreshRows:
    """The fresh ones among the rows of a set.

    Attributes:
        mask: (num_rows,) whether each row is fresh.
        digests: of the fresh rows, and of their units: what the next batch leaves out.
        units: (fresh,) the number of each fresh row's unit; None without `evaluate.unit`.
    """

    mask: NDArray[np.bool_]
    digests: Digests
    units: NDArray[np.int64] | None


class SetDigests:
    """The rows of a set, read once; asked again if another run has tallied some meanwhile."""

    def __init__(self, run: Run, dataset: Dataset, split: str) -> None:
        self._run = run
        self._rows, units = row_digests(run, dataset, split, run.spec.evaluate.unit)
        self._units = None if units is None else mixed(units + _UNIT)
        nothing = value_hashes(pa.nulls(1))[0]
        self._missing = None if units is None else units == nothing
        # The first of equal rows counts.
        self._open = np.zeros(len(self._rows), bool)
        self._open[np.unique(self._rows, return_index=True)[1]] = True

    def leave_out(self, canary: Canary, models: Iterable[ModelVersion]) -> None:
        """Leave out what one of the models was trained or chosen on."""
        for ref in {ref.id: ref for model in models for ref in seen_by(self._run, model)}.values():
            self._leave_out(self._seen(canary, ref))

    def fresh(self, canary: Canary, batches: Iterable[ObservationBatch]) -> FreshRows:
        """The fresh rows after these batches."""
        known = [canaries.read_rows(self._run.store, canary, batch.rows_id) for batch in batches]
        if known:
            # All batches at once: a pass over the rows takes as long for a hundred of them as for one.
            self._leave_out(ascending(np.concatenate(known)))
        mask, units = self._open.copy(), None
        digests = self._rows[mask]
        if self._units is not None and self._missing is not None:
            missing = self._missing[mask]
            units = numbered(self._units[mask], missing)
            digests = np.concatenate([digests, self._units[mask][~missing]])
        return FreshRows(mask, digests, units)

    def _leave_out(self, digests: Digests) -> None:
        if not len(digests):
            return
        self._open &= ~_in(self._rows, digests)
        if self._units is not None and self._missing is not None:
            self._open &= self._missing | ~_in(self._units, digests)

    def _seen(self, canary: Canary, ref: Ref) -> Digests:
        """The digests of all rows of a dataset, computed once for each canary."""
        store = self._run.store
        found = canaries.seen_digests(store, canary, ref.id)
        if found is None:
            dataset = read_handoff(store, ref, Dataset)
            splits = [row_digests(self._run, dataset, name)[0] for name in dataset.splits if dataset.rows(name)]
            found = ascending(np.concatenate([np.empty(0, np.uint64), *splits]))
            canaries.put_seen(store, canary, ref.id, found)
        return found


def seen_by(run: Run, model: ModelVersion) -> list[Ref]:
    """The datasets that a version was trained on, and those that it was scored on before it was chosen."""
    store = run.store
    found = [trained_with(run.store, model.checkpoint).dataset]
    evaluation = read_handoff(store, model.evaluation, Evaluation)
    for uri in (model.checkpoint.ref, evaluation.ref):
        found += [one for one in store.manifest(uri).parents if one.uri.startswith("datasets/")]
    if missing := set(evaluation.dataset_ids.values()) - {one.id for one in found if one is not None}:
        raise CorruptError(f"{evaluation.ref.uri} does not say where the dataset {min(missing)[:12]} lies.")
    return [one for one in found if one is not None]


def refuse_other_columns(run: Run, dataset: Dataset, canary: Canary) -> None:
    """InsufficientEvidence if the rows have other columns than the canary's: then none is known again, and all are new.

    Args:
        dataset: of this run, with the rows that the canary is to be scored on.
    """
    ref = trained_with(run.store, canary.version.checkpoint).dataset
    if ref is None:
        return
    before = hashed_columns(run, list(read_handoff(run.store, ref, Dataset).columns))
    changed = sorted(set(before) ^ set(hashed_columns(run, list(dataset.columns))))
    if changed:
        raise InsufficientEvidence(
            f"{canary.model}@{ALIAS}, version {canary.version.version}, has no fresh rows: the dataset has other "
            f"columns than when it was trained ({', '.join(changed[:5])}), so no row is known again.",
            remedy=f"Take the canary back: `trainwright canary {canary.model} --withdraw --reason WHY`.",
        )


def _in(values: Digests, digests: Digests) -> NDArray[np.bool_]:
    """Whether each value is among `digests`, which are ascending."""
    places = np.minimum(np.searchsorted(digests, values), len(digests) - 1)
    return digests[places] == values
