"""The store: sealed directories, pointers and leases, in a folder or on S3. Only this package builds paths."""

from __future__ import annotations

from infra.store import layout
from infra.store.lease import Lease
from infra.store.opening import absolute_address, check_promises, is_store, open_at, open_store
from infra.store.records import Pointer, PointerMoved, Versioned
from infra.store.seal import AlreadySealed, Manifest, Writer
from infra.store.store import Store

__all__ = [
    "AlreadySealed",
    "Lease",
    "Manifest",
    "Pointer",
    "PointerMoved",
    "Store",
    "Versioned",
    "Writer",
    "absolute_address",
    "check_promises",
    "is_store",
    "layout",
    "open_at",
    "open_store",
]
