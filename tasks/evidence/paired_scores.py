"""Models by a metric that is not a mean over rows: it is computed again on each resample of the rows.

The p-value is that of a t test on the influence of each row on the metric (the infinitesimal jackknife, Efron 1982): a
bootstrap of 10,000 resamples says nothing of probabilities of 10⁻⁶, which a test set that has decided often asks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from data_contracts.undefined_scores import NO_VALUE, why_undefined
from tasks.evidence import student
from tasks.evidence.class_counts import num_classes
from tasks.evidence.intervals import Interval, bca
from tasks.evidence.paired_counts import rows_needed
from tasks.evidence.predictions import Numbers, counted, probabilities
from tasks.evidence.ranked import Ranking
from tasks.evidence.resampled_metrics import ResampledMetric, cannot_be_resampled
from tasks.evidence.resampling import RESAMPLES, resampled_auc
from tasks.evidence.statistics import RANKED, SumStatistic, sum_statistic

Values = NDArray[np.float64]
Units = NDArray[np.int64]
# Rows of resamples that are in memory at once.
_BLOCK = 2**22
_STEP = 1e-6
# Rows drawn in all; that many take a minute or two.
_MOST_DRAWN, _FEWEST = 10**9, 1_000


def value_of(metric: ResampledMetric, target: Numbers, prediction: Numbers) -> float:
    """The metric of all rows; NaN if it has no value for them."""
    if metric.base in RANKED:
        return float(np.mean([_ranked(metric, one) for one in _rankings(metric, target, prediction)]))
    statistic = sum_statistic(metric, target)
    sums = np.asarray(statistic.entries(target, prediction).sum(axis=0), np.float64).reshape(-1)
    return float(statistic.value(sums))


def reason_of(metric: ResampledMetric, target: Numbers) -> str:
    """Why the metric has no value for these rows, as part of a sentence."""
    true = target[counted(metric, target)]
    if metric.base not in RANKED:
        return NO_VALUE
    classes = [1] if metric.task == "binary" else range(num_classes(metric))
    of_class = {number: int(np.count_nonzero(true == number)) for number in classes}
    return why_undefined(of_class, [len(true)] * len(of_class), needs_others=metric.base == "AUROC")


@dataclass(frozen=True, eq=False)
class PairedScores:
    """The truth and the models' predictions of each row.

    Attributes:
        mode: whether a larger or a smaller value of the metric is better.
        target: (rows,); candidate, champion: predictions, (rows,) or (rows, n); without a champion, the candidate's
            own value is the gain.
        units: (rows,) the unit of each row: units are drawn as a whole; None if rows are.
        seed: of the resamples.
    """

    metric: ResampledMetric
    mode: Literal["max", "min"]
    target: Numbers
    candidate: Numbers
    champion: Numbers | None
    units: Units | None = None
    seed: int = 0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.target)

    @property
    def _sign(self) -> float:
        return 1.0 if self.mode == "max" else -1.0

    @cached_property
    def _models(self) -> _RankedModels | _SummedModels:
        kind = _RankedModels if self.metric.base in RANKED else _SummedModels
        return kind(self)

    @cached_property
    def unit_numbers(self) -> Units | None:
        """Units as numbers from 0."""
        return None if self.units is None else np.unique(self.units, return_inverse=True)[1].astype(np.int64)

    @property
    def num_units(self) -> int:
        """The number of what is drawn: units, or rows."""
        return self.rows if self.unit_numbers is None else int(self.unit_numbers.max(initial=-1)) + 1

    @cached_property
    def gain(self) -> float:
        """By how much the candidate's value is better."""
        mine, *theirs = self._models.values
        return self._sign * (mine - sum(theirs))

    @cached_property
    def _influence(self) -> Values:
        """(units,) how much each moves the gain, times their number; their mean is 0."""
        of_rows = self._sign * self._models.influence
        if self.unit_numbers is None:
            return of_rows
        return np.bincount(self.unit_numbers, of_rows).astype(np.float64) * (self.num_units / self.rows)

    def p_value(self, bound: float = 0.0) -> float:
        """How likely a gain at least this large is, if the true gain is not above `bound`."""
        return student.of_influence(self._influence, self.gain, bound)

    def interval(self, confidence: float, resamples: int | None = None) -> Interval:
        """The BCa bootstrap interval of the gain; by default with fewer resamples of very many rows."""
        if resamples is None:
            resamples = int(np.clip(_MOST_DRAWN // max(self.rows, 1), _FEWEST, RESAMPLES))
        resampled = np.concatenate(
            [self._sign * (block[:, 0] - block[:, 1:].sum(axis=1)) for block in self._models.resampled(resamples)]
        )
        return bca(resampled, self.gain, self._influence, confidence)

    def rows_needed(self, bound: float, level: float, power: float = 0.8) -> int | None:
        """How many rows would decide with this gain and spread; None if it is not above `bound`."""
        units = rows_needed(self.gain - bound, float(self._influence.std()), level, power)
        return None if units is None else math.ceil(units * self.rows / self.num_units)

    @property
    def predictions(self) -> list[Numbers]:
        """The candidate's, then the champion's if there is one."""
        return [self.candidate] if self.champion is None else [self.candidate, self.champion]

    def drawn(self, resamples: int) -> Iterator[Values]:
        """How often each row is drawn, (some resamples, rows), in blocks."""
        draw, units = np.random.default_rng(self.seed), self.num_units
        at_once = max(1, min(resamples, _BLOCK // max(self.rows, 1)))
        for start in range(0, resamples, at_once):
            block = np.empty((min(at_once, resamples - start), units))
            for one in block:
                one[:] = np.bincount(draw.integers(0, units, units), minlength=units)
            yield block if self.unit_numbers is None else block[:, self.unit_numbers]


class _SummedModels:
    """The models by a metric that is a function of sums over rows."""

    def __init__(self, scores: PairedScores) -> None:
        self._scores = scores
        self._statistic = sum_statistic(scores.metric, scores.target)
        self._entries = [self._statistic.entries(scores.target, one) for one in scores.predictions]
        self._sums = [np.asarray(one.sum(axis=0), np.float64).reshape(-1) for one in self._entries]

    @cached_property
    def values(self) -> list[float]:
        return [float(self._statistic.value(one)) for one in self._sums]

    @cached_property
    def influence(self) -> Values:
        mine, *theirs = (
            one @ _gradient(self._statistic, sums) for one, sums in zip(self._entries, self._sums, strict=True)
        )
        moved = np.asarray(mine - sum(theirs)) * self._scores.rows
        return moved - moved.mean()

    def resampled(self, resamples: int) -> Iterator[Values]:
        """The metric of each model on each resample: (some resamples, models)."""
        if self._statistic.whole and self._scores.units is None:
            counts, kinds = _kinds(self._entries)
            draw = np.random.default_rng(self._scores.seed)
            at_once = max(1, _BLOCK // len(counts))
            for start in range(0, resamples, at_once):
                size = min(at_once, resamples - start)
                drawn = draw.multinomial(counts.sum(), counts / counts.sum(), size=size)
                yield self._metric(np.asarray((kinds.T @ drawn.T).T, np.float64))
            return
        for rows in self._scores.drawn(resamples):
            sums = [np.asarray((one.T @ rows.T).T, np.float64) for one in self._entries]
            yield self._metric(np.concatenate(sums, axis=1))

    def _metric(self, sums: Values) -> Values:
        """The metric of each model from the sums of one after the other."""
        of_each = np.split(sums, len(self._entries), axis=1)
        return np.stack([self._statistic.value(one) for one in of_each], axis=1)


class _RankedModels:
    """The models by the order of their scores."""

    def __init__(self, scores: PairedScores) -> None:
        self._scores = scores
        metric, target = scores.metric, scores.target
        self._rankings = [_rankings(metric, target, one) for one in scores.predictions]
        self._kept = counted(metric, target)

    @cached_property
    def values(self) -> list[float]:
        metric = self._scores.metric
        return [float(np.mean([_ranked(metric, one) for one in its])) for its in self._rankings]

    @cached_property
    def influence(self) -> Values:
        area = self._scores.metric.base == "AUROC"

        def of(rankings: list[Ranking]) -> Values:
            parts = [one.area_influence() if area else one.precision_influence() for one in rankings]
            return np.asarray(np.mean(parts, axis=0))

        found = np.zeros(self._scores.rows)
        mine, *theirs = map(of, self._rankings)
        found[self._kept] = (mine - sum(theirs)) * (self._scores.rows / self._kept.sum())
        return found

    def resampled(self, resamples: int) -> Iterator[Values]:
        """The metric of each model on each resample: (some resamples, models)."""
        whole = self._scores.units is None and bool(self._kept.all())
        if self._scores.metric.base == "AUROC" and whole:
            areas = [
                resampled_auc(np.stack([one.scores for one in its]), its[0].truth, resamples, self._scores.seed)
                for its in zip(*self._rankings, strict=True)
            ]
            yield np.mean(areas, axis=0)
            return
        for drawn in self._scores.drawn(resamples):
            yield np.array(
                [
                    [
                        np.mean([_ranked(self._scores.metric, one, row[self._kept]) for one in its])
                        for its in self._rankings
                    ]
                    for row in drawn
                ]
            )


def _rankings(metric: ResampledMetric, target: Numbers, prediction: Numbers) -> list[Ranking]:
    """One ranking for a binary metric; for several classes one for each, against the rest."""
    if metric.task == "multiclass" and metric.average != "macro":
        raise cannot_be_resampled(metric.name, f"{metric.base} with average: {metric.average} is not supported")
    kept = counted(metric, target)
    found, true = probabilities(metric, prediction[kept]).astype(np.float64), target[kept]
    if metric.task == "binary":
        return [Ranking(found, true == 1)]
    return [Ranking(found[:, one], true == one) for one in range(found.shape[1])]


def _ranked(metric: ResampledMetric, ranking: Ranking, weights: Values | None = None) -> float:
    return ranking.area(weights) if metric.base == "AUROC" else ranking.precision(weights)


def _gradient(statistic: SumStatistic, sums: Values) -> Values:
    """How much the metric moves with each sum, by central differences."""
    steps = np.diag(_STEP * np.maximum(np.abs(sums), 1.0))
    moved = statistic.value(sums + steps) - statistic.value(sums - steps)
    return np.asarray(moved / (2 * np.diagonal(steps)))


def _kinds(entries: Sequence[csr_matrix]) -> tuple[NDArray[np.int64], csr_matrix]:
    """How many rows add the same to each model's sums, and what one of each kind adds: (kinds, models · width)."""
    draw = np.random.default_rng(0)
    # Rows that add the same have the same number; others differ with certainty, but for rounding.
    numbers = sum(factor * (one @ draw.random(one.shape[1])) for factor, one in zip((1, 1j), entries, strict=False))
    _, first, counts = np.unique(np.round(numbers, 9), return_index=True, return_counts=True)
    return counts, csr_matrix(np.hstack([one[first].toarray() for one in entries]))
