"""A forest plot of gates: for each gate its value with its interval, the limit, and the side on which it is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_contracts.pipeline_spec import GateSpec, PipelineSpec
from data_contracts.records import GateResult
from tasks.charts.picture import BAD, BLUE, GOOD, PANEL, SOFT, WARN, Picture, Scale, finite, label, scale_of, width_of

_WIDTH, _ROW, _TOP = 1000, 68, 30
_LEFT, _RIGHT = 270, 760
_COLOURS = {"met": GOOD, "not met": BAD, "insufficient evidence": WARN, "not compared": WARN}


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


@dataclass(frozen=True)
class Gate:
    """One row of the plot.

    Attributes:
        name, asked: such as `accuracy` and `gain of at least 0`.
        value: what was measured: a value, or a gain; None if nothing is shown.
        limit: what was asked for, in the same unit.
        good_above: whether the gate is met above its limit.
        interval: of the value, if there is one.
        champion: the champion's value, where it lies on the same scale.
        outcome: `met`, `not met`, `insufficient evidence` or `not compared`.
        missing: with no value: what is missing, in two or three words, and why, in a sentence.
        scale: rows with the same text share a scale; "" for none.
    """

    name: str
    asked: str
    value: float | None
    limit: float
    good_above: bool
    outcome: str
    interval: tuple[float, float] | None = None
    champion: float | None = None
    scale: str = ""
    missing: tuple[str, str] = ("no champion yet", "There is nothing to compare with.")


def forest(gates: Sequence[Gate], title: str = "The gates, with what was asked for") -> str:
    """The plot; "" if there are no gates."""
    if not gates:
        return ""
    picture = Picture(_WIDTH, _TOP + _ROW * len(gates), title)
    _legend(picture, gates)
    for number, gate in enumerate(gates):
        top = _TOP + number * _ROW
        if number:
            picture.line((0, top, _WIDTH, top))
        picture.text((0, top + 28), gate.name, size=14, bold=True, room=_LEFT - 24)
        picture.text((0, top + 47), gate.asked, size=12, fill=SOFT, room=_LEFT - 24)
        colour = _COLOURS[gate.outcome]
        figure = gate.missing[0] if gate.value is None else label(gate.value)
        picture.text((_RIGHT + 30, top + 28), figure, size=14, bold=True, room=_WIDTH - _RIGHT - 30)
        picture.dot(_RIGHT + 35, top + 43, 4.5, colour)
        picture.text((_RIGHT + 46, top + 47), gate.outcome, size=12, fill=colour, room=_WIDTH - _RIGHT - 46)
        if gate.value is None:
            picture.text((_LEFT, top + 38), gate.missing[1], size=12, fill=SOFT)
        else:
            alike = [one for one in gates if one is gate or (gate.scale and one.scale == gate.scale)]
            _strip(picture, gate, _scale(alike), top)
    return picture.svg()


def _scale(gates: Sequence[Gate]) -> Scale:
    values = [one for gate in gates for one in (gate.value, gate.limit, gate.champion, *(gate.interval or ()))]
    return scale_of(finite(one for one in values if one is not None), _LEFT, _RIGHT, pad=0.16)


def _strip(picture: Picture, gate: Gate, scale: Scale, top: float) -> None:
    """The row's own scale: the good side shaded, the limit dashed, the interval a line, the value a dot."""
    assert gate.value is not None
    middle, colour = top + 25, _COLOURS[gate.outcome]
    picture.rect((_LEFT, middle - 13, _RIGHT - _LEFT, 26), PANEL, radius=4)
    limit = scale.at(gate.limit)
    good = (limit, _RIGHT) if gate.good_above else (_LEFT, limit)
    picture.rect((good[0], middle - 13, good[1] - good[0], 26), GOOD, radius=4, more=' fill-opacity="0.16"')
    picture.line((limit, middle - 16, limit, middle + 16), SOFT, 1.5, "4 3")
    if gate.interval is not None:
        low, high = sorted(scale.at(one) for one in gate.interval)
        picture.line((low, middle, high, middle), colour, 2.5)
        for end in (low, high):
            picture.line((end, middle - 5, end, middle + 5), colour, 2)
    if gate.champion is not None:
        x = scale.at(gate.champion)
        picture.area([(x, middle - 6), (x + 6, middle), (x, middle + 6), (x - 6, middle)], BLUE)
    picture.dot(scale.at(gate.value), middle, 6, colour)
    picture.tip((_LEFT, middle - 16, _RIGHT - _LEFT, 32), _said(gate))
    _labels(picture, gate, scale, top + 58)


def _labels(picture: Picture, gate: Gate, scale: Scale, y: float) -> None:
    """Labels below the strip: the limit first, then the round values that leave it room."""
    own = label(gate.limit)
    half = width_of(own, 11) / 2
    at = min(max(scale.at(gate.limit), _LEFT + half), _RIGHT - half)
    picture.text((at, y), own, size=11, anchor="middle", bold=True)
    taken = [(at - half - 8, at + half + 8)]
    for value, words in scale.ticks(4):
        place, room = scale.at(value), width_of(words, 11) / 2
        span = (place - room, place + room)
        inside = span[0] >= _LEFT and span[1] <= _RIGHT
        if inside and all(span[1] < low or span[0] > high for low, high in taken):
            picture.line((place, y - 19, place, y - 15), SOFT)
            picture.text((place, y), words, size=11, anchor="middle", fill=SOFT)
            taken.append((span[0] - 8, span[1] + 8))


def _legend(picture: Picture, gates: Sequence[Gate]) -> None:
    drawn = [gate for gate in gates if gate.value is not None]
    if not drawn:
        return
    x, y = float(_LEFT), 14
    for shown, words in (
        (True, "candidate"),
        (any(gate.interval for gate in drawn), "confidence interval"),
        (any(gate.champion is not None for gate in drawn), "champion"),
        (True, "limit"),
        (True, "met on this side"),
    ):
        if not shown:
            continue
        if words == "candidate":
            picture.dot(x + 6, y - 4, 5, SOFT)
        elif words == "champion":
            picture.area([(x + 6, y - 10), (x + 12, y - 4), (x + 6, y + 2), (x, y - 4)], BLUE)
        elif words == "limit":
            picture.line((x + 6, y - 11, x + 6, y + 3), SOFT, 1.5, "4 3")
        elif words == "confidence interval":
            picture.line((x, y - 4, x + 13, y - 4), SOFT, 2.5)
        else:
            picture.rect((x, y - 10, 13, 12), GOOD, radius=2, more=' fill-opacity="0.3"')
        picture.text((x + 18, y), words, size=11, fill=SOFT)
        x += 18 + width_of(words, 11) + 16


def _said(gate: Gate) -> str:
    assert gate.value is not None
    interval = "" if gate.interval is None else f" ({label(gate.interval[0])} to {label(gate.interval[1])})"
    return f"{gate.name}: {label(gate.value)}{interval}, limit {label(gate.limit)}: {gate.outcome}"
