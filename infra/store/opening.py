"""Opens a store, or has it made; where its pointers and names are decided was fixed then, and is what counts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_contracts.errors import CorruptError, UsageError
from infra.store import layout
from infra.store.backend import Backend
from infra.store.making import IN_STORE, make, names_of
from infra.store.store import Store

SCHEMA = 2


def open_store(
    uri: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    create: bool = True,
    pointers: str | None = None,
) -> Store:
    """The store at a folder or at `s3://bucket/prefix`.

    Args:
        uri: where it is.
        storage_options: for S3: options of s3fs, credentials named (`env:NAME`, `profile:NAME`).
        create: make it if there is none.
        pointers: the database that decides its pointers and names, as it was made or is to be made; None: as it was
            made, and without one if it is to be made.

    Raises: UsageError if it is not permitted, does not honour conditional writes, has a newer schema, was made with
    other pointers, or is not there and `create` is False; StorageUnavailable if it does not answer.
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
    schema, held = (about.get("schema"), about.get("pointers")) if isinstance(about, dict) else (None, None)
    if not isinstance(schema, int) or (schema <= SCHEMA and not isinstance(held, str)):
        raise CorruptError(f"{layout.STORE} in {store.uri} does not describe a store.", details={"file": layout.STORE})
    if schema > SCHEMA:
        raise UsageError(
            f"The store {store.uri} has schema {schema}, newer than the {SCHEMA} that this Trainwright reads.",
            remedy="Upgrade Trainwright.",
        )
    if pointers not in (None, held):
        raise UsageError(
            f"The store {store.uri} has its pointers in {'itself' if held == IN_STORE else held}, not in {pointers}; "
            "that was fixed when it was made.",
            remedy="Name the ones it was made with, or none.",
        )
    return store if held == IN_STORE else Store(_named(backend, about), store.storage_options)


def _named(objects: Backend, about: dict[str, Any]) -> Backend:
    from infra.store.named import NamedBackend

    backend = NamedBackend(objects, names_of(objects, about))
    backend.sweep()
    return backend


def _backend(uri: str, storage_options: Mapping[str, Any]) -> Backend:
    scheme, found, rest = uri.partition("://")
    if not found:
        from infra.store.folder import FolderBackend

        folder = FolderBackend(Path(os.path.expanduser(uri)))
        folder.sweep()
        return folder
    if scheme == "s3" and rest.strip("/"):
        from infra.store.s3 import S3Backend

        return S3Backend(uri, storage_options)
    raise UsageError(f"{uri!r} cannot be a store.", remedy="Name a folder, or s3://bucket/prefix.")
