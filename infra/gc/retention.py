"""Decide what stays and what goes, as a pure function of a store's census; reads and writes nothing.

An item stays while it is young, while it is a root, or while an item that stays names it, by its URI or by its id,
anywhere in its content. So a field that a later version adds keeps what it names without a change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from data_contracts.errors import CorruptError

Kind = Literal[
    "model", "receipt", "alias", "run", "trigger", "training", "checkpoint", "log",
    "evaluation", "dataset", "contract", "code", "import", "recipe", "delivery", "canary",
]  # fmt: skip
# Only a sealed directory of these kinds is named by another item's record.
_NAMED_WHEN_SEALED = ("evaluation", "dataset", "contract", "code", "import", "recipe")
DAY_S = 86_400.0


@dataclass(frozen=True)
class Limits:
    """How old an item must be before it may go.

    Attributes:
        keep_s: for finished results and records of runs, counted from when they were made or last claimed for use.
        grace_s: for unfinished and all other items: no work in progress is this old.
    """

    keep_s: float = 31 * DAY_S
    grace_s: float = DAY_S


@dataclass(frozen=True)
class StoreItem:
    """A part of the store that stays or goes as a whole.

    Attributes:
        id: the id in its manifest; "" without a manifest.
        touched_s: when it was last written or claimed for use, as Unix time.
        names: URIs and ids that it names.
        root: why it stays whatever its age, or "".
        whole: whether it is finished: sealed, or a record that is complete by itself.
        broken: what is wrong with it, if it is unknown what it names; else "".
    """

    uri: str
    kind: Kind
    bytes: int
    touched_s: float
    id: str = ""
    names: frozenset[str] = frozenset()
    root: str = ""
    whole: bool = True
    broken: str = ""


@dataclass(frozen=True)
class Deletion:
    """An item that goes, and the reason as a clause for a person."""

    item: StoreItem
    why: str


def items_to_delete(items: Iterable[StoreItem], now_s: float, limits: Limits) -> list[Deletion]:
    """The items that may go, in an order in which each item goes after everything that names it.

    Raises CorruptError if an item that stays cannot be read: it is then unknown what else must stay.
    """
    census = {item.uri: item for item in items}
    stays = reachable([one for one in census.values() if one.root or _is_young(one, now_s, limits)], census)
    named = {name for uri in stays for name in census[uri].names}
    for uri in sorted(stays):
        broken = census[uri].broken
        if uri in named and not census[uri].whole and census[uri].kind in _NAMED_WHEN_SEALED:
            broken = f"{uri}/manifest.json is missing."
        if broken:
            raise CorruptError(
                f"{broken} Nothing was deleted, because it is unknown what this file refers to.",
                remedy="Restore the file from a copy, or remove it if it is not needed.",
            )
    goes = {uri: item for uri, item in census.items() if uri not in stays}
    return [Deletion(item, _why(item, now_s)) for item in _namers_first(goes)]


def reachable(roots: Iterable[StoreItem], census: Mapping[str, StoreItem]) -> set[str]:
    """The URIs of `roots` and of all that they name, directly or through others."""
    by_id: dict[str, list[str]] = {}
    for item in census.values():
        by_id.setdefault(item.id, []).append(item.uri)
    seen: set[str] = set()
    waiting = [item.uri for item in roots]
    while waiting:
        uri = waiting.pop()
        if uri not in seen:
            seen.add(uri)
            waiting += _named(census[uri], census, by_id)
    return seen


def _named(item: StoreItem, census: Mapping[str, StoreItem], by_id: Mapping[str, list[str]]) -> Iterator[str]:
    for name in item.names:
        if name:
            yield from by_id.get(name, ())
        # A checkpoint, or a mark beside it, names the training that it is part of.
        while name:
            if name in census:
                yield name
            name = name.rpartition("/")[0]


def _is_young(item: StoreItem, now_s: float, limits: Limits) -> bool:
    return now_s - item.touched_s < limit_s(item, limits)


def limit_s(item: StoreItem, limits: Limits) -> float:
    """How old this item must be before it may go."""
    lasts = item.whole and item.kind not in ("checkpoint", "trigger")
    return max(limits.keep_s, limits.grace_s) if lasts else limits.grace_s


def _why(item: StoreItem, now_s: float) -> str:
    days = f"{(now_s - item.touched_s) / DAY_S:.0f} days"
    if item.kind == "run":
        return f"ended {days} ago"
    if item.kind == "trigger":
        return "its run is deleted"
    if item.kind == "log":
        return f"of a generation that ended, {days} old"
    if item.kind == "checkpoint":
        return f"never committed, or its training is deleted; {days} old"
    if not item.whole:
        return f"never finished, untouched for {days}"
    return f"nothing names it, not used for {days}"


def _namers_first(goes: Mapping[str, StoreItem]) -> list[StoreItem]:
    by_id: dict[str, list[str]] = {}
    for item in goes.values():
        by_id.setdefault(item.id, []).append(item.uri)
    done: set[str] = set()
    ordered: list[StoreItem] = []
    for start in sorted(goes):
        waiting = [(start, False)]
        while waiting:
            uri, is_left = waiting.pop()
            if is_left:
                ordered.append(goes[uri])
            elif uri not in done:
                done.add(uri)
                waiting.append((uri, True))
                waiting += [(name, False) for name in sorted(set(_named(goes[uri], goes, by_id)))]
    return ordered[::-1]
