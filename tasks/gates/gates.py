"""The gate: a pure function of evaluations. It has no effect of its own; `promote` calls it.

A value that is a ratio of counts (k of n rows) is compared exactly, with a bound as the decimal in the spec. Any other
value was computed in single precision somewhere: its comparison allows for one unit in the last place, 1.2e-7 of the
larger value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Protocol

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.expressions import value_of
from data_contracts.handoffs import Evaluation, MetricValue
from data_contracts.pipeline_spec import GateSpec
from data_contracts.pipeline_spec.promote import MEASURES
from data_contracts.records import GateResult
from tasks.run.run import Run

TOLERANCE = Fraction(1, 2**23)
_EXACT_INTEGERS = 2**53
_DIGITS = range(4, 19)
# Whole numbers from here on, such as bytes, are shown without decimals.
_LARGE = 100


class SliceScores(Protocol):
    """Where the value of a metric on a slice of the rows comes from."""

    def on_slice(self, evaluation: Evaluation, metric: str, slice_name: str) -> MetricValue:
        """The metric over the slice's rows."""

    def slices(self) -> Sequence[str]:
        """The names of all slices."""

    def measures(self, evaluation: Evaluation) -> Mapping[str, float]:
        """What was measured of the model itself, by name."""


def judge(
    gates: Sequence[GateSpec],
    candidate: Evaluation,
    champion: Evaluation | None,
    scores: SliceScores | None = None,
) -> list[GateResult]:
    """Each gate's result, in order; a gate against the champion is met where there is no champion yet.

    Args:
        scores: on slices; needed by gates with `slice`, `max_gap` or a measure.

    Raises:
        InsufficientEvidence: a metric was scored on no rows, or on other rows than the champion's, or is not finite.
        UsageError: a gate names a metric that the evaluation does not have.
    """
    return [_judge(gate, candidate, champion, scores) for gate in gates]


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


def _judge(
    gate: GateSpec, candidate: Evaluation, champion: Evaluation | None, scores: SliceScores | None
) -> GateResult:
    if gate.max_gap is not None:
        return _gap(gate, candidate, scores)
    name = subject(gate)
    if gate.name in candidate.sealed:  # it has confidence, and is judged elsewhere where there is a champion
        sentence = f"{name}: there is no champion yet"
        return GateResult(
            metric=gate.name, slice=gate.slice or "", met=True, value=0.0, bound=bound_of(gate), sealed=True,
            sentence=sentence,
        )  # fmt: skip
    metric = _scored(gate, candidate, scores)
    _check(name, metric, "")
    mine = _Value.of(metric)
    if not gate.compares:
        return _against_bound(gate, metric, mine)
    asked = bound_of(gate)
    found = {"metric": gate.name, "slice": gate.slice or "", "value": metric.value, "bound": asked}
    if champion is None:
        sentence = f"{name} is {_figures([mine.value])[0]}; there is no champion yet"
        return GateResult(**found, met=True, sentence=sentence)
    before = _scored(gate, champion, scores, metric)
    _check_same_rows(name, (metric, candidate), (before, champion))
    theirs, wanted = _Value.of(before), Fraction(repr(asked))
    gain = mine.value - theirs.value if metric.mode == "max" else theirs.value - mine.value
    # The tolerance never turns a missing gain, or a loss, into a gain.
    met = gain >= wanted - max(mine.slack, theirs.slack) and (gain > 0 or wanted <= 0)
    value, other, by = _figures([mine.value, theirs.value, abs(gain)], [(mine.value, theirs.value), (gain, wanted)])
    sentence = (
        f"{name} is {value} against the champion's {other} on the same {metric.rows:,} rows: "
        f"it {'gains' if gain >= 0 else 'loses'} {by}{'' if met else _asked(asked)}"
    )
    return GateResult(**found, met=met, champion_value=before.value, sentence=sentence)


def subject(gate: GateSpec) -> str:
    """What a gate is about, in words."""
    return gate.name if gate.slice is None else f"{gate.name} on the slice {gate.slice}"


def undefined(what: str, reason: str, whose: str = "") -> InsufficientEvidence:
    """The error for a gate on a metric that is NaN."""
    return InsufficientEvidence(
        f"{what} is nan{whose}: {reason}, so the gate cannot decide",
        remedy="Give the set or the slice rows of each class, or use another metric.",
    )


def names_measure(gate: GateSpec) -> bool:
    """Whether a gate is about something that is measured of the model itself."""
    return any(name in gate.name for name in MEASURES)


def bound_of(gate: GateSpec) -> float:
    """The value, gap or gain over the champion that a gate asks for."""
    return gate.threshold if gate.margin is None else -gate.threshold


def not_asked(gate: GateSpec, why: str) -> GateResult:
    """The result of a gate whose comparison is not made, and which is not met."""
    return GateResult(
        metric=gate.name,
        slice=gate.slice or "",
        met=False,
        value=0.0,
        bound=bound_of(gate),
        skipped=True,
        sentence=f"{subject(gate)} is not compared: {why}",
    )


def ledger_sentences(gates: Sequence[GateResult]) -> list[str]:
    """What the gates' rows had decided and could still decide after the gates were judged; each sentence once."""
    said = (f"{rows_named(one.metric.rpartition('/')[0], one.slice)}{one.ledger}" for one in gates if one.ledger)
    return list(dict.fromkeys(f"{one[0].upper()}{one[1:]}." for one in said))


def rows_named(set_name: str, slice_name: str | None) -> str:
    """How a sentence about some rows begins; "" for all rows of the spec's own split."""
    place = f"set {set_name}" if set_name else ""
    part = f"slice {slice_name}" if slice_name else ""
    return f"{', '.join(one for one in (place, part) if one)}: " if place or part else ""


def is_undecided(gate: GateResult) -> bool:
    """Whether a gate is not met for want of evidence."""
    return not gate.met and (
        gate.skipped or gate.sealed or (gate.evidence is not None and gate.evidence.verdict == "insufficient")
    )


def refusing(run: Run, gates: Sequence[GateResult]) -> list[GateResult]:
    """The gates that keep the candidate from being promoted."""
    missed = [gate for gate in gates if not gate.met]
    # A sealed set does not reveal whether it shows a candidate to be worse, so the candidate is not promoted without
    # that evidence. If a gate was not evaluated because its rows are used up, nothing is known of the candidate, so it
    # is not promoted either.
    undecided = missed and all(is_undecided(gate) and not gate.sealed and not gate.skipped for gate in missed)
    if undecided and run.spec.promote.when_insufficient == "promote":
        return []
    return [gate for gate in missed if not gate.skipped] or missed


def more_rows(run: Run, missed: Sequence[GateResult]) -> str:
    """What to do if the rows do not suffice for these gates."""
    advice = "Give the set more test rows, or fresh ones, or train a better candidate"
    if run.spec.promote.when_insufficient == "promote" or any(gate.sealed or gate.skipped for gate in missed):
        return f"{advice}."
    return f"{advice}; promote.when_insufficient: promote accepts a candidate that is not shown to be worse."


def lacking(gates: Sequence[GateResult]) -> str:
    """What a promotion still lacks, as the end of a sentence; "" if all gates are met."""
    missed = [gate for gate in gates if not gate.met]
    return f", promoted although the evidence is insufficient ({missed[0].sentence})" if missed else ""


def _scored(
    gate: GateSpec, evaluation: Evaluation, scores: SliceScores | None, candidate: MetricValue | None = None
) -> MetricValue:
    """The value that a gate looks at.

    Args:
        candidate: the candidate's, if the evaluation is the champion's.
    """
    if gate.expression is not None:
        values = {name: one.value for name, one in evaluation.metrics.items()}
        rows = min((one.rows for one in evaluation.metrics.values()), default=0)
        if names_measure(gate):
            assert scores is not None
            values |= scores.measures(evaluation)
        value = value_of(gate.expression, values | dict.fromkeys(evaluation.undefined, math.nan))
        for name, reason in evaluation.undefined.items() if math.isnan(value) else ():
            if name in gate.expression:
                raise undefined(name, reason)
        return MetricValue(value=value, mode="max", rows=rows, unit="dataset")
    if gate.name in MEASURES:
        assert scores is not None
        measured = scores.measures(evaluation)
        if gate.name not in measured:
            raise InsufficientEvidence(f"{gate.name} was not measured, so the gate cannot decide")
        return MetricValue(value=measured[gate.name], mode="min", rows=1, unit="dataset")
    metric = evaluation.metrics.get(gate.name)
    if gate.name in evaluation.undefined:
        raise undefined(gate.name, evaluation.undefined[gate.name], "" if candidate is None else " for the champion")
    if metric is None and candidate is not None:
        raise InsufficientEvidence(
            f"the champion has no score for {gate.name} that can be compared with the candidate's"
        )
    if metric is None:
        raise UsageError(
            f"promote.gates: the evaluation has no metric {gate.name}; it has {', '.join(evaluation.metrics)}.",
            remedy="Name one of these.",
        )
    if gate.slice is None:
        return metric
    assert scores is not None
    return scores.on_slice(evaluation, gate.name, gate.slice)


def _gap(gate: GateSpec, candidate: Evaluation, scores: SliceScores | None) -> GateResult:
    """The largest difference between the values on two slices."""
    assert scores is not None
    assert gate.max_gap is not None
    found = []
    for name in scores.slices():
        metric = scores.on_slice(candidate, gate.name, name)
        _check(f"{gate.name} on the slice {name}", metric, "")
        found.append((_Value.of(metric), name))
    found.sort(key=lambda one: one[0].value)
    (low, lowest), (high, highest) = found[0], found[-1]
    gap, limit = high.value - low.value, Fraction(repr(gate.max_gap))
    met = gap <= limit + max(low.slack, high.slack)
    by, lower, upper = _figures([gap, low.value, high.value], [(gap, limit)] if gap != limit else [])
    sentence = (
        f"{gate.name} is {upper} on the slice {highest} and {lower} on {lowest}: a gap of {by}, "
        f"{'within' if met else 'more than'} the {_bound(gate.max_gap)} allowed"
    )
    return GateResult(metric=gate.name, met=met, value=float(gap), bound=gate.max_gap, sentence=sentence)


def _against_bound(gate: GateSpec, metric: MetricValue, measured: _Value) -> GateResult:
    bound = gate.threshold
    limit = Fraction(repr(bound))
    short = limit - measured.value if gate.min is not None else measured.value - limit
    met = short <= measured.slack or metric.value == bound  # the bound may be a score copied from a report
    value, by = _figures([measured.value, abs(short)], [(measured.value, limit)] if short else [])
    side = ("at least" if gate.min is not None else "at most") if met else by
    if not met:
        side += " below" if gate.min is not None else " above"
    return GateResult(
        metric=gate.name,
        met=met,
        value=metric.value,
        bound=bound,
        slice=gate.slice or "",
        sentence=f"{subject(gate)} is {value}, {side} the {_bound(bound)} asked for",
    )


def _check(name: str, metric: MetricValue, whose: str) -> None:
    if metric.rows <= 0:
        raise InsufficientEvidence(
            f"{name} was scored on no rows{whose}, so the gate cannot decide",
            remedy="Check that the dataset has test rows, and run again.",
        )
    if not math.isfinite(metric.value):
        raise InsufficientEvidence(f"{name} is {metric.value}{whose}, so the gate cannot decide")


def _check_same_rows(
    name: str, candidate: tuple[MetricValue, Evaluation], champion: tuple[MetricValue, Evaluation]
) -> None:
    (mine, of_mine), (theirs, of_theirs) = candidate, champion
    if theirs.mode != mine.mode:
        raise InsufficientEvidence(f"the champion has no score for {name} that can be compared with the candidate's")
    _check(name, theirs, " for the champion")
    if mine.rows != theirs.rows:
        raise InsufficientEvidence(
            f"{name} was scored on {mine.rows:,} rows and the champion's on {theirs.rows:,}, so the gate cannot decide"
        )
    if of_mine.dataset_ids != of_theirs.dataset_ids:
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
    if value.denominator == 1 and abs(value) >= _LARGE:
        return f"{value.numerator:,}"
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.{digits}f}"


def _bound(bound: float) -> str:
    if float(bound).is_integer() and abs(bound) >= _LARGE:
        return f"{bound:,.0f}"
    short = f"{bound:g}"
    return short if float(short) == bound else repr(bound)


def _asked(min_gain: float) -> str:
    if min_gain > 0:
        return f", +{_bound(min_gain)} was asked for"
    return f", and may lose {_bound(-min_gain)} at most" if min_gain < 0 else ", and may lose nothing"
