"""What models gained in a span of time, to set what their runs cost against it.

The gain of a promotion is the candidate's value of a gate's metric less the champion's on the same rows, as its receipt
has it, in the direction that is better. A rollback takes back the gains of the versions that it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from data_contracts.alias_moves import ALIAS as CANARY
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Evaluation, Receipt
from infra.models import registry
from infra.records.handoffs import read_handoff
from infra.records.receipts import is_rollback
from infra.store import Store

# A point of a metric: what one says of a share such as an accuracy.
POINT = 0.01


@dataclass(frozen=True)
class AliasMove:
    """One promotion or rollback of an alias: when (seconds since the epoch), to which version, and its gains."""

    at: float
    version: int
    gains: Mapping[str, float]
    is_rollback: bool = False


@dataclass(frozen=True)
class MetricGain:
    """What an alias gained in a metric by the promotions of a span that were not rolled back in it."""

    model: str
    alias: str
    metric: str
    gained: float
    promotions: int

    def per_point(self, amounts: Mapping[str, float] | None) -> dict[str, float] | None:
        """The amounts for each hundredth of the metric; None without a gain, or where the amounts are not known."""
        if amounts is None or not amounts or not self.gained > 0:
            return None
        return {currency: round(amount / self.gained * POINT, 6) for currency, amount in sorted(amounts.items())}

    def line(self, amounts: Mapping[str, float] | None) -> str:
        """The gain and what each hundredth of it cost, for people."""
        times = "promotion" if self.promotions == 1 else "promotions"
        said = f"{self.model}@{self.alias}: {self.promotions} {times} gained {self.gained:.4g} in {self.metric}"
        cost = self.per_point(amounts)
        if cost is not None:
            each = " + ".join(f"{amount:.4f} {currency}" for currency, amount in cost.items())
            return f"{said}, {each} for each 0.01"
        return f"{said}, at an unknown cost" if self.gained > 0 else said

    def to_json(self, amounts: Mapping[str, float] | None) -> dict[str, Any]:
        """For a program, with `per_0_01` in each currency."""
        return {
            "model": self.model,
            "alias": self.alias,
            "metric": self.metric,
            "gained": round(self.gained, 9),
            "promotions": self.promotions,
            "per_0_01": self.per_point(amounts),
        }


def gained(model: str, alias: str, moves: Iterable[AliasMove], since: float, until: float) -> list[MetricGain]:
    """The gains of an alias between two times, by metric in the order in which gates first had it.

    Args:
        moves: oldest first.
    """
    standing: list[AliasMove] = []
    for move in moves:
        if move.at >= until:
            break
        if not move.is_rollback:
            standing.append(move)
            continue
        while standing and standing[-1].version != move.version:
            standing.pop()
    made = [move for move in standing if move.at >= since and move.gains]
    metrics = dict.fromkeys(metric for move in made for metric in move.gains)
    return [
        MetricGain(
            model,
            alias,
            metric,
            sum(move.gains.get(metric, 0.0) for move in made),
            sum(metric in move.gains for move in made),
        )
        for metric in metrics
    ]


def gains_of(stores: Sequence[Store], models: Iterable[str], since: float, until: float) -> Iterator[MetricGain]:
    """What the models' aliases gained in these stores; a history that cannot be read has no gains."""
    wanted = set(models)
    for store in stores:
        for model, alias, _ in registry.aliases(store):
            if model in wanted and alias != CANARY:
                try:
                    moves = list(_moves(store, model, alias))
                except (CorruptError, FileNotFoundError, KeyError, ValueError):  # a time may be missing or damaged
                    continue
                yield from gained(model, alias, moves, since, until)


def _moves(store: Store, model: str, alias: str) -> Iterator[AliasMove]:
    for receipt, provenance in registry.moves(store, model, alias):
        if receipt.decision == "promoted" and receipt.version is not None:
            at = datetime.fromisoformat(str(provenance.get("finished") or provenance["started"]))
            gains = {} if is_rollback(receipt) else _gains(store, receipt)
            moved = at if at.tzinfo else at.replace(tzinfo=UTC)
            yield AliasMove(moved.timestamp(), receipt.version, gains, is_rollback(receipt))


def _gains(store: Store, receipt: Receipt) -> dict[str, float]:
    """The gains over the champion on all rows of a set, by metric; a sealed set has none to tell."""
    compared = {
        gate.metric: gate.value - gate.champion_value
        for gate in receipt.gates
        if gate.champion_value is not None and not (gate.slice or gate.sealed or gate.skipped)
    }
    if not compared or receipt.evaluation is None:
        return {}
    metrics = read_handoff(store, receipt.evaluation, Evaluation).metrics
    return {name: gain if metrics[name].mode == "max" else -gain for name, gain in compared.items() if name in metrics}
