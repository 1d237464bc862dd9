"""Models by a metric that is not a mean over rows, from the truth and the prediction of each row.

The p-value is that of a t test on the influence of each row on the metric (the infinitesimal jackknife, Efron 1982),
and the interval is what such tests do not rule out. A bootstrap says nothing of probabilities of 10⁻⁶, which a test set
that has decided often asks for, and its intervals covered too rarely on some hundred rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_contracts.expressions import NO_VALUE, why_undefined
from data_contracts.records import Interval
from tasks.evidence import student
from tasks.evidence.class_counts import num_classes
from tasks.evidence.paired_counts import rows_needed
from tasks.evidence.predictions import Numbers, counted, probabilities
from tasks.evidence.ranked import Ranking
from tasks.evidence.resampled_metrics import ResampledMetric, cannot_be_resampled
from tasks.evidence.statistics import RANKED, SumStatistic, sum_statistic

Values = NDArray[np.float64]
Units = NDArray[np.int64]
_STEP = 1e-6
# What a metric's values lie between, if that is not 0 and 1.
_RANGES = {"MatthewsCorrCoef": (-1.0, 1.0), "CohenKappa": (-1.0, 1.0), "PearsonCorrCoef": (-1.0, 1.0),
           "R2Score": (-math.inf, 1.0), "MeanSquaredError": (0.0, math.inf)}  # fmt: skip
_TOO_LARGE = "; a calibration error comes out too large on few rows, so the interval may miss it"


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
    """

    metric: ResampledMetric
    mode: Literal["max", "min"]
    target: Numbers
    candidate: Numbers
    champion: Numbers | None
    units: Units | None = None

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
        return student.influence_p_value(self._influence, self.gain, bound)

    def interval(self, confidence: float) -> Interval:
        """The interval of the gain, from each unit's influence on it; it ends where the metric does."""
        found = student.influence_interval(self._influence, self.gain, confidence)
        low, high = _RANGES.get(self.metric.base, (0.0, 1.0))
        ends = (low - high, high - low) if self.champion is not None else sorted((self._sign * low, self._sign * high))
        found = replace(found, low=max(found.low, ends[0]), high=min(found.high, ends[1]))
        return replace(found, method=f"{found.method}{_TOO_LARGE}") if self.metric.base == "CalibrationError" else found

    def rows_needed(self, bound: float, level: float, power: float = 0.8) -> int | None:
        """How many rows would decide with this gain and spread; None if it is not above `bound`."""
        units = rows_needed(self.gain - bound, float(self._influence.std()), level, power)
        return None if units is None else math.ceil(units * self.rows / self.num_units)

    @property
    def predictions(self) -> list[Numbers]:
        """The candidate's, then the champion's if there is one."""
        return [self.candidate] if self.champion is None else [self.candidate, self.champion]


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


def _rankings(metric: ResampledMetric, target: Numbers, prediction: Numbers) -> list[Ranking]:
    """One ranking for a binary metric; for several classes one for each, against the rest."""
    if metric.task == "multiclass" and metric.average != "macro":
        raise cannot_be_resampled(metric.name, f"{metric.base} with average: {metric.average} is not supported")
    kept = counted(metric, target)
    found, true = probabilities(metric, prediction[kept]).astype(np.float64), target[kept]
    if metric.task == "binary":
        return [Ranking(found, true == 1)]
    return [Ranking(found[:, one], true == one) for one in range(found.shape[1])]


def _ranked(metric: ResampledMetric, ranking: Ranking) -> float:
    return ranking.area() if metric.base == "AUROC" else ranking.precision()


def _gradient(statistic: SumStatistic, sums: Values) -> Values:
    """How much the metric moves with each sum, by central differences."""
    steps = np.diag(_STEP * np.maximum(np.abs(sums), 1.0))
    moved = statistic.value(sums + steps) - statistic.value(sums - steps)
    return np.asarray(moved / (2 * np.diagonal(steps)))
