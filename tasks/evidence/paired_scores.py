"""Models by a metric that is not a mean over rows, from the truth and the prediction of each row.

The p-value is that of a t test on the influence of each row on the metric (the infinitesimal jackknife, Efron 1982),
and the interval is what such tests do not rule out. A bootstrap says nothing of probabilities of 10⁻⁶, which a test set
that has decided often asks for, and its intervals covered too rarely on some hundred rows.

A metric is a function of sums over rows, so that the influence of a row follows from what it adds to the sums; or, as
the AUROC and the average precision, of the order of the scores. The sums of K classes are an array (…, 3 K): for each
class how many rows of it were predicted right, how many rows were predicted to be of it, and how many are of it. Each
metric agrees with the torchmetrics class of its name (torchmetrics 1.9), whose formulas and conventions it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from data_contracts.expressions import NO_VALUE, why_undefined
from data_contracts.records import Interval
from tasks.evidence import significance
from tasks.evidence.resampled_metrics import ResampledMetric, cannot_be_resampled
from tasks.evidence.significance import rows_needed

Values = NDArray[np.float64]
Units = NDArray[np.int64]
_STEP = 1e-6
# What a metric's values lie between, if that is not 0 and 1.
_RANGES = {"MatthewsCorrCoef": (-1.0, 1.0), "CohenKappa": (-1.0, 1.0), "PearsonCorrCoef": (-1.0, 1.0),
           "R2Score": (-math.inf, 1.0), "MeanSquaredError": (0.0, math.inf)}  # fmt: skip


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
        return _RankedModels(self) if self.metric.base in RANKED else _SummedModels(self)

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
        return significance.influence_p_value(self._influence, self.gain, bound)

    def interval(self, confidence: float) -> Interval:
        """The interval of the gain, from each unit's influence on it; it ends where the metric does."""
        found = significance.influence_interval(self._influence, self.gain, confidence)
        low, high = _RANGES.get(self.metric.base, (0.0, 1.0))
        ends = (low - high, high - low) if self.champion is not None else sorted((self._sign * low, self._sign * high))
        found = replace(found, low=max(found.low, ends[0]), high=min(found.high, ends[1]))
        if self.metric.base != "CalibrationError":
            return found
        note = "a calibration error comes out too large on few rows, so the interval may miss it"
        return replace(found, method=f"{found.method}; {note}")

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


Numbers = NDArray[Any]


def counted(metric: ResampledMetric, target: Numbers) -> NDArray[np.bool_]:
    """(rows,) whether the row counts: rows with `ignore_index` for a truth do not."""
    ignored = metric.options.get("ignore_index")
    return np.ones(len(target), np.bool_) if ignored is None else np.asarray(target != ignored)


def probabilities(metric: ResampledMetric, prediction: Numbers) -> Numbers:
    """The predictions (rows,) or (rows, classes), which are probabilities.

    UsageError if their shape or type does not fit the metric's task.
    """
    several = metric.task == "multiclass"
    if prediction.ndim != (2 if several else 1) or prediction.dtype.kind != "f":
        wanted = "one score for each class" if several else "one score"
        raise cannot_be_resampled(metric.name, f"a row's prediction is not {wanted}")
    _check_classes(metric, prediction)
    return prediction


def classes(metric: ResampledMetric, prediction: Numbers) -> NDArray[np.int64]:
    """The predicted class of each row. UsageError if the predictions are neither scores nor classes."""
    if metric.task == "multiclass":
        _check_classes(metric, prediction)
        found = prediction.argmax(axis=1) if prediction.ndim == 2 else prediction
        return found.astype(np.int64)
    if prediction.ndim != 1:
        raise cannot_be_resampled(metric.name, "a row's prediction is not one score or class")
    if prediction.dtype.kind != "f":
        return prediction.astype(np.int64)
    # torch compares in the precision of the prediction.
    threshold = prediction.dtype.type(metric.options["threshold"])
    return (probabilities(metric, prediction) > threshold).astype(np.int64)


def _check_classes(metric: ResampledMetric, prediction: Numbers) -> None:
    if prediction.ndim == 2 and prediction.shape[1] != metric.options["num_classes"]:
        raise cannot_be_resampled(
            metric.name, f"a row's prediction has {prediction.shape[1]} scores and num_classes is "
            f"{metric.options['num_classes']}"
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Ranking:
    """Rows by their scores.

    Attributes:
        scores: (rows,), higher for rows that are more likely true; truth: (rows,).
    """

    scores: Values
    truth: NDArray[np.bool_]

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(-self.scores, kind="stable")

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where each group of equal scores ends, in that order."""
        ordered = self.scores[self._order]
        return np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        """(rows,) of each row in that order the number of its group."""
        return np.repeat(np.arange(len(self._ends)), np.diff(self._ends, prepend=-1))

    def _above(self) -> tuple[Values, Values]:
        """(groups,) the number of true and of false rows with at least the score of each group."""
        truth = self.truth[self._order]
        return np.cumsum(truth, dtype=np.float64)[self._ends], np.cumsum(~truth, dtype=np.float64)[self._ends]

    def area(self) -> float:
        """The area under the ROC curve; NaN if one class has no rows."""
        true, false = self._above()
        if not true[-1] or not false[-1]:
            return float("nan")
        steps = np.diff(false, prepend=0.0)
        middle = true - np.diff(true, prepend=0.0) / 2
        return float(np.sum(steps * middle) / (true[-1] * false[-1]))

    def area_influence(self) -> Values:
        """(rows,) how much each row moves the area, times the number of rows (DeLong et al. 1988); their mean is 0."""
        true, false = self._above()
        all_true, all_false, area = true[-1], false[-1], self.area()
        beaten = (all_false - false + np.diff(false, prepend=0.0) / 2) / all_false  # by a true row of the group
        beating = (true - np.diff(true, prepend=0.0) / 2) / all_true  # true rows above a false row of the group
        rows = len(self.truth)
        in_order = np.where(
            self.truth[self._order],
            (beaten[self._groups] - area) * rows / all_true,
            (beating[self._groups] - area) * rows / all_false,
        )
        return self._in_rows(in_order)

    def precision(self) -> float:
        """The average precision; NaN if no row is true."""
        true, false = self._above()
        if not true[-1]:
            return float("nan")
        return float(np.sum(np.diff(true, prepend=0.0) * true / (true + false)) / true[-1])

    def precision_influence(self) -> Values:
        """(rows,) how much each row moves the average precision, times the number of rows; their mean is 0."""
        true, false = self._above()
        of_all, value, rows = true + false, self.precision(), len(self.truth)
        steps = np.diff(true, prepend=0.0)
        # A row moves the precision at its own score and at each lower one.
        if_true = np.cumsum((steps * false / of_all**2)[::-1])[::-1]
        if_false = np.cumsum((steps * true / of_all**2)[::-1])[::-1]
        truth, groups = self.truth[self._order], self._groups
        own = (true / of_all)[groups] - value
        in_order = np.where(truth, own + if_true[groups], -if_false[groups]) * rows / true[-1]
        return self._in_rows(in_order)

    def _in_rows(self, in_order: Values) -> Values:
        found = np.empty(len(in_order))
        found[self._order] = in_order
        return found


RANKED = ("AUROC", "AveragePrecision")
_ZERO = 1e-4  # torchmetrics takes smaller sums of squares for 0 in R²


@dataclass(frozen=True)
class SumStatistic:
    """A metric that is a function of sums over rows.

    Attributes:
        entries: of `target` (rows,) and `prediction`: what each row adds to the sums, (rows, sums).
        value: the metric (…) from sums (…, sums).
    """

    entries: Callable[[Numbers, Numbers], csr_matrix]
    value: Callable[[Values], Values]


def sum_statistic(metric: ResampledMetric, target: Numbers) -> SumStatistic:
    """The statistic of a metric that is not ranked.

    Args:
        target: (rows,) of all rows; regression is centred on its mean, for the sake of rounding.
    """
    if metric.task == "regression":
        if target.ndim != 1:
            raise cannot_be_resampled(metric.name, "a row's truth is not one number")
        return _REGRESSION[metric.base](float(np.mean(target, dtype=np.float64)) if len(target) else 0.0)
    if metric.base == "CalibrationError":
        return _calibration(metric)
    count = num_classes(metric)

    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        predicted, kept = classes(metric, prediction), counted(metric, target)
        true = np.where(kept, target, 0).astype(np.int64)
        outside = (true < 0) | (true >= count) | (predicted < 0) | (predicted >= count)
        if (outside & kept).any():
            raise cannot_be_resampled(metric.name, f"a truth or a prediction is not a class from 0 to {count - 1}")
        right = (predicted == true) & kept
        rows = np.arange(len(true))
        places = np.concatenate([true[right], count + predicted[kept], 2 * count + true[kept]])
        at = np.concatenate([rows[right], rows[kept], rows[kept]])
        return csr_matrix((np.ones(len(at)), (at, places)), shape=(len(true), 3 * count))

    def value(sums: Values) -> Values:
        right, predicted, true = sums[..., :count], sums[..., count : 2 * count], sums[..., 2 * count :]
        return np.asarray(_FORMULAS[metric.base](metric, right, predicted, true))

    return SumStatistic(entries, value)


def _dense(*columns: Any) -> csr_matrix:
    values = np.stack([np.asarray(one, np.float64) for one in columns], axis=1)
    rows, width = values.shape
    return csr_matrix((values.ravel(), np.tile(np.arange(width), rows), np.arange(0, rows * width + 1, width)),
                      shape=(rows, width))  # fmt: skip


def _doubles(target: Numbers, prediction: Numbers) -> tuple[Values, Values]:
    if prediction.ndim != 1:
        raise ValueError("a row's prediction is not one number")
    return target.astype(np.float64), prediction.astype(np.float64)


def _root_mean_squared_error(centre: float) -> SumStatistic:
    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        true, predicted = _doubles(target, prediction)
        return _dense((predicted - true) ** 2, np.ones(len(true)))

    return SumStatistic(entries, lambda sums: np.sqrt(sums[..., 0] / sums[..., 1]))


def _r2(centre: float) -> SumStatistic:
    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        true, predicted = _doubles(target, prediction)
        return _dense((predicted - true) ** 2, true - centre, (true - centre) ** 2, np.ones(len(true)))

    def value(sums: Values) -> Values:
        rest, first, second, rows = (sums[..., at] for at in range(4))
        total = second - first**2 / rows
        moves = np.abs(total) > _ZERO
        found = np.where(moves, 1 - rest / np.where(moves, total, 1.0), 0.0)
        return np.where(np.abs(rest) > _ZERO, found, 1.0)

    return SumStatistic(entries, value)


def _pearson(centre: float) -> SumStatistic:
    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        true, predicted = _doubles(target, prediction)
        true, predicted = true - centre, predicted - predicted.mean()
        return _dense(true, predicted, true**2, predicted**2, true * predicted, np.ones(len(true)))

    def value(sums: Values) -> Values:
        x, y, xx, yy, xy, rows = (sums[..., at] for at in range(6))
        spread = (xx - x**2 / rows) * (yy - y**2 / rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(spread > 0, np.clip((xy - x * y / rows) / np.sqrt(spread), -1, 1), np.nan)

    return SumStatistic(entries, value)


_REGRESSION = {"MeanSquaredError": _root_mean_squared_error, "R2Score": _r2, "PearsonCorrCoef": _pearson}


def _edges(count: int, kind: np.dtype) -> Numbers:
    """Numbers from 0 to 1, rounded as `torch.linspace` rounds them: from both ends, with a step of their precision."""
    last = count - 1
    step, places = float(kind.type(1) / kind.type(last)), np.arange(count)
    return np.where(places < count // 2, places * step, 1 - (last - places) * step).astype(kind)


def _calibration(metric: ResampledMetric) -> SumStatistic:
    """Sums by bin of the confidence: of (right - confidence), and of the rows."""
    # One bin more: a confidence of exactly 1 has its own.
    bins, norm = int(metric.options["n_bins"]) + 1, metric.options["norm"]

    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        kept = counted(metric, target)
        found, true = probabilities(metric, prediction[kept]), target[kept]
        if metric.task == "binary":
            confidence, right = found, true
        else:
            confidence, right = found.max(axis=1), found.argmax(axis=1) == true
        places = np.searchsorted(_edges(bins, confidence.dtype), confidence, side="right") - 1
        rows = np.arange(len(target))[kept]
        off = right.astype(np.float64) - confidence
        values, at = np.concatenate([off, np.ones(len(off))]), np.concatenate([rows, rows])
        return csr_matrix((values, (at, np.concatenate([places, bins + places]))), shape=(len(target), 2 * bins))

    def value(sums: Values) -> Values:
        off, rows = np.abs(sums[..., :bins]), sums[..., bins:]
        apart = np.where(rows > 0.5, off / np.maximum(rows, 1), 0.0)
        if norm == "max":
            return np.asarray(apart.max(-1))
        squared = norm == "l2"
        found = (rows * apart ** (2 if squared else 1)).sum(-1) / rows.sum(-1)
        return np.asarray(np.sqrt(found) if squared else found)

    return SumStatistic(entries, value)


_EPSILON = float(np.finfo(np.float32).eps)


def num_classes(metric: ResampledMetric) -> int:
    """How many classes are counted."""
    return 2 if metric.task == "binary" else int(metric.options["num_classes"])


def _divided(top: Any, bottom: Any, zero_division: float = 0.0) -> NDArray[np.float64]:
    bottom = np.asarray(bottom, np.float64)
    return np.where(bottom != 0, top / np.where(bottom != 0, bottom, 1.0), zero_division)


def _f_beta(metric: ResampledMetric, right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    squared = float(metric.options["beta"]) ** 2
    zero = float(metric.options["zero_division"])

    def score(right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
        return _divided((1 + squared) * right, squared * true + predicted, zero)

    return _averaged(metric, score, right, predicted, true)


def _precision(metric: ResampledMetric, right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    return _averaged(metric, lambda right, predicted, _: _divided(right, predicted), right, predicted, true)


def _recall(metric: ResampledMetric, right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    return _averaged(metric, lambda right, _, true: _divided(right, true), right, predicted, true)


def _accuracy(metric: ResampledMetric, right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    if metric.task == "binary":
        return _divided(right.sum(-1), true.sum(-1))
    return _recall(metric, right, predicted, true)


def _specificity(metric: ResampledMetric, right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    rows = true.sum(-1, keepdims=True)

    def score(right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
        all_rows = rows if metric.average in ("macro", "weighted") else rows[..., 0]
        if metric.average == "micro":  # torchmetrics counts each row once for each class
            all_rows = all_rows * num_classes(metric)
        return _divided(all_rows - true - predicted + right, all_rows - true)

    return _averaged(metric, score, right, predicted, true)


def _jaccard(metric: ResampledMetric, right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    zero = float(metric.options["zero_division"])
    either, ignored = predicted + true - right, metric.options["ignore_index"]
    if metric.average == "binary":
        return _divided(right[..., 1], either[..., 1], zero)
    left_out = ignored is not None and 0 <= ignored < num_classes(metric)
    if metric.average == "micro":
        bottom = either.sum(-1) - (either[..., ignored] if left_out else 0.0)
        return _divided(right.sum(-1), bottom, zero)
    if metric.average == "weighted":
        weights = true
    else:
        weights = (predicted + true != 0).astype(np.float64)
        if left_out:
            weights[..., ignored] = 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((weights * _divided(right, either, zero)).sum(-1) / weights.sum(-1))


def _averaged(
    metric: ResampledMetric, score: Callable[[Values, Values, Values], NDArray[np.float64]], *sums: Values
) -> NDArray[np.float64]:
    right, predicted, true = sums
    if metric.average == "binary":
        return score(right[..., 1], predicted[..., 1], true[..., 1])
    if metric.average == "micro":
        return score(right.sum(-1), predicted.sum(-1), true.sum(-1))
    weights = true if metric.average == "weighted" else (predicted + true - right != 0).astype(np.float64)
    return np.asarray(_divided(weights * score(right, predicted, true), weights.sum(-1, keepdims=True)).sum(-1))


def _kappa(metric: ResampledMetric, right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    rows = true.sum(-1)
    chance = (predicted * true).sum(-1) / rows
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1 - (rows - right.sum(-1)) / (rows - chance))


def _matthews(metric: ResampledMetric, right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    rows, hits = true.sum(-1), right.sum(-1)
    top = hits * rows - (predicted * true).sum(-1)
    bottom = (rows**2 - (predicted**2).sum(-1)) * (rows**2 - (true**2).sum(-1))
    found = _divided(top, np.sqrt(np.maximum(bottom, 0.0)))
    if num_classes(metric) > 2:
        return found
    misses = rows - hits
    found = np.where(bottom == 0, _matthews_of_one_class(right, predicted, true), found)
    found = np.where((hits != 0) & (misses == 0), 1.0, found)
    return np.where((hits == 0) & (misses != 0), -1.0, found)


def _matthews_of_one_class(right: Values, predicted: Values, true: Values) -> NDArray[np.float64]:
    """The number of torchmetrics where truth or prediction has only one of two classes."""
    tn, tp = right[..., 0], right[..., 1]
    fp, fn = predicted[..., 1] - tp, true[..., 1] - tp
    root = np.sqrt(_EPSILON)
    cases = [
        ((fn == 0) & (tn == 0), root * (tp - fp)),
        ((fp == 0) & (tn == 0), root * (tp - fn)),
        ((tp == 0) & (fn == 0), root * (tn - fp)),
        ((tp == 0) & (fp == 0), root * (tn - fn)),
        (tp == 0, tn - fp * fn),
        (tn == 0, tp - fp * fn),
        ((fp == 0) | (fn == 0), tp * tn),
    ]
    top = np.select([case for case, _ in cases], [value for _, value in cases], 0.0)
    bottom = (tp + fp + _EPSILON) * (tp + fn + _EPSILON) * (tn + fp + _EPSILON) * (tn + fn + _EPSILON)
    return np.asarray(top / np.sqrt(bottom))


_FORMULAS: dict[str, Callable[[ResampledMetric, Values, Values, Values], NDArray[np.float64]]] = {
    "Accuracy": _accuracy, "Precision": _precision, "Recall": _recall, "Specificity": _specificity,
    "F1Score": _f_beta, "FBetaScore": _f_beta, "JaccardIndex": _jaccard, "MatthewsCorrCoef": _matthews,
    "CohenKappa": _kappa,
}  # fmt: skip
