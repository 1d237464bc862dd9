"""Delete what nothing reaches, one item after the other, each checked again at the last moment.

It may be interrupted anywhere and repeated: a tombstone is written before each deletion, and nothing is deleted before
the items that name it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from data_contracts.errors import UsageError
from infra.gc.census import take_census
from infra.gc.retention import Deletion, Limits, StoreItem, items_to_delete, limit_s, reachable
from infra.quantities import duration
from infra.store import Store, layout
from infra.store.backend import MAX_CLOCK_DIFFERENCE_S, Leftover
from infra.store.lease import PATIENCE_S, LeaseKeeper
from infra.store.store import day_end_s


@dataclass
class Collected:
    """What a collection deleted, or would delete in a dry run.

    Attributes:
        deleted: the deleted items, in order.
        leftovers: unfinished drafts and uploads.
        spared: items that were claimed for use during the collection and therefore stay.
        kept: number of items that stay.
    """

    deleted: list[Deletion] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    kept: int = 0

    @property
    def bytes(self) -> int:
        """The number of bytes that the collection frees."""
        return sum(one.item.bytes for one in self.deleted) + sum(one.bytes for one in self.leftovers)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON-able objects."""
        items = [
            {"uri": one.item.uri, "kind": one.item.kind, "bytes": one.item.bytes, "why": one.why}
            for one in self.deleted
        ]
        left = [asdict(one) for one in self.leftovers]
        return {"things": items, "leftovers": left, "spared": self.spared, "kept": self.kept, "bytes": self.bytes}


def collect(
    store: Store,
    *,
    by: str,
    limits: Limits | None = None,
    dry_run: bool = False,
    on_gone: Callable[[Deletion], None] = lambda one: None,
    patience_s: float = PATIENCE_S,
) -> Collected:
    """Delete what nothing reaches.

    Args:
        by: who asked, for the tombstones.
        on_gone: called after each deletion.
        patience_s: how long a training's lease must stand still before the training counts as unused.

    Ages are measured by the clock that dates the store's files.

    Raises: CorruptError if something that stays cannot be read, or anything in the store is a link; UsageError if this
    machine's clock and the store's differ. Nothing is deleted then.
    """
    limits = limits or Limits()
    clock = _clock(store, dry_run)
    now = clock()
    census = {item.uri: item for item in take_census(store)}
    deletions = _outermost(items_to_delete(census.values(), now, limits))
    left = [one for one in store.leftovers() if now - one.written_s >= limits.grace_s]
    done = Collected(leftovers=left, kept=len(census) - len(deletions))
    if dry_run:
        done.deleted = deletions
        return done
    spared: set[str] = set()
    for one in deletions:
        uri = one.item.uri
        if uri not in spared and _delete(store, one, by, limits, patience_s, clock):
            done.deleted.append(one)
            on_gone(one)
        else:
            # Whoever claimed it also needs what it names, all of which comes later in the list.
            spared |= reachable([one.item], census)
            done.spared.append(uri)
    for leftover in left:
        store.drop(leftover)
    _forget_claims(store, now - max(limits.keep_s, limits.grace_s))
    return done


def _outermost(deletions: list[Deletion]) -> list[Deletion]:
    """The list without parts of a training that is deleted as a whole."""
    whole = {one.item.uri for one in deletions if one.item.kind == "training"}
    return [one for one in deletions if one.item.kind == "training" or _training(one.item) not in whole]


def _training(item: StoreItem) -> str:
    return "/".join(item.uri.split("/")[:2]) if item.uri.startswith("trainings/") else ""


def _clock(store: Store, dry_run: bool) -> Callable[[], float]:
    """A clock of the store's time; UsageError if this machine's clock, which dates claims and leases, differs."""
    asked = time.monotonic()
    try:
        now = store.now_s()
    except UsageError:
        if dry_run:  # this user may only read
            return time.time
        raise
    ahead_s = time.time() - now
    if abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S:
        difference = f"{duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'}"
        raise UsageError(
            f"This machine's clock is {difference} the clock that dates the files of {store.uri}; nothing was deleted.",
            remedy="Set the wrong clock (with NTP), then run gc again.",
        )
    return lambda: now + time.monotonic() - asked


def _delete(
    store: Store, one: Deletion, by: str, limits: Limits, patience_s: float, clock: Callable[[], float]
) -> bool:
    item = one.item

    def in_use() -> bool:
        return clock() - store.last_claim_s(item.uri) < limit_s(item, limits)

    def delete() -> bool:
        return store.remove(item.uri, why=f"gc: {one.why}", by=by, unless=in_use)

    if item.kind != "training":
        return delete()
    # A process that would train it waits for the lease, and finds the tombstone when it gets the lease.
    keeper = LeaseKeeper(store, layout.lease(item.uri), f"gc/{uuid.uuid4().hex[:12]}", patience_s=patience_s)
    try:
        keeper.start()
        return keeper.token(1.5 * patience_s + 1) is not None and delete()
    finally:
        keeper.stop()


def _forget_claims(store: Store, before_s: float) -> None:
    for file in store.stored("uses"):
        if day_end_s(file.path.rpartition("/")[2]) < before_s:
            store.forget(file.path)
