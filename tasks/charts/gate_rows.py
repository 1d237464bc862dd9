"""What the gates found, as rows of a forest plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_contracts.gate_results import GateResult
from data_contracts.handoffs import MetricValue
from data_contracts.pipeline_spec import GateSpec
from tasks.charts.forest import Gate
from tasks.charts.scales import label


def forest_rows(
    gates: Sequence[GateResult], specs: Sequence[GateSpec], metrics: Mapping[str, MetricValue]
) -> list[Gate]:
    """One row for each gate.

    Args:
        specs: the spec's gates; those that the results are not of are left out of account.
        metrics: of the candidate, for the direction in which they are better.
    """
    alike = len(specs) == len(gates) and all(one.metric == spec.name for one, spec in zip(gates, specs, strict=True))
    known: Sequence[GateSpec | None] = specs if alike else [None] * len(gates)
    return [_row(gate, spec, metrics.get(gate.metric)) for gate, spec in zip(gates, known, strict=True)]


def outcome(gate: GateResult) -> str:
    """How a gate ended, in words."""
    if gate.evidence is not None and gate.evidence.verdict == "insufficient":
        return "insufficient evidence"
    return "met" if gate.met else "not met"


def _row(gate: GateResult, spec: GateSpec | None, metric: MetricValue | None) -> Gate:
    name = f"{gate.metric} · {gate.slice}" if gate.slice else gate.metric
    if gate.evidence is not None or (spec is not None and spec.compares):
        return _gain(gate, spec, name, metric)
    if spec is not None:
        above, gap = spec.min is not None, spec.max_gap is not None
    else:
        above, gap = (gate.value >= gate.bound) == gate.met, False
    asked = f"{'at least' if above else 'at most'} {label(gate.bound)}"
    return Gate(
        name=name,
        asked=f"gap between slices, {asked}" if gap else f"value, {asked}",
        value=gate.value,
        limit=gate.bound,
        good_above=above,
        outcome=outcome(gate),
        champion=gate.champion_value,
        scale=f"{gate.metric} {'gap' if gap else 'value'}",
    )


def _gain(gate: GateResult, spec: GateSpec | None, name: str, metric: MetricValue | None) -> Gate:
    """A gate on the gain over the champion, in the direction in which the metric is better."""
    limit = -gate.bound if spec is not None and spec.margin is not None else gate.bound
    asked = f"gain over the champion, at least {label(limit)}"
    if limit < 0:
        asked = f"against the champion, may lose {label(-limit)}"
    interval, value = None, None
    if gate.evidence is not None:
        interval, value = (gate.evidence.low, gate.evidence.high), gate.evidence.gain
        asked += f", {gate.evidence.confidence:.4g} confidence"
    elif gate.champion_value is not None:
        better = 1 if metric is None or metric.mode == "max" else -1
        value = better * (gate.value - gate.champion_value)
    return Gate(name, asked, value, limit, True, outcome(gate), interval, scale=f"{gate.metric} gain")
