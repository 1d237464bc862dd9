"""The scores of both models on each row of the run's sets, read from the store when a gate asks for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.handoffs import Dataset, Evaluation, MetricValue
from data_contracts.pipeline_spec import GateSpec
from infra.records.evaluations import Outcomes, TestRows, measures_of, outcomes_of, pairs_of
from tasks.evidence.decision import Measured
from tasks.evidence.paired_scores import PairedScores, classes, counted, reason_of, value_of
from tasks.evidence.resampled_metrics import (
    ResampledMetric,
    cannot_be_resampled,
    is_share_of_right_rows,
    resampled_metric,
)
from tasks.evidence.significance import PairedCounts, PairedValues, Proportion
from tasks.gates.gates import subject, undefined
from tasks.gates.set_rows import SetRows, Sets, num_different, read_test_rows
from tasks.run.run import Run

Values = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)
log = logging.getLogger("trainwright")


class SetScores:
    """What gates with `confidence`, `slice` or `max_gap` need of a run's evaluations."""

    def __init__(self, run: Run, sets: Callable[[], Sets]) -> None:
        """`sets` gives the sets that the evaluations score; {} where the data is external."""
        self._run, self._sets = run, sets
        self._rows: dict[str, SetRows] = {}

    def slices(self) -> Sequence[str]:
        """The names of all slices."""
        return list(self._run.spec.evaluate.slices)

    def measures(self, evaluation: Evaluation) -> Mapping[str, float]:
        """What was measured of the model itself, by name."""
        return measures_of(self._run.store, evaluation)

    def on_slice(self, evaluation: Evaluation, metric: str, slice_name: str) -> MetricValue:
        """The metric over a slice's rows.

        Raises:
            UsageError: the metric cannot be computed for some of the rows.
            InsufficientEvidence: it is NaN there.
        """
        whole, mask = _value_on_set(evaluation, metric), self._mask(metric, slice_name)
        assert mask is not None
        outcomes = self._outcomes(evaluation, metric, f"slice {slice_name}")
        if outcomes is not None:
            value = float(np.mean(outcomes.values[mask]))
            return MetricValue(value=value, mode=whole.mode, rows=int(mask.sum()), unit="row")
        target, prediction = self._pairs(evaluation, metric)
        computed = self._resampled(metric)
        value = value_of(computed, target[mask], prediction[mask])
        if np.isnan(value):
            raise undefined(f"{metric} on the slice {slice_name}", reason_of(computed, target[mask]))
        return MetricValue(value=value, mode=whole.mode, rows=int(mask.sum()), unit="dataset")

    def set_rows(self, name: str) -> SetRows:
        """The rows of a set ("" is the spec's own split), read once."""
        if name not in self._rows:
            wanted, sets = self._run.spec.evaluate, self._sets()
            if not sets:
                raise UsageError(
                    "promote.gates: slices and evaluate.unit need rows that Trainwright reads, and data is external.",
                    remedy="Leave slice, max_gap and evaluate.unit out.",
                )
            dataset, split = sets[name]
            self._rows[name] = read_test_rows(self._run, dataset, split, wanted.unit, wanted.slices)
            if wanted.unit is None:
                self._warn_of_dependent_rows(
                    dataset, split, f"set {name}" if name else split, self._rows[name].num_rows
                )
        return self._rows[name]

    def _warn_of_dependent_rows(self, dataset: Dataset, split: str, place: str, rows: int) -> None:
        """Say so if the split keeps rows of one key together, and a key has several rows."""
        key = self._run.spec.shards.split.key if self._run.spec.shards is not None else None
        for column in [key] if isinstance(key, str) else key or []:
            if column in dataset.columns and (found := num_different(self._run, dataset, split, column)) < rows:
                log.warning(
                    "evaluate.unit: %s, the key of shards.split, has %s different values in %s rows of %s, and rows "
                    "with the same value may not be independent; set evaluate.unit: %s",
                    column, f"{found:,}", f"{rows:,}", place, column,
                )  # fmt: skip

    def test_rows(self, evaluation: Evaluation, gate: GateSpec) -> TestRows:
        """The rows that a gate is about, by which the exposure ledger knows them."""
        metric = gate.name
        if self._run.external:
            noted = self._run.store.manifest(evaluation.ref).provenance.get("rows", {}).get(metric)
            if noted is None:
                raise InsufficientEvidence(f"the rows of {metric} are not known, so the gate cannot decide")
            return TestRows.of_digest(noted["digest"])
        found = self.set_rows(metric.rpartition("/")[0])
        return found.rows if gate.slice is None else found.slice_rows[gate.slice]

    def units(self, gate: GateSpec) -> int | None:
        """How many units of rows a gate looks at; None without `evaluate.unit`."""
        units, mask = self._units(gate.name), self._mask(gate.name, gate.slice)
        return None if units is None else len(np.unique(units if mask is None else units[mask]))

    def batches(self, gate: GateSpec, evaluation: Evaluation) -> int | None:
        """How many batches a gate's rows were scored in, if its metric has one value for each; else None."""
        outcomes = self._outcomes(evaluation, gate.name, "") if evaluation.metrics[gate.name].unit == "batch" else None
        return None if outcomes is None else len(outcomes.values)

    def paired(self, gate: GateSpec, candidate: Evaluation, champion: Evaluation) -> Measured:
        """Both models' scores on the rows that a gate is about.

        Raises:
            UsageError: the metric cannot be resampled, or not by units or on a slice.
            InsufficientEvidence: the models were scored in different ways.
        """
        metric, mode = gate.name, _value_on_set(candidate, gate.name).mode
        if champion.metrics.get(metric) is None and metric not in champion.undefined:
            raise InsufficientEvidence(
                f"the champion has no score for {metric} that can be compared with the candidate's"
            )
        _value_on_set(champion, metric, " for the champion")
        chosen, rows_for = self._chosen(gate)
        mine, theirs = (self._outcomes(one, metric, rows_for) for one in (candidate, champion))
        if (mine is None) != (theirs is None) and is_share_of_right_rows(self._resampled(metric)):
            # With few predictions of one kind, one model's score is a mean over rows and the other's is not.
            rights, counts = self._rights(candidate if mine is None else champion, metric)
            mine, theirs, chosen = mine or rights, theirs or rights, chosen.only(counts)
        if mine is None or theirs is None:
            return self._of_pairs(gate, mode, chosen, candidate, champion)
        if mine.unit != theirs.unit or not np.array_equal(mine.rows, theirs.rows):
            raise InsufficientEvidence(f"{metric} of the champion was scored on other rows, so the gate cannot decide")
        first, second, rows = chosen.of(mine.values), chosen.of(theirs.values), chosen.of(mine.rows)
        gains = first - second if mode == "max" else second - first
        if chosen.units is None and mine.unit == "row" and _are_flags(first) and _are_flags(second):
            return PairedCounts(int(np.count_nonzero(gains > 0)), int(np.count_nonzero(gains < 0)), len(gains))
        return _values(gains * rows, rows, chosen.units)

    def alone(self, gate: GateSpec, evaluation: Evaluation, sign: Literal[1, -1]) -> Measured:
        """One model's scores on the rows that a gate is about; `sign` is -1 if a smaller value is asked for.

        Raises:
            UsageError: as `paired`.
        """
        metric = gate.name
        _value_on_set(evaluation, metric)
        chosen, rows_for = self._chosen(gate)
        outcomes = self._outcomes(evaluation, metric, rows_for)
        if outcomes is None:
            return self._of_pairs(gate, "max" if sign > 0 else "min", chosen, evaluation)
        values, rows = chosen.of(outcomes.values), chosen.of(outcomes.rows)
        if chosen.units is None and outcomes.unit == "row" and _are_flags(values):
            return Proportion(int(values.sum()), len(values), sign)
        return _values(sign * values * rows, rows, chosen.units)

    def _chosen(self, gate: GateSpec) -> tuple[_Chosen, str]:
        """The rows that a gate is about, and what of it needs a score for each row."""
        mask, units = self._mask(gate.name, gate.slice), self._units(gate.name)
        rows_for = "evaluate.unit" if units is not None else "" if gate.slice is None else f"slice {gate.slice}"
        return _Chosen(mask, units if units is None or mask is None else units[mask]), rows_for

    def _of_pairs(
        self,
        gate: GateSpec,
        mode: Literal["max", "min"],
        chosen: _Chosen,
        candidate: Evaluation,
        champion: Evaluation | None = None,
    ) -> Measured:
        metric = gate.name
        target, mine = self._pairs(candidate, metric)
        theirs = None
        if champion is not None:
            of_champion, theirs = self._pairs(champion, metric)
            if not np.array_equal(target, of_champion):
                raise InsufficientEvidence(
                    f"{metric} of the champion was scored on other rows, so the gate cannot decide"
                )
        scores = PairedScores(
            self._resampled(metric),
            mode,
            chosen.of(target),
            chosen.of(mine),
            None if theirs is None else chosen.of(theirs),
            chosen.units,
        )
        if np.isnan(scores.gain):
            raise undefined(subject(gate), reason_of(scores.metric, scores.target))
        return scores

    def _outcomes(self, evaluation: Evaluation, metric: str, rows_for: str) -> Outcomes | None:
        """The outcomes if a metric is their mean; None if it is not a mean.

        Args:
            rows_for: what needs an outcome for each row; "" if nothing does.
        """
        unit = evaluation.metrics[metric].unit
        # Pairs are more exact: a mean over very many rows is kept by batches, and for some predictions any metric
        # equals a mean.
        if unit == "dataset" or metric in evaluation.pairs:
            return None
        if unit == "batch" and rows_for:
            raise UsageError(
                f"promote.gates: {metric} has one value for each batch, and {rows_for} needs one for each row.",
                remedy="Name a torchmetrics class whose mean over rows it is, or leave this out.",
            )
        found = outcomes_of(self._run.store, evaluation, metric)
        if unit == "batch" and len(found.values) == 1:
            raise InsufficientEvidence(
                f"{metric} has one value for each batch, and its {int(found.rows.sum()):,} rows are one batch, so "
                "nothing tells how far chance goes",
                remedy="Set a smaller evaluate.batch_size, or name a torchmetrics class that is a mean over rows.",
            )
        return found

    def _rights(self, evaluation: Evaluation, metric: str) -> tuple[Outcomes, NDArray[np.bool_]]:
        """From the pairs: whether each row is right, 1 or 0, and whether it counts."""
        computed, (target, prediction) = self._resampled(metric), self._pairs(evaluation, metric)
        right = (classes(computed, prediction) == target).astype(np.float64)
        return Outcomes(right, np.ones(len(target), np.int64), "row"), counted(computed, target)

    def _pairs(self, evaluation: Evaluation, metric: str) -> tuple[NDArray[Any], NDArray[Any]]:
        self._resampled(metric)
        found = pairs_of(self._run.store, evaluation, metric)
        if found is None:
            raise cannot_be_resampled(metric, "the truth and the prediction of each row are not kept")
        return found

    def _resampled(self, metric: str) -> ResampledMetric:
        """What is computed again for a metric; UsageError if it cannot be."""
        name = metric.rpartition("/")[2]
        wanted = self._run.spec.evaluate.metrics[name]
        return resampled_metric(name, wanted.class_path, wanted.init_args)

    def _mask(self, metric: str, slice_name: str | None) -> NDArray[np.bool_] | None:
        return None if slice_name is None else self.set_rows(metric.rpartition("/")[0]).slices[slice_name]

    def _units(self, metric: str) -> NDArray[np.int64] | None:
        """The unit of each row; None without `evaluate.unit`, or if each row has its own."""
        units = None if self._run.spec.evaluate.unit is None else self.set_rows(metric.rpartition("/")[0]).units
        return None if units is None or len(np.unique(units)) == len(units) else units


def _value_on_set(evaluation: Evaluation, metric: str, whose: str = "") -> MetricValue:
    """The metric's value on all rows; InsufficientEvidence if it is NaN."""
    if metric in evaluation.undefined:
        raise undefined(metric, evaluation.undefined[metric], whose)
    return evaluation.metrics[metric]


@dataclass(frozen=True)
class _Chosen:
    """Some of the rows.

    Attributes:
        mask: of all rows; None if all are chosen.
        units: of the chosen rows; None if each row is its own.
    """

    mask: NDArray[np.bool_] | None
    units: NDArray[np.int64] | None

    def of(self, values: NDArray[T]) -> NDArray[T]:
        """The values of the chosen rows."""
        return values if self.mask is None else values[self.mask]

    def only(self, counts: NDArray[np.bool_]) -> _Chosen:
        """Those of the chosen rows that count; `counts` is of all rows."""
        units = None if self.units is None else self.units[self.of(counts)]
        return _Chosen(counts if self.mask is None else self.mask & counts, units)


def _values(sums: Values, rows: NDArray[Any], units: NDArray[np.int64] | None) -> PairedValues:
    which = np.arange(len(rows)) if units is None else np.unique(units, return_inverse=True)[1]
    sizes = np.bincount(which, rows).astype(np.float64)
    return PairedValues(np.bincount(which, sums).astype(np.float64), None if np.all(sizes == 1) else sizes)


def _are_flags(values: Values) -> bool:
    return bool(np.all((values == 0) | (values == 1)))
