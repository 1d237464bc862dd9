"""Reads a file of prices: a price book, or the catalogue of machines that earlier versions read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec.base import Section
from data_contracts.price_book import VERSION, Amount, MachineEntry, MachinePrice, PriceBook
from data_contracts.times import iso_day
from data_contracts.validation_errors import problems
from data_contracts.yaml_document import Document, Problem
from data_contracts.yaml_text import read_document


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
    version = document.value["version"]
    if isinstance(version, int) and version > VERSION:
        sentence = f"{version} is newer than the {VERSION} that this Trainwright reads; upgrade Trainwright"
        raise _error(document, [Problem(("version",), sentence)])
    try:
        return PriceBook.model_validate(document.value)
    except ValidationError as error:
        raise _error(document, problems(error, PriceBook, document.value)) from None


def _earlier(document: Document) -> PriceBook:
    """A catalogue of an earlier version as a book: its prices are in USD; 0 without a day is no price."""
    below = {("machines", *field): place for field, place in document.places.items() if field}
    nested = Document(document.name, {"machines": document.value}, {(): document.place(()), **below})
    try:
        found = _EarlierCatalogue.model_validate(nested.value)
    except ValidationError as error:
        wrong = problems(error, _EarlierCatalogue, nested.value)
        raise _error(document, [Problem(one.field[1:], one.sentence) for one in wrong]) from None
    return PriceBook(version=1, machines={name: _entry(document, name, one) for name, one in found.machines.items()})


def _entry(document: Document, name: str, one: _EarlierMachine) -> MachineEntry:
    prices: list[MachinePrice] = []
    if one.price_date:
        dated: dict[str, Any] = {"date": one.price_date, "currency": "USD", "source": one.source}
        prices = [MachinePrice(per_hour=one.usd_per_hour, **dated)]
    elif one.usd_per_hour:
        sentence = "a price needs its day; add price_date, such as 2026-11-09"
        raise _error(document, [Problem((name, "usd_per_hour"), sentence)])
    return MachineEntry(devices=one.devices, memory_bytes=one.memory_bytes, prices=prices)


def _error(document: Document, wrong: list[Problem]) -> UsageError:
    found = document.error(wrong)
    return UsageError(found.message, details=found.details)
