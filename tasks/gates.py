"""The gate: a pure function of evaluations. It decides nothing by itself; `promote` asks it."""

from __future__ import annotations

from collections.abc import Sequence

from data_contracts.errors import UsageError
from data_contracts.handoffs import Evaluation, GateResult
from data_contracts.spec import GateSpec


def judge(gates: Sequence[GateSpec], candidate: Evaluation, champion: Evaluation | None) -> list[GateResult]:
    """Each gate's result, in order; a gate against the champion is met where there is none yet.

    Raises:
        UsageError: a gate names a metric that the evaluation does not have.
    """
    return [_judge(gate, candidate, champion) for gate in gates]


def _judge(gate: GateSpec, candidate: Evaluation, champion: Evaluation | None) -> GateResult:
    metric = candidate.metrics.get(gate.metric)
    if metric is None:
        raise UsageError(
            f"promote.gates: the evaluation has no metric {gate.metric}; it has {', '.join(candidate.metrics)}.",
            remedy="Name one of these.",
        )
    name, value = gate.metric, metric.value
    if gate.min is not None:
        met = value >= gate.min
        side = "at least" if met else f"{gate.min - value:.4f} below"
        sentence = f"{name} is {value:.4f}, {side} the {gate.min:g} asked for"
        return GateResult(metric=name, met=met, value=value, bound=gate.min, sentence=sentence)
    if gate.max is not None:
        met = value <= gate.max
        side = "at most" if met else f"{value - gate.max:.4f} above"
        sentence = f"{name} is {value:.4f}, {side} the {gate.max:g} asked for"
        return GateResult(metric=name, met=met, value=value, bound=gate.max, sentence=sentence)
    assert gate.min_gain is not None
    if champion is None:
        sentence = f"{name} is {value:.4f}; there is no champion yet"
        return GateResult(metric=name, met=True, value=value, bound=gate.min_gain, sentence=sentence)
    theirs = champion.metrics[gate.metric].value
    gain = value - theirs if metric.mode == "max" else theirs - value
    met = gain >= gate.min_gain
    asked = "" if met else _asked(gate.min_gain)
    word = "gains" if gain >= 0 else "loses"
    sentence = (
        f"{name} is {value:.4f} against the champion's {theirs:.4f} on the same {metric.rows:,} rows: "
        f"it {word} {abs(gain):.4f}{asked}"
    )
    return GateResult(metric=name, met=met, value=value, bound=gate.min_gain, champion_value=theirs, sentence=sentence)


def _asked(min_gain: float) -> str:
    if min_gain > 0:
        return f", {min_gain:+g} was asked for"
    return f", and may lose {-min_gain:g} at most" if min_gain < 0 else ", and may lose nothing"
