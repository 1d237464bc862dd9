"""Makes a store: a place without conditional writes is refused at once, unless a database decides.

`store.json` is written last: where it is, the store is whole.
"""

from __future__ import annotations

import contextlib
import platform
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from data_contracts.canonical import digest, plain
from data_contracts.errors import UsageError
from infra import audit
from infra.store import layout
from infra.store.backend import Backend, NotImplementedThere, Stale

if TYPE_CHECKING:
    from infra.store.names import Names

_CLAIMS = ".making"
IN_STORE = "store"


def make(backend: Backend, pointers: str | None) -> None:
    """Make the store, with its pointers and names in the database `pointers` or decided where the bytes are.

    Another process that makes it meanwhile is let go first: what `store.json` says then is for the caller to read.
    """
    found = {name: _honoured(probe, backend) for name, probe in PROBES.items()}
    about = {"made": audit.now(), "pointers": pointers or IN_STORE, "probe": found, "schema": 1}
    if pointers is not None:
        _make_named(backend, pointers, {**about, "schema": 2, "uri": backend.uri, **_only_on(pointers)})
        return
    ignored = [name for name, honoured in found.items() if not honoured]
    if ignored:
        raise UsageError(
            f"The server of {backend.uri} does not honour conditional writes ({' and '.join(ignored)}), so two writers "
            "could overwrite each other.",
            remedy="Name a store on a server that honours If-None-Match and If-Match, or a folder, or have a database "
            f"decide: trainwright store init {backend.uri} --pointers postgresql://…",
        )
    if backend.is_local:
        # A store inside a repository must not make the tree that it records count as changed.
        with contextlib.suppress(FileExistsError):
            backend.create(".gitignore", b"*\n")
    with contextlib.suppress(FileExistsError):
        backend.create(layout.STORE, plain(about))


def names_of(backend: Backend, about: dict[str, Any]) -> Names:
    """The names of a store whose `store.json` says `about`; UsageError if they cannot be decided from here."""
    from infra.store.names import Names

    database = about["pointers"]
    if about.get("host", here := _host()) != here:
        raise UsageError(
            f"The pointers of the store {backend.uri} are in SQLite on the host {about['host']['name']}, and this is "
            f"{here['name']}: SQLite serves one host.",
            remedy="Work there, or make a store with --pointers postgresql://…",
        )
    names = Names(database, about["uri"])
    if not names.prepared() or names.find(layout.STORE) is None:
        raise UsageError(
            f"The database {database} knows nothing of the store {backend.uri}, whose names it held.",
            remedy="Put the right database back at that address: without it the store cannot be read.",
        )
    return names


def _make_named(backend: Backend, pointers: str, about: dict[str, Any]) -> None:
    from infra.store.named import NamedBackend
    from infra.store.names import Names

    assert not backend.is_local, "a folder decides its names itself; the spec says so"
    names = Names(pointers, backend.uri)
    names.prepare()
    # Two that name different databases cannot be told apart by either, and the server may let both write store.json.
    # So each shows a claim before it looks for others': of two, at least one sees the other and stays out.
    mine = digest(pointers)
    claim = f"{_CLAIMS}/{mine}-{uuid.uuid4().hex}"
    backend.create(claim, pointers.encode())
    other = [name for name in backend.names(_CLAIMS) if not name.startswith(mine)]
    if not other and not backend.exists(layout.STORE):
        named = NamedBackend(backend, names)
        # One database: whoever is first there says what the store is.
        with contextlib.suppress(FileExistsError):
            named.create(layout.STORE, plain(about))
        with contextlib.suppress(FileExistsError):
            backend.create(layout.STORE, named.read(layout.STORE)[0])
    backend.delete(claim)
    if other:
        raise UsageError(
            f"The store {backend.uri} is being made with its pointers in another database.",
            remedy=f"Wait for that; if it was cut off, delete {backend.uri}/{_CLAIMS}/{other[0]} first.",
        )


def _only_on(pointers: str) -> dict[str, Any]:
    return {"host": _host()} if pointers.startswith("sqlite") else {}


def _host() -> dict[str, str]:
    """This host: two of one name have different machine ids, two copies of one disk have different names."""
    try:
        machine = Path("/etc/machine-id").read_bytes()
    except OSError:
        machine = b""
    return {"machine": blake3(machine).hexdigest()[:16], "name": platform.node()}


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
