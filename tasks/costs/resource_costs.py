"""What requests, bytes and energy cost: amounts by the store's prices, kilowatt-hours and carbon.

What is unknown is named, and never counts as 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from data_contracts.costs import NOTHING, MonthLine, Resources
from data_contracts.resolved import StoreRates
from tasks.costs.charges import Charge

GB = 10**9
JOULES_PER_KWH = 3_600_000.0


@dataclass
class ResourceCosts:
    """What charges use beside time, added up, and what that costs.

    Attributes:
        used: requests, bytes and measured energy.
        joules: measured and estimated; estimated_joules: the part that is estimated from the machine's power.
        unmetered_s: node-seconds whose energy is unknown.
        grams: of CO2 equivalent, as far as known; ungraded_joules: energy of an unknown carbon intensity.
        amounts: for requests and egress, by currency, as far as known; unpriced: what has no known price.
        monthly: what a month of keeping the written bytes costs, by currency.
    """

    used: Resources = NOTHING
    joules: float = 0.0
    estimated_joules: float = 0.0
    unmetered_s: float = 0.0
    grams: float = 0.0
    ungraded_joules: float = 0.0
    amounts: dict[str, float] = field(default_factory=dict)
    unpriced: set[str] = field(default_factory=set)
    monthly: dict[str, float] = field(default_factory=dict)

    def add(self, charge: Charge, rates: StoreRates | None) -> None:
        """Add one charge of a run whose store has these rates."""
        self.used += charge.used
        self._add_energy(charge)
        used, region = charge.used, charge.price.region
        for name, amount in store_amounts(used, rates, region).items():
            if amount is None:
                self.unpriced.add(name)
            elif rates is not None and amount:
                into = self.monthly if name == "storage" else self.amounts
                into[rates.currency] = into.get(rates.currency, 0.0) + amount

    def add_line(self, line: MonthLine) -> None:
        """Add what one run used in a month, from the month's kept figures, which do not have the store's prices."""
        used = line.used
        self.used += used
        counts = {
            "requests": used.put_requests + used.get_requests,
            "egress": used.read_bytes,
            "storage": used.written_bytes,
        }
        self.unpriced |= {name for name, count in counts.items() if count}
        self.joules += line.joules
        estimated = line.joules - (used.millijoules or 0) / 1000
        # Two sums of the same figures may differ in their last digits.
        self.estimated_joules += estimated if estimated > line.joules * 1e-6 else 0.0
        self.unmetered_s += 0.0 if line.joules else line.node_seconds
        self.grams += line.grams
        self.ungraded_joules += 0.0 if line.grams else line.joules

    def _add_energy(self, charge: Charge) -> None:
        joules = charge.joules
        if joules is None:
            self.unmetered_s += charge.node_seconds
            return
        self.joules += joules
        if charge.used.millijoules is None:
            self.estimated_joules += joules
        if charge.price.g_per_kwh is None:
            self.ungraded_joules += joules
        else:
            self.grams += joules / JOULES_PER_KWH * charge.price.g_per_kwh

    @property
    def energy(self) -> str:
        """The energy in words, such as `1.25 kWh`, `at least 0.20 kWh (estimated)` or `unknown`."""
        if not self.joules:
            return "unknown"
        how = "" if not self.estimated_joules else " (estimated)"
        return f"{'at least ' if self.unmetered_s else ''}{self.joules / JOULES_PER_KWH:.3g} kWh{how}"

    @property
    def carbon(self) -> str:
        """The carbon in words, such as `0.31 kg`; `unknown` if no intensity is known."""
        if not self.joules or self.ungraded_joules == self.joules:
            return "unknown"
        return f"{'at least ' if self.unmetered_s or self.ungraded_joules else ''}{self.grams / 1000:.3g} kg"

    def to_json(self) -> dict[str, Any]:
        """The sums for a program; what is unknown is null."""
        known, used = bool(self.joules), self.used
        graded = known and self.ungraded_joules < self.joules
        return {
            "put_requests": used.put_requests,
            "get_requests": used.get_requests,
            "written_bytes": used.written_bytes,
            "read_bytes": used.read_bytes,
            "store_amounts": None if self.unpriced - {"storage"} else _rounded(self.amounts),
            "known_store_amounts": _rounded(self.amounts),
            "storage_per_month": None if "storage" in self.unpriced else _rounded(self.monthly),
            "store_unpriced": sorted(self.unpriced),
            "joules": round(self.joules, 3) if known else None,
            "estimated_joules": round(self.estimated_joules, 3),
            "unmetered_s": round(self.unmetered_s, 6),
            "grams_co2e": round(self.grams, 6) if graded else None,
            "ungraded_joules": round(self.ungraded_joules, 3),
            "gpu_busy_s": None if used.gpu_busy_ms is None else used.gpu_busy_ms / 1000,
        }


def store_amounts(used: Resources, rates: StoreRates | None, region: str) -> dict[str, float | None]:
    """What requests, egress and a month of storage cost by a store's rates; None where that is unknown.

    Bytes are egress if they are read in another region than the store's; without both regions, nobody knows.

    Args:
        region: of the machine that used them; "" if unknown.
    """
    puts, gets = used.put_requests, used.get_requests
    if rates is None:
        counts = {"requests": puts + gets, "egress": used.read_bytes, "storage": used.written_bytes}
        return {name: None if count else 0.0 for name, count in counts.items()}
    if region and rates.region:
        per_gb = rates.egress_per_gb if region != rates.region else 0.0
    else:
        per_gb = 0.0 if rates.egress_per_gb == 0 else None
    return {
        "requests": _plus(_times(puts / 1000, rates.put_per_1000), _times(gets / 1000, rates.get_per_1000)),
        "egress": _times(used.read_bytes / GB, per_gb),
        "storage": _times(used.written_bytes / GB, rates.per_gb_month),
    }


def _times(count: float, price: float | None) -> float | None:
    return 0.0 if not count else None if price is None else count * price


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _rounded(amounts: dict[str, float]) -> dict[str, float]:
    return {currency: round(amount, 9) for currency, amount in sorted(amounts.items())}
