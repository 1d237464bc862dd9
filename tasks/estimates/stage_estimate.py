"""The estimate of each stage that will run: its time by earlier runs, and the cost and energy of its machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.executions import HERE
from data_contracts.resolved import UNKNOWN_PRICE, Price
from tasks.estimates.energy import Energy, energy_of
from tasks.estimates.past import Past
from tasks.estimates.span import Span
from tasks.estimates.times import TrainingTime, stage_time
from tasks.run.run import Run

TRAIN = "train"


@dataclass(frozen=True)
class StageEstimate:
    """A stage that will run: its time, what that rests on, and its cost by currency, in an amount per expected second.

    Attributes:
        time: None if it is unknown.
        rates: price per second by currency; None if a price is unknown.
        energy: None if the time is unknown.
        unpriced: the machines and pools whose price is unknown.
    """

    stage: str
    time: Span | None
    why: str
    rates: dict[str, float] | None
    energy: Energy | None = None
    unpriced: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        times = {"time_s": None} if self.time is None else self.time.to_json("time_s")
        energy = None if self.energy is None else self.energy.to_json()
        return {"stage": self.stage, "why": self.why, **times, "amounts": self.amounts, "energy": energy}

    @property
    def amounts(self) -> dict[str, float] | None:
        """The expected cost by currency; None if it is unknown."""
        if self.time is None or self.rates is None:
            return None
        return {currency: round(rate * self.time.expected, 6) for currency, rate in self.rates.items()}


def stage_estimates(run: Run, past: Past, ahead: Sequence[str], training: TrainingTime | None) -> list[StageEstimate]:
    """The stages that will run, and what lies between them, which has no name."""
    raw_bytes = sum(one.bytes for one in run.resolved.files)
    found = []
    for name in ahead:
        if name == TRAIN and training is not None:
            found.append(_estimate(run, past, name, training.span, training.why))
            continue
        span = stage_time(past.stages, name, raw_bytes)
        runs = len({one.run_id for one in past.stages if one.stage == name})
        why = f"{runs} earlier run{'' if runs == 1 else 's'}" if span is not None else "no earlier run"
        found.append(_estimate(run, past, name, span, why))
    between = stage_time(past.stages, "", 0)
    if between is not None:
        found.append(_estimate(run, past, "", between, "what lies between stages"))
    return found


def _estimate(run: Run, past: Past, name: str, time: Span | None, why: str) -> StageEstimate:
    nodes = _nodes(run, name)
    energy = None if time is None else energy_of(name or "run", time, nodes, past.powers)
    unpriced = frozenset(price.place for price, _ in nodes if price.per_hour is None)
    return StageEstimate(name, time, why, _rates(nodes), energy, unpriced)


def _nodes(run: Run, stage: str) -> list[tuple[Price, int]]:
    """What a stage occupies: its nodes, and the machine that carries the run out unless the nodes are its processes."""
    resolved, own = run.resolved, run.spec.train if stage == TRAIN else getattr(run.spec, stage or "-", None)
    here, pool = resolved.price_of(HERE) or UNKNOWN_PRICE, getattr(own, "pool", None)
    nodes: list[tuple[Price, int]] = []
    if stage == TRAIN:
        nodes.append((resolved.price, run.spec.train.nodes))
    elif pool is not None:
        nodes.append((resolved.price_of(stage) or here, getattr(own, "nodes", None) or 1))
    return nodes if nodes and pool is None else [*nodes, (here, 1)]


def _rates(nodes: Sequence[tuple[Price, int]]) -> dict[str, float] | None:
    """What a second costs, by currency; None if a price is unknown."""
    rates: dict[str, float] = {}
    for price, count in nodes:
        if price.per_hour is None:
            return None
        rates[price.currency] = rates.get(price.currency, 0.0) + price.per_hour * count / 3600
    return rates
