"""Checks the names in gates and in a canary: their metrics, sets and slices."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence

from data_contracts.canaries import ALIAS
from data_contracts.expressions.metric_expressions import check
from data_contracts.pipeline_spec.base import FieldError
from data_contracts.pipeline_spec.evaluate import EvaluateSpec
from data_contracts.pipeline_spec.promote import MEASURES, GateSpec, PromoteSpec


def check_gates(gates: Sequence[GateSpec], evaluate: EvaluateSpec) -> None:
    """FieldError if a gate names an unknown metric, set or slice (the nearest is named), or one that it excludes."""
    open_metrics = [*evaluate.metrics, *MEASURES]
    for name, one in evaluate.sets.items():
        open_metrics += [f"{name}/{metric}" for metric in evaluate.metrics if not one.sealed]
    for index, gate in enumerate(gates):
        at = ("promote", "gates", index)
        if gate.metric is not None and gate.metric not in MEASURES:
            _check_metric(gate.metric, evaluate, (*at, "metric"))
            of_set = gate.metric.rpartition("/")[0]
            if of_set and evaluate.sets[of_set].sealed and gate.confidence is None:
                sentence = f"{of_set!r} is a sealed set, and only a gate with confidence may be about it; give one"
                raise FieldError((*at, "metric"), sentence)
        if gate.metric in MEASURES and (gate.confidence is not None or gate.slice or gate.max_gap is not None):
            sentence = (
                f"{gate.metric} is measured of the whole model; use min, max or min_gain, without confidence and slice"
            )
            raise FieldError((*at, "metric"), sentence)
        if gate.expression is not None:
            hidden = [name for name, one in evaluate.sets.items() if one.sealed and f"{name}/" in gate.expression]
            if hidden:
                sentence = f"{hidden[0]!r} is a sealed set, and only a gate with confidence may be about it"
                raise FieldError((*at, "expression"), sentence)
            try:
                check(gate.expression, open_metrics)
            except ValueError as error:
                raise FieldError((*at, "expression"), str(error)) from None
        if gate.slice is not None and gate.slice not in evaluate.slices:
            sentence = f"{gate.slice!r} is not a slice of evaluate.slices; {_known(evaluate.slices)}"
            raise FieldError((*at, "slice"), f"{sentence}{_nearest(gate.slice, evaluate.slices)}")
        if gate.max_gap is not None and len(evaluate.slices) < 2:
            sentence = f"compares slices, and evaluate.slices has {len(evaluate.slices) or 'none'}; give at least two"
            raise FieldError((*at, "max_gap"), sentence)


def check_canary(promote: PromoteSpec, evaluate: EvaluateSpec, *, external: bool) -> None:
    """FieldError if a canary cannot be judged: unknown or hidden metric, rows that nobody reads, or a taken alias."""
    canary = promote.canary
    if canary is None:
        return
    if promote.alias == ALIAS:
        sentence = f"cannot be {ALIAS} with promote.canary, which keeps its candidates there; choose another"
        raise FieldError(("promote", "alias"), sentence)
    if external:
        sentence = "needs rows that Trainwright reads, and data is external; leave it out"
        raise FieldError(("promote", "canary"), sentence)
    _check_metric(canary.metric, evaluate, ("promote", "canary", "metric"))
    of_set = canary.metric.rpartition("/")[0]
    if of_set and evaluate.sets[of_set].sealed:
        sentence = f"{of_set!r} is a sealed set, and a canary's scores are shown; name another"
        raise FieldError(("promote", "canary", "metric"), sentence)


def _check_metric(name: str, evaluate: EvaluateSpec, field: tuple[str | int, ...]) -> None:
    of_set, _, metric = name.rpartition("/")
    if metric not in evaluate.metrics:
        near = _nearest(metric, [*evaluate.metrics, *MEASURES])
        raise FieldError(field, f"{metric!r} is not a metric of evaluate; it has {listed(evaluate.metrics)}{near}")
    if of_set and of_set not in evaluate.sets:
        near = _nearest(of_set, evaluate.sets)
        raise FieldError(field, f"{of_set!r} is not a set of evaluate.sets; {_known(evaluate.sets)}{near}")


def _known(names: Collection[str]) -> str:
    return f"it has {listed(names)}" if names else "it has none"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Names with commas."""
    return ", ".join(names)
