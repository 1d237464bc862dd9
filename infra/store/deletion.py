"""Deletes from a store without harm to processes that still use it.

A process claims a directory before it uses it, and writes a tombstone before it deletes one.

`remove` looks for claims after it has written the tombstone, and `claim` looks for a tombstone after it has written the
claim, so at least one of them sees the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from data_contracts.errors import UsageError
from infra import audit
from infra.store import layout
from infra.store.backends.backend import Backend

if TYPE_CHECKING:
    from infra.store.store import Store


def claim(store: Store, uri: str) -> bool:
    """Record that `uri` is claimed for use today; False if it is deleted or about to be.

    Call this before every use of a directory that the caller did not make.
    """
    # A user who may only read, for a plan, cannot write the claim and makes nothing that could be lost.
    with contextlib.suppress(UsageError):
        store.create_once(layout.use(uri, f"{datetime.now(UTC):%Y-%m-%d}"), b"")
    return not store.exists(layout.tombstone(uri))


def last_claim_s(store: Store, uri: str) -> float:
    """When `uri` was last claimed, as Unix time: the end of that day; 0 if it never was."""
    days = store.list(layout.uses(uri))
    return day_end_s(days[-1]) if days else 0.0


def remove(store: Store, backend: Backend, uri: str, *, why: str, by: str, unless: Callable[[], bool]) -> bool:
    """Delete a directory or a file: write a tombstone first, then delete manifests, then files.

    May be repeated if interrupted. A link is deleted itself, never its target.

    Args:
        unless: checked again once the tombstone is written; if True, nothing is deleted and False is returned.
    """
    path = layout.check_path(uri)
    names = backend.walk(path, links=True) or [""]  # without files in it, it is a file itself
    if unless():
        return False
    about = {"by": by, "time": audit.now(), "uri": uri, "why": why}
    store.create_once(layout.tombstone(uri), about)
    # The tombstone stays although nothing is deleted: a process that has seen it makes its own directory meanwhile.
    if unless():
        return False
    for name in sorted(names, key=lambda name: (name.rpartition("/")[2] != layout.MANIFEST, name)):
        backend.delete(f"{uri}/{name}" if name else uri)
    return True


def day_end_s(day: str) -> float:
    """The end of an ISO day in UTC, as Unix time; 0 if the text is not a day."""
    try:
        return datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() + 86_400
    except ValueError:
        return 0.0
