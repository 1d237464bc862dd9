"""Checks the names in gates: their metrics, sets and slices."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence

from data_contracts.pipeline_spec.base import FieldError
from data_contracts.pipeline_spec.evaluate import EvaluateSpec
from data_contracts.pipeline_spec.promote import GateSpec

# What a gate may be about besides metrics: measured of the model itself.
OF_THE_MODEL = ("latency_ms", "size_bytes")


def check_gates(gates: Sequence[GateSpec], evaluate: EvaluateSpec) -> None:
    """FieldError naming the nearest if a gate names an unknown metric, set or slice.

    Metrics that an expression names are not looked at.
    """
    for index, gate in enumerate(gates):
        at = ("promote", "gates", index)
        if gate.metric is not None and gate.metric not in OF_THE_MODEL:
            _check_metric(gate.metric, evaluate, (*at, "metric"))
        if gate.slice is not None and gate.slice not in evaluate.slices:
            sentence = f"{gate.slice!r} is not a slice of evaluate.slices; {_known(evaluate.slices)}"
            raise FieldError((*at, "slice"), f"{sentence}{_nearest(gate.slice, evaluate.slices)}")
        if gate.max_gap is not None and len(evaluate.slices) < 2:
            sentence = f"compares slices, and evaluate.slices has {len(evaluate.slices) or 'none'}; give at least two"
            raise FieldError((*at, "max_gap"), sentence)


def _check_metric(name: str, evaluate: EvaluateSpec, field: tuple[str | int, ...]) -> None:
    of_set, _, metric = name.rpartition("/")
    if metric not in evaluate.metrics:
        near = _nearest(metric, [*evaluate.metrics, *OF_THE_MODEL])
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
