"""The price book as it holds on this machine: devices, memory and dated prices of each kind of node, and of pools.

The shipped `prices.yaml` has list prices. A file of the same form, named by TRAINWRIGHT_MACHINES, adds entries and
replaces entries of the same name; so does a catalogue of an earlier version, which maps names to machines.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from data_contracts.canonical import iso_day
from data_contracts.errors import UsageError
from data_contracts.handoffs import Record
from data_contracts.load import problems
from data_contracts.pipeline_spec.base import Section
from data_contracts.price_book import (
    VERSION,
    Amount,
    MachineEntry,
    MachinePrice,
    PoolEntry,
    PriceBook,
    Term,
    price_on,
)
from data_contracts.resolved import Price
from data_contracts.yaml_text import Document, Problem, read_document

S = TypeVar("S", bound=BaseModel)
VARIABLE = "TRAINWRIGHT_MACHINES"
# What kind of node this machine is, where no pool says so.
THIS_MACHINE = "TRAINWRIGHT_MACHINE"
BUNDLED = Path(__file__).with_name("prices.yaml")
LOCAL = "local"


def _day_or_none(text: str) -> str:
    return text and iso_day(text)


class _EarlierMachine(Section):
    """An entry of an earlier catalogue."""

    devices: int = Field(ge=0)
    """Accelerators of a node."""
    memory_bytes: int = Field(ge=0)
    """Memory of one accelerator in bytes."""
    usd_per_hour: Amount
    """Price of the whole node."""
    price_date: Annotated[str, AfterValidator(_day_or_none)] = ""
    """The day of that price; "": it has none."""
    source: str = ""
    """Where the price was read."""


class _EarlierCatalogue(Section):
    machines: dict[str, _EarlierMachine]
    """Machines, by name."""


def read_book(path: Path, variable: str) -> PriceBook:
    """A price book; UsageError with `file:line: field: what` for a file that is not one.

    Args:
        variable: that names the file, for what to do about a missing one; "" for the shipped book.
    """
    advice = f"name a price book in {variable}" if variable else "install Trainwright again"
    document = read_document(path, "a price book", advice)
    if "version" not in document.value:
        return _earlier(document)
    return validated(document, PriceBook, VERSION)


def validated(document: Document, model: type[S], newest: int) -> S:
    """A document as `model`; UsageError with `file:line: field: what` for each mistake, or a version above `newest`."""
    version = document.value.get("version")
    if isinstance(version, int) and version > newest:
        sentence = f"{version} is newer than the {newest} that this Trainwright reads; upgrade Trainwright"
        raise mistaken(document, [Problem(("version",), sentence)])
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise mistaken(document, problems(error, model, document.value)) from None


def _earlier(document: Document) -> PriceBook:
    """A catalogue of an earlier version as a book: its prices are in USD; 0 without a day is no price."""
    below = {("machines", *field): place for field, place in document.places.items() if field}
    nested = Document(document.name, {"machines": document.value}, {(): document.place(()), **below})
    try:
        found = _EarlierCatalogue.model_validate(nested.value)
    except ValidationError as error:
        wrong = problems(error, _EarlierCatalogue, nested.value)
        raise mistaken(document, [Problem(one.field[1:], one.sentence) for one in wrong]) from None
    return PriceBook(version=1, machines={name: _entry(document, name, one) for name, one in found.machines.items()})


def _entry(document: Document, name: str, earlier: _EarlierMachine) -> MachineEntry:
    prices: list[MachinePrice] = []
    if earlier.price_date:
        prices = [
            MachinePrice(date=earlier.price_date, currency="USD", source=earlier.source, per_hour=earlier.usd_per_hour)
        ]
    elif earlier.usd_per_hour:
        sentence = "a price needs its day; add price_date, such as 2026-11-09"
        raise mistaken(document, [Problem((name, "usd_per_hour"), sentence)])
    return MachineEntry(devices=earlier.devices, memory_bytes=earlier.memory_bytes, prices=prices)


def mistaken(document: Document, wrong: list[Problem]) -> UsageError:
    """The error for a file, which is not a spec, with these mistakes."""
    found = document.error(wrong)
    return UsageError(found.message, details=found.details)


class Machine(Record):
    """One kind of node.

    Attributes:
        devices: number of accelerators; 0 for CPU only.
        memory_bytes: memory of one accelerator; 0 if unknown.
        watts: power of the whole node at work; None if unknown.
        relative_speed: of one accelerator beside others with this figure; None if unknown.
        prices: of the whole node; empty: what it costs is unknown.
    """

    name: str
    devices: int = 0
    memory_bytes: int = 0
    watts: float | None = None
    relative_speed: float | None = None
    prices: tuple[MachinePrice, ...] = ()

    def price(self, day: str, region: str = "", term: Term = "on-demand", pool: str = "") -> Price:
        """What a node costs on `day`, for the records of a run; `per_hour` is None if the book does not say."""
        found = price_on(self.prices, day, region, term)
        priced = partial(
            Price, region=region, term=term, machine=self.name, devices=self.devices, pool=pool, watts=self.watts
        )
        if found is None:
            return priced(per_hour=None, price_date="")
        return priced(per_hour=found.per_hour, currency=found.currency, price_date=found.date)

    @property
    def newest_per_hour(self) -> float:
        """Its newest on-demand price, to compare machines of one currency; infinite if it has none."""
        known = [one for one in self.prices if one.term == "on-demand"]
        return max(known, key=lambda one: one.date).per_hour if known else float("inf")


class Prices(Record):
    """The shipped book with the user's in front."""

    machines: dict[str, Machine]
    pools: dict[str, PoolEntry]

    def of_pool(self, pool: str, day: str) -> Price:
        """What a node of a Prefect work pool costs; unknown if no book says which machine the pool has."""
        entry = self.pools.get(pool)
        if entry is None:
            return Price(machine="", per_hour=None, price_date="", pool=pool)
        return self.machines[entry.machine].price(day, entry.region, entry.term, pool)


def prices() -> Prices:
    """Every machine and pool; UsageError, with file and line, for a file that is not a price book."""
    shipped = _shipped()
    named = os.environ.get(VARIABLE)
    own = PriceBook(version=1) if not named else read_book(Path(named), VARIABLE)
    machines = dict(shipped)
    for name, entry in own.machines.items():
        known = shipped.get(name, Machine(name=name))
        machines[name] = Machine(
            name=name,
            devices=known.devices if entry.devices is None else entry.devices,
            memory_bytes=known.memory_bytes if entry.memory_bytes is None else entry.memory_bytes,
            watts=known.watts if entry.watts is None else entry.watts,
            relative_speed=entry.relative_speed or known.relative_speed,
            prices=tuple(entry.prices),
        )
    for pool, place in own.pools.items():
        if place.machine not in machines:
            raise UsageError(
                f"{named}: pools.{pool}: the price book has no machine {place.machine!r}.",
                remedy=_near(place.machine, machines),
            )
    return Prices(machines=machines, pools=own.pools)


def catalogue() -> dict[str, Machine]:
    """Every machine by name."""
    return prices().machines


def machine(name: str, field: str = "train.machine") -> Machine:
    """The machine called `name`; if there is none, UsageError that suggests the nearest name."""
    known = catalogue()
    if name in known:
        return known[name]
    raise UsageError(f"{field}: the price book has no machine {name!r}.", remedy=_near(name, known))


def this_machine() -> str:
    """The kind of node that this machine is, by its environment; `local` if that does not say."""
    return os.environ.get(THIS_MACHINE) or LOCAL


def check_devices(machine: Machine, devices: int, lightning: Mapping[str, Any], section: str = "train") -> None:
    """UsageError if a section requests more devices per node than the machine has."""
    if machine.devices and devices > machine.devices and not on_cpu(lightning):
        enough = [one for one in catalogue().values() if one.devices >= devices]
        other = f", or train.machine {min(enough, key=lambda one: one.newest_per_hour).name}" if enough else ""
        raise UsageError(
            f"{section}.devices: {devices}, but the machine {machine.name} has {machine.devices}.",
            remedy=f"Ask for at most {machine.devices}, or for more {section}.nodes{other}.",
        )


def on_cpu(lightning: Mapping[str, Any]) -> bool:
    """Whether a Lightning config makes the training ignore a machine's devices."""
    return (lightning.get("trainer") or {}).get("accelerator") == "cpu"


@cache
def _shipped() -> dict[str, Machine]:
    book = read_book(BUNDLED, "")
    return {
        name: Machine(
            name=name,
            devices=entry.devices or 0,
            memory_bytes=entry.memory_bytes or 0,
            watts=entry.watts,
            relative_speed=entry.relative_speed,
            prices=tuple(entry.prices),
        )
        for name, entry in book.machines.items()
    }


def _near(name: str, machines: Mapping[str, Machine]) -> str:
    near = difflib.get_close_matches(name, machines, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(sorted(machines))}."
    return f"{hint} A file named by {VARIABLE} can add machines."
