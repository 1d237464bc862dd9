"""What machines cost that a pool keeps running and that no run uses; a pure function of charges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from data_contracts.costs import MonthCosts
from data_contracts.resolved import Price
from tasks.costs.charges import MICRO, Charge


@dataclass(frozen=True)
class IdlePool:
    """A pool whose `kept` nodes were partly used by no run.

    Attributes:
        idle_s: node-seconds that no run used, of `kept_s`.
        is_least: whether more may have been idle: runs may have used other nodes of the pool meanwhile.
    """

    name: str
    kept: int
    kept_s: float
    idle_s: float
    price: Price
    is_least: bool = False

    @property
    def amount(self) -> float | None:
        """What the idle node-seconds cost, in the currency of the price; None if the price is unknown."""
        return None if self.price.per_hour is None else self.idle_s / 3600 * self.price.per_hour

    @property
    def line(self) -> str:
        """A sentence for a person."""
        money = "an unknown cost" if self.amount is None else f"{self.amount:.4f} {self.price.currency}"
        share = self.idle_s / self.kept_s if self.kept_s else 0.0
        least = "at least " if self.is_least else ""
        nodes = "1 node" if self.kept == 1 else f"{self.kept} nodes"
        unused = f"no run used {least}{self.idle_s / 3600:.2f} node-hours of them ({share:.0%})"
        return f"pool {self.name} keeps {nodes}: {unused}, {money}"

    def to_json(self) -> dict[str, Any]:
        """The pool for a program; what is unknown is null."""
        figures = {"kept_s": round(self.kept_s, 6), "idle_s": round(self.idle_s, 6), "amount": self.amount}
        return {"pool": self.name, "kept": self.kept, **figures, "currency": self.price.currency}


def idle_pool(name: str, kept: int, price: Price, charges: Iterable[Charge], span_s: tuple[float, float]) -> IdlePool:
    """How much of `kept` nodes no run used in a span; nodes beyond those are others, started for a run."""
    since, until = round(span_s[0] * MICRO), round(span_s[1] * MICRO)
    changes: list[tuple[int, int]] = [(until, 0)]
    for charge in charges:
        began, ended = max(charge.began_us, since), min(charge.ended_us, until)
        if charge.price.pool == name and ended > began:
            changes += [(began, 1), (ended, -1)]
    at, busy, idle_us = since, 0, 0
    for moment, change in sorted(changes):
        idle_us += max(kept - busy, 0) * (moment - at)
        at, busy = moment, busy + change
    return IdlePool(name, kept, kept * (until - since) / MICRO, idle_us / MICRO, price)


def idle_in_month(name: str, kept: int, price: Price, months: Iterable[MonthCosts], length_s: float) -> IdlePool | None:
    """The same by a month's figures of several stores; None if one of them does not name pools."""
    used_s, kept_s = 0.0, kept * length_s
    for month in months:
        if month.lines and not month.has_pools:
            return None
        used_s += sum(line.node_seconds for line in month.lines if line.pool == name)
    return IdlePool(name, kept, kept_s, max(kept_s - used_s, 0.0), price, is_least=True)
