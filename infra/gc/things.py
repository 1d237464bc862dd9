"""What stays and what goes, as a pure function of a store's census; nothing is read or written here.

A thing stays while it is young, while it is a root, or while a thing that stays names it, by its URI or by its id,
anywhere in what it says. So a field that some later version adds keeps what it names without a change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from data_contracts.errors import CorruptError

Kind = Literal[
    "model", "receipt", "alias", "run", "trigger", "training", "checkpoint", "log",
    "evaluation", "dataset", "contract", "code", "import",
]  # fmt: skip
DAY_S = 86_400.0


@dataclass(frozen=True)
class Limits:
    """How old a thing must be before it may go.

    Attributes:
        keep_s: whole results and records of runs, counted from when they were made or taken up for use last.
        grace_s: what was never finished, and everything else: no work under way is as old as this.
    """

    keep_s: float = 30 * DAY_S
    grace_s: float = DAY_S


@dataclass(frozen=True)
class Thing:
    """A part of the store that stays or goes as a whole.

    Attributes:
        id: what its manifest says; "" without one.
        touched_s: when it was last written to or taken up for use, as Unix time.
        names: URIs and ids that it names.
        root: why it stays whatever its age, or "".
        whole: whether it is finished: sealed, or a record that is complete by itself.
        broken: what is wrong with it, if what it names cannot be told; else "".
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
class Condemned:
    """A thing that goes, and why, as a clause for a person."""

    thing: Thing
    why: str


def condemn(things: Iterable[Thing], now_s: float, limits: Limits) -> list[Condemned]:
    """What may go, so ordered that nothing goes before all that names it has gone.

    Raises CorruptError if a thing that stays cannot be read: nobody knows what else must stay then.
    """
    census = {thing.uri: thing for thing in things}
    stays = reached([one for one in census.values() if one.root or _is_young(one, now_s, limits)], census)
    for uri in sorted(stays):
        if census[uri].broken:
            raise CorruptError(
                f"{census[uri].broken} Nothing was deleted: it cannot be told what it names.",
                remedy="Restore the file from a copy, or take it away if it is not needed.",
            )
    goes = {uri: thing for uri, thing in census.items() if uri not in stays}
    return [Condemned(thing, _why(thing, now_s)) for thing in _namers_first(goes)]


def reached(roots: Iterable[Thing], census: Mapping[str, Thing]) -> set[str]:
    """The URIs of `roots` and of all that they name, directly or through others."""
    by_id: dict[str, list[str]] = {}
    for thing in census.values():
        by_id.setdefault(thing.id, []).append(thing.uri)
    found: set[str] = set()
    waiting = [thing.uri for thing in roots]
    while waiting:
        uri = waiting.pop()
        if uri not in found:
            found.add(uri)
            waiting += _named(census[uri], census, by_id)
    return found


def _named(thing: Thing, census: Mapping[str, Thing], by_id: Mapping[str, list[str]]) -> Iterator[str]:
    for name in thing.names:
        if name:
            yield from by_id.get(name, ())
        # A checkpoint, or a mark beside it, names the training that it lies in.
        while name:
            if name in census:
                yield name
            name = name.rpartition("/")[0]


def _is_young(thing: Thing, now_s: float, limits: Limits) -> bool:
    return now_s - thing.touched_s < limit_s(thing, limits)


def limit_s(thing: Thing, limits: Limits) -> float:
    """How old this thing must be before it may go."""
    lasts = thing.whole and thing.kind not in ("checkpoint", "trigger")
    return max(limits.keep_s, limits.grace_s) if lasts else limits.grace_s


def _why(thing: Thing, now_s: float) -> str:
    days = f"{(now_s - thing.touched_s) / DAY_S:.0f} days"
    if thing.kind == "run":
        return f"ended {days} ago"
    if thing.kind == "trigger":
        return "its run is gone or goes"
    if thing.kind == "log":
        return f"of a generation that ended, {days} old"
    if thing.kind == "checkpoint":
        return f"never committed, or its training goes; {days} old"
    if not thing.whole:
        return f"never finished, untouched for {days}"
    return f"nothing names it, not used for {days}"


def _namers_first(goes: Mapping[str, Thing]) -> list[Thing]:
    by_id: dict[str, list[str]] = {}
    for thing in goes.values():
        by_id.setdefault(thing.id, []).append(thing.uri)
    done: set[str] = set()
    ordered: list[Thing] = []
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
