"""Attempts at a reuse key: seals an attempt, even if another process seals other content, and finds the newest ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from infra.store import layout
from infra.store.damage import passing_over
from infra.store.seal import Manifest
from infra.store.store import Store
from infra.store.writer import Writer

# Of several processes that seal at once, one succeeds at each attempt: the windows of a backfill may share one key.
TRIES = 32


def seal_attempt(store: Store, area: str, key: str, fill: Callable[[Writer], Ref]) -> Ref:
    """What `fill` seals in the first attempt at `key` that has no other content.

    The bytes of a process that was killed, or of one that writes at this moment, stay as they are: the two cannot be
    told apart. Raises what `fill` raises last, if it meets other content again and again.
    """
    return seal_from(store, store.next_attempt(area, key), fill)


def seal_from(store: Store, uri: str, fill: Callable[[Writer], Ref]) -> Ref:
    """As `seal_attempt`, beginning with the attempt `uri` that the caller chose before."""
    area, _, name = uri.partition("/")
    attempt = layout.split_attempt(name)
    assert attempt is not None
    key, _ = attempt
    for _ in range(TRIES - 1):
        try:
            return fill(store.writer(uri))
        except CorruptError:
            uri = layout.attempt(area, key, max(store.attempts(area, key), default=-1) + 1)
    return fill(store.writer(uri))


def newest_sealed(store: Store, area: str, key: str, most: int) -> Iterator[Manifest]:
    """The manifests of up to `most` sealed attempts at a key, the newest first.

    Attempts that are deleted, damaged or readable only by another user are left out.
    """
    left = most
    for n in reversed(store.attempts(area, key)):
        uri = layout.attempt(area, key, n)
        if store.exists(layout.tombstone(uri)) or not store.claim(uri):
            continue
        with contextlib.suppress(UsageError), passing_over():
            yield store.manifest(uri)
            left -= 1
        if not left:
            return
