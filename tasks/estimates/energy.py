"""The energy and the carbon that a run will need: as earlier runs measured it, else as the price book states it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.resolved import Price
from tasks.costs.charges import Charge
from tasks.costs.resource_costs import JOULES_PER_KWH
from tasks.estimates.span import NONE, Span


@dataclass(frozen=True)
class PastPower:
    """What a node of a kind of machine needed during a stage of an earlier run, as its counters measured it."""

    stage: str
    machine: str
    watts: float


@dataclass(frozen=True)
class Energy:
    """The energy of what will run.

    Attributes:
        joules, grams: of what is known; grams are of CO2 equivalent.
        measured, stated: whether a part comes from earlier runs, or from the watts of the price book.
        unmetered: machines whose power is unknown; ungraded: those where the carbon intensity is unknown.
    """

    joules: Span = NONE
    grams: Span = NONE
    measured: bool = False
    stated: bool = False
    unmetered: frozenset[str] = frozenset()
    ungraded: frozenset[str] = frozenset()

    def __add__(self, other: Energy) -> Energy:
        return Energy(
            self.joules + other.joules,
            self.grams + other.grams,
            self.measured or other.measured,
            self.stated or other.stated,
            self.unmetered | other.unmetered,
            self.ungraded | other.ungraded,
        )

    @property
    def known(self) -> bool:
        """Whether the energy of any part is known."""
        return self.measured or self.stated

    def to_json(self) -> dict[str, Any]:
        """For a program: null if a part is unknown, and the parts that are known beside it."""
        whole = self.known and not self.unmetered
        known = self.joules.to_json("known_joules") if self.known else {}
        energy = self.joules.to_json("energy_joules") if whole else {"energy_joules": None}
        graded = whole and not self.ungraded
        return {
            **energy,
            **(known if not whole else {}),
            **(self.grams.to_json("co2e_grams") if graded else {"co2e_grams": None}),
            "from": [name for name, is_so in (("measured", self.measured), ("price book", self.stated)) if is_so],
            "unmetered_machines": sorted(self.unmetered),
            "ungraded_machines": sorted(self.ungraded),
        }


def powers(charges: Iterable[Charge]) -> list[PastPower]:
    """The power of a node by stage and machine; nothing where a node's energy was not measured."""
    joules: dict[tuple[str, str], float] = {}
    seconds: dict[tuple[str, str], float] = {}
    unmeasured: set[tuple[str, str]] = set()
    for one in charges:
        place = one.stage, one.price.place
        seconds[place] = seconds.get(place, 0.0) + one.node_seconds
        if one.used.millijoules is not None:
            joules[place] = joules.get(place, 0.0) + one.used.millijoules / 1000
        elif one.estimable and one.node_seconds:
            unmeasured.add(place)
    return [
        PastPower(stage, machine, joules[stage, machine] / spent)
        for (stage, machine), spent in seconds.items()
        if (stage, machine) in joules and (stage, machine) not in unmeasured and spent > 0
    ]


def energy_of(stage: str, time: Span, nodes: Sequence[tuple[Price, int]], past: Sequence[PastPower]) -> Energy:
    """The energy of a stage that takes so long on numbers of nodes with these prices."""
    whole = Energy()
    for price, count in nodes:
        measured = [one.watts for one in past if (one.stage, one.machine) == (stage, price.place)]
        known = measured or ([] if price.watts is None else [price.watts])
        if not known:
            whole += Energy(unmetered=frozenset((price.place,)))
            continue
        joules = Span(
            time.expected * statistics.median(known) * count,
            time.least * min(known) * count,
            time.most * max(known) * count,
        )
        graded = price.g_per_kwh is not None
        whole += Energy(
            joules=joules,
            grams=joules.times((price.g_per_kwh or 0.0) / JOULES_PER_KWH),
            measured=bool(measured),
            stated=not measured,
            ungraded=frozenset(() if graded else (price.place,)),
        )
    return whole
