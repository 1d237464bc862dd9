"""The gate: a pure function of evaluations. It has no effect of its own; `promote` calls it.

A value that is a ratio of counts (k of n rows) is compared exactly, with a bound as the decimal in the spec. Any other
value was computed in single precision somewhere: its comparison allows for one unit in the last place, 1.2e-7 of the
larger value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.handoffs import Evaluation, GateResult, MetricValue
from data_contracts.pipeline_spec import GateSpec

TOLERANCE = Fraction(1, 2**23)
_EXACT_INTEGERS = 2**53
_DIGITS = range(4, 19)


def judge(gates: Sequence[GateSpec], candidate: Evaluation, champion: Evaluation | None) -> list[GateResult]:
    """Each gate's result, in order; a gate against the champion is met where there is no champion yet.

    Raises:
        InsufficientEvidence: a metric was scored on no rows, or on other rows than the champion's, or is not finite.
        UsageError: a gate names a metric that the evaluation does not have.
    """
    return [_judge(gate, candidate, champion) for gate in gates]


@dataclass(frozen=True)
class _Value:
    """A metric's value and its possible error: 0 for a ratio of counts."""

    value: Fraction
    slack: Fraction

    @classmethod
    def of(cls, metric: MetricValue) -> _Value:
        count = _count(metric.value, metric.rows)
        if count is not None:
            return cls(Fraction(count, metric.rows), Fraction(0))
        value = Fraction(repr(metric.value))
        return cls(value, abs(value) * TOLERANCE)


def _judge(gate: GateSpec, candidate: Evaluation, champion: Evaluation | None) -> GateResult:
    metric = candidate.metrics.get(gate.name)
    if metric is None:
        raise UsageError(
            f"promote.gates: the evaluation has no metric {gate.name}; it has {', '.join(candidate.metrics)}.",
            remedy="Name one of these.",
        )
    name = gate.name
    _check(name, metric, "")
    mine = _Value.of(metric)
    if gate.min is not None or gate.max is not None:
        return _against_bound(gate, metric, mine)
    assert gate.min_gain is not None
    if champion is None:
        sentence = f"{name} is {_figures([mine.value])[0]}; there is no champion yet"
        return GateResult(metric=name, met=True, value=metric.value, bound=gate.min_gain, sentence=sentence)
    before = champion.metrics.get(name)
    _check_same_rows(name, candidate, champion)
    assert before is not None
    theirs, wanted = _Value.of(before), Fraction(repr(gate.min_gain))
    gain = mine.value - theirs.value if metric.mode == "max" else theirs.value - mine.value
    # The tolerance does not turn no gain, or a loss, into a gain.
    met = gain >= wanted - max(mine.slack, theirs.slack) and (gain > 0 or wanted <= 0)
    value, other, by = _figures([mine.value, theirs.value, abs(gain)], [(mine.value, theirs.value), (gain, wanted)])
    sentence = (
        f"{name} is {value} against the champion's {other} on the same {metric.rows:,} rows: "
        f"it {'gains' if gain >= 0 else 'loses'} {by}{'' if met else _asked(gate.min_gain)}"
    )
    return GateResult(
        metric=name, met=met, value=metric.value, bound=gate.min_gain, champion_value=before.value, sentence=sentence
    )


def _against_bound(gate: GateSpec, metric: MetricValue, mine: _Value) -> GateResult:
    bound = gate.min if gate.min is not None else gate.max
    assert bound is not None
    limit = Fraction(repr(bound))
    short = limit - mine.value if gate.min is not None else mine.value - limit
    met = short <= mine.slack or metric.value == bound  # the bound may be a score copied from a report
    value, by = _figures([mine.value, abs(short)], [(mine.value, limit)] if short else [])
    side = ("at least" if gate.min is not None else "at most") if met else by
    if not met:
        side += " below" if gate.min is not None else " above"
    sentence = f"{gate.name} is {value}, {side} the {_bound(bound)} asked for"
    return GateResult(metric=gate.name, met=met, value=metric.value, bound=bound, sentence=sentence)


def _check(name: str, metric: MetricValue, whose: str) -> None:
    if metric.rows <= 0:
        raise InsufficientEvidence(
            f"{name} was scored on no rows{whose}, so the gate cannot decide",
            remedy="Check that the dataset has test rows, and run again.",
        )
    if not math.isfinite(metric.value):
        raise InsufficientEvidence(f"{name} is {metric.value}{whose}, so the gate cannot decide")


def _check_same_rows(name: str, candidate: Evaluation, champion: Evaluation) -> None:
    mine, theirs = candidate.metrics[name], champion.metrics.get(name)
    if theirs is None or theirs.mode != mine.mode:
        raise InsufficientEvidence(f"the champion has no score for {name} that can be compared with the candidate's")
    _check(name, theirs, " for the champion")
    if mine.rows != theirs.rows:
        raise InsufficientEvidence(
            f"{name} was scored on {mine.rows:,} rows and the champion's on {theirs.rows:,}, so the gate cannot decide"
        )
    if candidate.dataset_ids != champion.dataset_ids:
        raise InsufficientEvidence(
            f"{name} was scored on another dataset than the champion's, so the gate cannot decide"
        )


def _count(value: float, rows: int) -> int | None:
    """`k`, if `value` equals `k / rows` to the last bit."""
    if abs(value) * rows >= _EXACT_INTEGERS:
        return None
    count = round(Fraction(value) * rows)
    return count if value == count / rows else None


def _figures(values: Sequence[Fraction], apart: Sequence[tuple[Fraction, Fraction]] = ()) -> list[str]:
    """Numbers as decimals, with four digits, or with enough to show each unequal pair of `apart` as different."""
    for digits in _DIGITS:
        if all(one == other or _decimal(one, digits) != _decimal(other, digits) for one, other in apart):
            break
    return [_decimal(value, digits) for value in values]


def _decimal(value: Fraction, digits: int) -> str:
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.{digits}f}"


def _bound(bound: float) -> str:
    short = f"{bound:g}"
    return short if float(short) == bound else repr(bound)


def _asked(min_gain: float) -> str:
    if min_gain > 0:
        return f", +{_bound(min_gain)} was asked for"
    return f", and may lose {_bound(-min_gain)} at most" if min_gain < 0 else ", and may lose nothing"
