"""Open a store, or make it. Where its pointers and names are decided is fixed when it is made."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.messages.children import StoreAddress
from infra.machine import settings
from infra.store import layout
from infra.store.backends.backend import Backend
from infra.store.creation import IN_STORE, check_server, make, names_of
from infra.store.records import parsed
from infra.store.store import Store

# The database with the pointers of a node's store; in the environment of a node that another machine starts.
STORE_POINTERS = "TRAINWRIGHT_STORE_POINTERS"

log = logging.getLogger("trainwright")


def absolute_address(uri: str, folder: Path | None = None) -> str:
    """A store's address for processes with another working folder: that of a server stays, a path becomes absolute.

    Args:
        folder: what a path is relative to; default: this process's working folder.
    """
    return uri if "://" in uri else str(((folder or Path()) / uri).resolve())


def open_store(
    uri: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    create: bool = True,
    tested: bool = False,
    pointers: str | None = None,
) -> Store:
    """The store at a folder or at `s3://bucket/prefix`.

    Args:
        uri: the store's address.
        storage_options: for S3: options of s3fs, with credentials named (`env:NAME`, `profile:NAME`).
        create: make the store if there is none; implies `tested`.
        tested: whether this machine must have tested the server lately: for a process that may decide something.
        pointers: the database that decides pointers and names. It must be the one that the store was made with; a new
            store is made with it. None: the one that the store was made with, if this user has approved it on this
            machine; a new store is made without a database. With `create`, the database is approved and remembered.

    Raises: UsageError if the store is not permitted, does not honour conditional writes, has a newer schema, was made
    with other pointers or with a database that nobody approved, or does not exist and `create` is False;
    StorageUnavailable if it does not answer.
    """
    backend = _backend(uri, storage_options or {})
    store = Store(backend, storage_options or {})
    try:
        about = store.read_json(layout.STORE)
    except FileNotFoundError:
        if not create:
            raise UsageError(
                f"There is no store at {store.uri}.", remedy="Name one that exists, or run a pipeline to make it."
            ) from None
        make(backend, pointers)
        about = store.read_json(layout.STORE)
    held, schema = parsed(layout.STORE, _pointers, about), about.get("schema", 1)
    if pointers not in (None, held):
        raise UsageError(
            f"The store {store.uri} has its pointers in {'itself' if held == IN_STORE else held}, not in {pointers}; "
            "a store's pointers are fixed when it is made.",
            remedy="Name the database that it was made with, or leave pointers out.",
        )
    if held == IN_STORE:
        if create or tested:
            check_server(backend)
        return Store(backend, store.storage_options, schema)
    if pointers is None:
        _check_approved(backend, store.storage_options, held)
    named = _named(backend, about)
    if pointers is not None and create:
        settings.remember_store(store.uri, store.storage_options, held)
    return Store(named, store.storage_options, schema, pointers=held)


def is_store(uri: str, storage_options: Mapping[str, Any]) -> bool:
    """Whether there is a store at an address; raises as `open_store` for one that no store can have."""
    return Store(_backend(uri, storage_options), storage_options).exists(layout.STORE)


def check_promises(store: Store) -> None:
    """UsageError if the server of a store no longer honours conditional writes, where no database decides."""
    if store.pointers is None:
        check_server(_backend(store.uri, store.storage_options), again=True)


def open_at(address: StoreAddress) -> Store:
    """The existing store at an address that a request names; raises as `open_store`."""
    return open_store(address.uri, address.options, create=False, pointers=address.pointers)


def _check_approved(backend: Backend, storage_options: dict[str, Any], held: str) -> None:
    """UsageError unless this user named the database, which receives a password; `store.json` is not enough."""
    if backend.is_local:
        raise UsageError(
            f"The store {backend.uri} says that its pointers are in {held}, but a folder decides its names itself.",
            remedy="Restore its store.json, or name another store.",
        )
    if os.environ.get(STORE_POINTERS) == held:
        return
    known = [entry for entry in settings.known_stores() if entry["uri"].rstrip("/") == backend.uri]
    if any(entry.get("pointers") == held for entry in known):
        return
    if any("pointers" not in entry for entry in known):  # used with an earlier version
        log.warning(
            "The store %s has been used on this machine; its pointer database %s is approved from now on.",
            backend.uri,
            held,
        )
        settings.remember_store(backend.uri, storage_options, held)
        return
    raise UsageError(
        f"The store {backend.uri} says that its pointers are in {held}, which nobody on this machine has approved; it "
        "was not connected to.",
        remedy="If that database is the right one, name it as `pointers:` under `store:` in the spec, or run "
        f"trainwright store init {backend.uri} --pointers {held}.",
    )


def _pointers(about: dict[str, Any]) -> str:
    """Where a store has its pointers, as its `store.json` says; ValueError if the record does not describe a store."""
    held = about["pointers"]
    named = held == IN_STORE or isinstance(about["uri"], str)
    if not named or not isinstance(held, str) or not isinstance(about.get("host", {"name": ""})["name"], str):
        raise ValueError("it does not describe a store")
    return held


def _named(objects: Backend, about: dict[str, Any]) -> Backend:
    from infra.store.backends.database_backend import NamedBackend

    backend = NamedBackend(objects, names_of(objects, about))
    backend.sweep()
    return backend


def _backend(uri: str, storage_options: Mapping[str, Any]) -> Backend:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        from infra.store.backends.folder import FolderBackend

        folder = FolderBackend(Path(os.path.expanduser(uri)))
        folder.sweep()
        return folder
    if scheme == "s3" and rest.strip("/"):
        from infra.store.backends.s3 import S3Backend

        return S3Backend(uri, storage_options)
    raise UsageError(f"{uri!r} cannot be a store.", remedy="Name a folder, or s3://bucket/prefix.")
