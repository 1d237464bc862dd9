"""Opens a store, and makes one: a place without conditional writes is refused before anything is kept there."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_contracts.errors import CorruptError, UsageError
from infra import audit
from infra.store import layout
from infra.store.backend import Backend, NotImplementedThere, Stale
from infra.store.store import Store

SCHEMA = 1


def open_store(uri: str, storage_options: Mapping[str, Any] | None = None, *, create: bool = True) -> Store:
    """The store at a folder or at `s3://bucket/prefix`.

    Args:
        uri: where it is.
        storage_options: for S3: options of s3fs, credentials named (`env:NAME`, `profile:NAME`).
        create: make it if there is none.

    Raises: UsageError if it is not permitted, does not honour conditional writes, has a newer schema, or is not
    there and `create` is False; StorageUnavailable if it does not answer.
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
        about = _make(store, backend)
    schema = about.get("schema") if isinstance(about, dict) else None
    if not isinstance(schema, int):
        raise CorruptError(f"{layout.STORE} in {store.uri} does not describe a store.", details={"file": layout.STORE})
    if schema > SCHEMA:
        raise UsageError(
            f"The store {store.uri} has schema {schema}, newer than the {SCHEMA} that this Trainwright reads.",
            remedy="Upgrade Trainwright.",
        )
    return store


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


def _make(store: Store, backend: Backend) -> Any:
    found = {name: _honoured(probe, backend) for name, probe in PROBES.items()}
    ignored = [name for name, honoured in found.items() if not honoured]
    if ignored:
        raise UsageError(
            f"The server of {store.uri} does not honour conditional writes ({' and '.join(ignored)}), so two writers "
            "could overwrite each other.",
            remedy="Name a store on a server that honours If-None-Match and If-Match, or a folder.",
        )
    if store.is_local:
        # A store inside a repository must not make the tree that it records count as changed.
        with contextlib.suppress(FileExistsError):
            store.create(".gitignore", b"*\n")
    with contextlib.suppress(FileExistsError):  # another process made it meanwhile; its word counts
        store.create_json(layout.STORE, {"made": audit.now(), "pointers": "store", "probe": found, "schema": SCHEMA})
    return store.read_json(layout.STORE)


def _honoured(probe: Callable[[Backend], bool], backend: Backend) -> bool:
    try:
        return probe(backend)
    except (Stale, FileExistsError, NotImplementedThere):  # a condition that holds was refused, or is not known at all
        return False


def _probe_create(backend: Backend) -> bool:
    path = f".probe/{uuid.uuid4().hex}"
    backend.create(path, b"first")
    try:
        backend.create(path, b"second")
    except FileExistsError:
        return backend.read(path)[0] == b"first"
    finally:
        backend.delete(path)
    return False


def _probe_overwrite(backend: Backend) -> bool:
    path = f".probe/{uuid.uuid4().hex}"
    try:
        first = backend.create(path, b"first")
        second = backend.replace(path, b"second", first)
        try:
            backend.replace(path, b"third", first)
        except Stale:
            return backend.read(path) == (b"second", second)
        return False
    finally:
        backend.delete(path)


def _probe_large(backend: Backend) -> bool:
    path = f".probe/{uuid.uuid4().hex}"
    try:
        backend.create(path, b"first")
        return backend.creates_large_once(path) and backend.read(path)[0] == b"first"
    finally:
        backend.delete(path)


PROBES: dict[str, Callable[[Backend], bool]] = {
    "conditional_create": _probe_create,
    "conditional_large_create": _probe_large,
    "conditional_overwrite": _probe_overwrite,
}
