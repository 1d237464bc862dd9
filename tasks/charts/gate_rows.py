"""The results of gates, as rows of a forest plot."""

from __future__ import annotations

from collections.abc import Sequence

from data_contracts.pipeline_spec import GateSpec, PipelineSpec
from data_contracts.records import GateResult
from tasks.charts.forest import Gate
from tasks.charts.scales import label


def forest_rows(gates: Sequence[GateResult], spec: PipelineSpec) -> list[Gate]:
    """One row for each gate; the spec says on which side it is met, if the results are of its gates."""
    wanted = spec.promote.gates
    alike = len(wanted) == len(gates) and all(a.metric == b.name for a, b in zip(gates, wanted, strict=True))
    known: Sequence[GateSpec | None] = wanted if alike else [None] * len(gates)
    return [_row(gate, one, _sign(gate, spec)) for gate, one in zip(gates, known, strict=True)]


def _sign(gate: GateResult, spec: PipelineSpec) -> int:
    """-1 if the gate's metric is better when it is smaller."""
    metric = spec.evaluate.metrics.get(gate.metric.rpartition("/")[2])
    return -1 if metric is not None and metric.mode == "min" else 1


def outcome(gate: GateResult) -> str:
    """How a gate ended, in words."""
    if gate.skipped:
        return "not compared"
    if gate.evidence is not None and gate.evidence.verdict == "insufficient":
        return "insufficient evidence"
    return "met" if gate.met else "not met"


def _row(gate: GateResult, spec: GateSpec | None, sign: int) -> Gate:
    name = f"{gate.metric} · {gate.slice}" if gate.slice else gate.metric
    evidence = gate.evidence
    if gate.champion_value is not None or (spec is not None and spec.compares):
        return _gain(gate, spec, name, sign)
    if spec is not None:
        above, gap = spec.min is not None, spec.max_gap is not None
    else:
        above, gap = (gate.value >= gate.bound) == gate.met, False
    asked = f"{'gap between slices' if gap else 'value'} {'at least' if above else 'at most'} {label(gate.bound)}"
    if evidence is not None:
        asked += f", {100 * evidence.confidence:.4g} % confidence"
    if missing := _missing(gate):
        return Gate(name, asked, None, gate.bound, above, outcome(gate), missing=missing)
    return Gate(
        name=name,
        asked=asked,
        value=gate.value,
        interval=None if evidence is None else (evidence.low, evidence.high),
        limit=gate.bound,
        good_above=above,
        outcome=outcome(gate),
        champion=gate.champion_value,
        scale=f"{gate.metric} {'gap' if gap else 'value'}",
    )


def _gain(gate: GateResult, spec: GateSpec | None, name: str, sign: int) -> Gate:
    """A gate on the gain over the champion, in the direction in which the metric is better."""
    limit = gate.bound
    asked = f"gain of at least {label(limit)}"
    if limit < 0:
        asked = f"loss of at most {label(-limit)}"
    elif spec is not None and spec.confidence is not None:
        asked = f"gain above {label(limit)}"
    interval, value = None, None
    if gate.evidence is not None:
        interval, value = (gate.evidence.low, gate.evidence.high), gate.evidence.estimate
        asked += f", {100 * gate.evidence.confidence:.4g} % confidence"
    elif missing := _missing(gate):
        return Gate(name, asked, None, limit, True, outcome(gate), missing=missing)
    elif gate.champion_value is not None:
        value = sign * (gate.value - gate.champion_value)
    return Gate(name, asked, value, limit, True, outcome(gate), interval, scale=f"{gate.metric} gain")


def _missing(gate: GateResult) -> tuple[str, str] | None:
    """Why no value of a gate is shown; None if it is."""
    if gate.sealed:
        return "sealed set", "Its scores are shown to nobody; only the verdict is told."
    return ("not compared", "It was not asked; the sentence below says why.") if gate.skipped else None
