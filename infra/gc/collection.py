"""Deletes what nothing reaches, one thing after the other, each asked about again at the last moment.

May be cut off anywhere and begun again: what is deleted has a tombstone first, and nothing goes before what names it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from infra.gc.census import take_census
from infra.gc.things import Condemned, Limits, Thing, condemn, limit_s, reached
from infra.launch.keeper import PATIENCE_S, Keeper
from infra.store import Store, layout
from infra.store.backend import Leftover
from infra.store.store import day_end_s


@dataclass
class Collected:
    """What a collection deleted, or with a dry run would delete.

    Attributes:
        things: what goes, in order; leftovers: drafts and uploads that nobody ended.
        spared: what was taken up for use while this went on, and so stays.
        kept: how many things stay.
    """

    things: list[Condemned] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    kept: int = 0

    @property
    def bytes(self) -> int:
        """What that frees."""
        return sum(one.thing.bytes for one in self.things) + sum(one.bytes for one in self.leftovers)

    def to_json(self) -> dict[str, Any]:
        """As JSON-able objects."""
        things = [
            {"uri": one.thing.uri, "kind": one.thing.kind, "bytes": one.thing.bytes, "why": one.why}
            for one in self.things
        ]
        left = [asdict(one) for one in self.leftovers]
        return {"things": things, "leftovers": left, "spared": self.spared, "kept": self.kept, "bytes": self.bytes}


def collect(
    store: Store,
    *,
    by: str,
    limits: Limits | None = None,
    dry_run: bool = False,
    on_gone: Callable[[Condemned], None] = lambda one: None,
    patience_s: float = PATIENCE_S,
) -> Collected:
    """Delete what nothing reaches.

    Args:
        by: who asked, for the tombstones.
        on_gone: called after each thing is deleted.
        patience_s: how long the lease of a training must stand still before the training counts as nobody's.

    Raises: CorruptError if something that stays cannot be read; nothing is deleted then.
    """
    limits = limits or Limits()
    now = time.time()
    census = {thing.uri: thing for thing in take_census(store)}
    condemned = _outermost(condemn(census.values(), now, limits))
    left = [one for one in store.leftovers() if now - one.written_s >= limits.grace_s]
    done = Collected(leftovers=left, kept=len(census) - len(condemned))
    if dry_run:
        done.things = condemned
        return done
    spared: set[str] = set()
    for one in condemned:
        uri = one.thing.uri
        if uri not in spared and _delete(store, one, by, limits, patience_s):
            done.things.append(one)
            on_gone(one)
        else:
            # Whoever took it up will want what it names, too, all of which comes later in the list.
            spared |= reached([one.thing], census)
            done.spared.append(uri)
    for leftover in left:
        store.drop(leftover)
    _forget_claims(store, now - max(limits.keep_s, limits.grace_s))
    return done


def _outermost(condemned: list[Condemned]) -> list[Condemned]:
    """Without what lies in a training that goes as a whole."""
    whole = {one.thing.uri for one in condemned if one.thing.kind == "training"}
    return [one for one in condemned if one.thing.kind == "training" or _training(one.thing) not in whole]


def _training(thing: Thing) -> str:
    return "/".join(thing.uri.split("/")[:2]) if thing.uri.startswith("trainings/") else ""


def _delete(store: Store, one: Condemned, by: str, limits: Limits, patience_s: float) -> bool:
    thing = one.thing

    def in_use() -> bool:
        return time.time() - store.last_claim_s(thing.uri) < limit_s(thing, limits)

    def delete() -> bool:
        return store.remove(thing.uri, why=f"gc: {one.why}", by=by, unless=in_use)

    if thing.kind != "training":
        return delete()
    # Whoever would train it waits for the lease, and finds the tombstone when it gets it.
    keeper = Keeper(store, layout.lease(thing.uri), f"gc/{uuid.uuid4().hex[:12]}", patience_s=patience_s)
    try:
        keeper.start()
        return keeper.token(1.5 * patience_s + 1) is not None and delete()
    finally:
        keeper.stop()


def _forget_claims(store: Store, before_s: float) -> None:
    for file in store.stored("uses"):
        if day_end_s(file.path.rpartition("/")[2]) < before_s:
            store.forget(file.path)
