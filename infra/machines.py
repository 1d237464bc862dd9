"""The machine catalogue: devices, memory and dated price of each kind of node.

The bundled `machines.yaml` has list prices. A file of the same form, named by TRAINWRIGHT_MACHINES, adds entries and
replaces entries of the same name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.handoffs import Record

VARIABLE = "TRAINWRIGHT_MACHINES"
BUNDLED = Path(__file__).with_name("machines.yaml")


class Machine(Record):
    """One kind of node.

    Attributes:
        devices: number of accelerators; 0 for CPU only.
        memory_bytes: memory of one accelerator; 0 if unknown.
        usd_per_hour: price of the whole node.
        price_date: ISO date of that price; "" if unknown.
        source: where the price was read.
    """

    name: str
    devices: int
    memory_bytes: int
    usd_per_hour: float
    price_date: str
    source: str = ""


def catalogue() -> dict[str, Machine]:
    """Every machine by name; UsageError for a file that cannot be read as a catalogue."""
    named = os.environ.get(VARIABLE)
    found = _read(BUNDLED)
    if named:
        found.update(_read(Path(named)))
    return found


def machine(name: str) -> Machine:
    """The machine called `name`; if there is none, UsageError that suggests the nearest name."""
    known = catalogue()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(sorted(known))}."
    raise UsageError(
        f"train.machine: the machine catalogue has no {name!r}.",
        remedy=f"{hint} A file named by {VARIABLE} can add machines.",
    )


def check_devices(found: Machine, devices: int, lightning: Mapping[str, Any], section: str = "train") -> None:
    """UsageError if a section requests more devices per node than the machine has."""
    if found.devices and devices > found.devices and not on_cpu(lightning):
        enough = [one for one in catalogue().values() if one.devices >= devices]
        other = f", or train.machine {min(enough, key=lambda one: one.usd_per_hour).name}" if enough else ""
        raise UsageError(
            f"{section}.devices: {devices}, but the machine {found.name} has {found.devices}.",
            remedy=f"Ask for at most {found.devices}, or for more {section}.nodes{other}.",
        )


def on_cpu(lightning: Mapping[str, Any]) -> bool:
    """Whether a Lightning config makes the training ignore a machine's devices."""
    return (lightning.get("trainer") or {}).get("accelerator") == "cpu"


def _read(path: Path) -> dict[str, Machine]:
    import yaml
    from pydantic import ValidationError

    try:
        entries = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: the machine catalogue cannot be read: {error}.", remedy=f"Correct {VARIABLE}, or the file."
        ) from error
    if not isinstance(entries, dict):
        raise UsageError(
            f"{path} is not a machine catalogue, which maps names to machines.",
            remedy=f"Correct {VARIABLE}, or the file.",
        )
    found = {}
    for name, fields in entries.items():
        try:
            found[str(name)] = Machine(name=str(name), **_dated(fields))
        except (ValidationError, TypeError) as error:
            raise UsageError(
                f"{path}: {name}: {_first(error)}.", remedy="Correct this entry of the catalogue."
            ) from error
    return found


def _dated(fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise TypeError("a machine is a mapping of devices, memory_bytes, usd_per_hour and price_date")
    # YAML reads a bare 2026-01-31 as a date.
    return {**fields, "price_date": str(fields.get("price_date", ""))}


def _first(error: Exception) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)
