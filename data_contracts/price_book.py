"""The price book: what a node of each kind costs, since which day, and which kind of node a work pool has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from data_contracts.canonical import Day
from data_contracts.pipeline_spec.base import Currency, FieldError, Section, Shorthand

VERSION = 1
# More than anything costs; so no sum of amounts is infinite.
MOST = 1e12


Term = Literal["on-demand", "spot"]


Amount = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]


class MachinePrice(Section):
    """What one node costs from a day on, until the day of a later price for the same region and term."""

    date: Day
    """The first day of this price, such as 2026-11-09."""
    currency: Currency
    """ISO 4217 code, such as USD."""
    per_hour: Amount
    """Price of the whole node for an hour."""
    region: str = ""
    """Where the price holds; default: everywhere that has no price of its own."""
    term: Term = "on-demand"
    """`on-demand` or `spot`."""
    source: str = ""
    """Where the price was read."""
    interruptions_per_hour: Amount | None = None
    """No effect since 2026-11-29: dropped."""


class MachineEntry(Section):
    """A kind of node."""

    devices: int | None = Field(default=None, ge=0, le=10**6)
    """Accelerators of a node; 0 for CPU only. Default: as the shipped book says, else 0."""
    memory_bytes: int | None = Field(default=None, ge=0)
    """Memory of one accelerator in bytes; 0 if unknown. Default: as the shipped book says, else 0."""
    watts: Amount | None = None
    """No effect since 2026-11-29: dropped."""
    relative_speed: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Speed of one accelerator in training, beside others with this figure; default: as the shipped book says, else
    unknown."""
    prices: list[MachinePrice] = Field(default_factory=list)
    """Its prices. Without one, its cost is unknown."""

    @model_validator(mode="after")
    def _one_price_a_day(self) -> MachineEntry:
        first: dict[tuple[str, str, str], int] = {}
        for number, price in enumerate(self.prices):
            what = (price.date, price.region, price.term)
            if what in first:
                where = f" in {price.region}" if price.region else ""
                raise FieldError(
                    ("prices", number), f"{price.date} has two {price.term} prices{where}; keep one of them"
                )
            first[what] = number
        return self


class PoolEntry(Shorthand):
    """The kind of node that a Prefect work pool has; text is short for `machine`."""

    short_for: ClassVar[str] = "machine"

    machine: str
    """An entry of `machines`, here or in the shipped book."""
    region: str = ""
    """The region whose prices hold."""
    term: Term = "on-demand"
    """`on-demand` or `spot`."""
    kept: int = Field(default=0, ge=0)
    """No effect since 2026-11-29: dropped."""


class PriceBook(Section):
    """A file of prices; yours replaces entries of the shipped one by name."""

    called: ClassVar[str] = "a price book"

    version: Literal[1]
    """Version of this format: 1."""
    machines: dict[str, MachineEntry] = Field(default_factory=dict)
    """Kinds of nodes, by name."""
    pools: dict[str, PoolEntry] = Field(default_factory=dict)
    """The kind of node of each Prefect work pool, by the pool's name."""
    stores: object = None
    """No effect since 2026-11-29: dropped."""
    carbon: object = None
    """No effect since 2026-11-29: dropped."""
    hours: object = None
    """No effect since 2026-11-29: dropped."""


def price_on(
    prices: Iterable[MachinePrice], day: str, region: str = "", term: Term = "on-demand"
) -> MachinePrice | None:
    """The newest price of a node on `day` (ISO); None if the book does not say, also when it only says it for later.

    Args:
        region: prices of this region come first; else those that hold everywhere. "": only a node with prices of one
            region needs none to be named.
    """
    known = [one for one in prices if one.term == term and one.date <= day]
    here = [one for one in known if one.region == region] or [one for one in known if not one.region]
    if not here and not region and len({one.region for one in known}) == 1:
        here = known
    return max(here, key=lambda one: one.date, default=None)
