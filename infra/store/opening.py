"""Open a store, or make it. Where its pointers and names are decided is fixed when it is made.

A place without conditional writes is refused, unless a database decides the names. `store.json` is written last: if it
exists, the store is complete. The store of a game day is a new one beside the pipeline's, which is removed at the end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from data_contracts.canonical import digest
from data_contracts.errors import UsageError
from data_contracts.messages.children import StoreAddress
from infra import audit, settings
from infra.files import locked, replace_private
from infra.processes.processes import uninterrupted
from infra.settings import state_folder
from infra.store import layout
from infra.store.backend import Backend, NotImplementedThere, Overtaken, Stale
from infra.store.folder import FolderBackend
from infra.store.records import parsed
from infra.store.s3 import S3Backend, status_of
from infra.store.store import Store

if TYPE_CHECKING:
    from infra.store.database import Names


log = logging.getLogger("trainwright")
_CLAIMS = ".making"
IN_STORE = "store"
# Rounds in which two writers race; a server that checks and writes in two steps fails the first or second.
_RACES = 5
TESTED, TESTED_FOR_S = "tested-servers.json", 7 * 24 * 3600.0
# The database with the pointers of a node's store; in the environment of a node that another machine starts.
STORE_POINTERS = "TRAINWRIGHT_STORE_POINTERS"


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


def open_at(address: StoreAddress) -> Store:
    """The existing store at an address that a request names; raises as `open_store`."""
    return open_store(address.uri, address.options, create=False, pointers=address.pointers)


def is_store(uri: str, storage_options: Mapping[str, Any]) -> bool:
    """Whether there is a store at an address; raises as `open_store` for one that no store can have."""
    return Store(_backend(uri, storage_options), storage_options).exists(layout.STORE)


def check_promises(store: Store) -> None:
    """UsageError if the server of a store no longer honours conditional writes, where no database decides."""
    if store.pointers is None:
        check_server(_backend(store.uri, store.storage_options), again=True)


def _check_approved(backend: Backend, storage_options: Mapping[str, object], pointers: str) -> None:
    """UsageError unless this user named the database, which receives a password; `store.json` is not enough."""
    if backend.is_local:
        raise UsageError(
            f"The store {backend.uri} says that its pointers are in {pointers}, but a folder decides its names itself.",
            remedy="Restore its store.json, or name another store.",
        )
    if os.environ.get(STORE_POINTERS) == pointers:
        return
    entries = [entry for entry in settings.known_stores() if entry["uri"].rstrip("/") == backend.uri]
    if any(entry.get("pointers") == pointers for entry in entries):
        return
    if any("pointers" not in entry for entry in entries):  # used with an earlier version
        log.warning(
            "The store %s has been used on this machine; its pointer database %s is approved from now on.",
            backend.uri,
            pointers,
        )
        settings.remember_store(backend.uri, storage_options, pointers)
        return
    raise UsageError(
        f"The store {backend.uri} says that its pointers are in {pointers}, which nobody on this machine has approved; "
        "it was not connected to.",
        remedy="If that database is the right one, name it as `pointers:` under `store:` in the spec, or run "
        f"trainwright store init {backend.uri} --pointers {pointers}.",
    )


def _pointers(about: Mapping[str, Any]) -> str:
    """Where a store has its pointers, as its `store.json` says; ValueError if the record does not describe a store."""
    held = about["pointers"]
    named = held == IN_STORE or isinstance(about["uri"], str)
    if not named or not isinstance(held, str) or not isinstance(about.get("host", {"name": ""})["name"], str):
        raise ValueError("it does not describe a store")
    return held


def _named(objects: Backend, about: Mapping[str, Any]) -> Backend:
    from infra.store.database import NamedBackend

    backend = NamedBackend(objects, names_of(objects, about))
    backend.sweep()
    return backend


def names_of(backend: Backend, about: Mapping[str, Any]) -> Names:
    """The names of a store whose `store.json` is `about`; UsageError if this host cannot use its database."""
    from infra.store.database import Names

    database = about["pointers"]
    if about.get("host", here := _host()) != here:
        raise UsageError(
            f"The pointers of the store {backend.uri} are in SQLite on the host {about['host']['name']}, but this host "
            f"is {here['name']}: SQLite serves one host.",
            remedy="Run the command on that host, or make a store with --pointers postgresql://…",
        )
    names = Names(database, about["uri"])
    if not names.prepared() or names.find(layout.STORE) is None:
        raise UsageError(
            f"The database {database} has no record of the store {backend.uri}, whose names it held.",
            remedy="Restore the right database at that address: the store cannot be read without it.",
        )
    return names


def _backend(uri: str, storage_options: Mapping[str, Any]) -> Backend:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        folder = FolderBackend(Path(os.path.expanduser(uri)))
        folder.sweep()
        return folder
    if scheme == "s3" and rest.strip("/"):
        return S3Backend(uri, storage_options)
    raise UsageError(f"{uri!r} cannot be a store.", remedy="Name a folder, or s3://bucket/prefix.")


@contextlib.contextmanager
def own_store(address: str, storage_options: Mapping[str, Any], name: str) -> Iterator[Store]:
    """A new store beside the one at an address, which is removed at the end; `name` is one that nothing else has."""
    uri = address_beside(address, name)
    try:
        yield open_store(uri, storage_options)
    finally:
        with uninterrupted():
            _remove(uri, storage_options)


def address_beside(address: str, name: str) -> str:
    """The address of a game day's store beside another; `name` is one that nothing else has."""
    place = address.rstrip("/")
    bucket_alone = "://" in place and "/" not in place.partition("://")[2]
    return f"{place}{'/' if bucket_alone else '-'}gameday-{name}"


def _remove(uri: str, storage_options: Mapping[str, Any]) -> None:
    """Remove the store; its address was made for it, so nobody else has files there."""
    if "://" not in uri:
        shutil.rmtree(uri, ignore_errors=True)
        return
    try:
        store = open_store(uri, storage_options, create=False)
    except UsageError:  # the store could not be made, and the reason is being raised
        return
    for file in store.stored():
        store.forget(file.path)
    for leftover in store.leftovers():  # uploads of killed ranks: no listing shows them, but they cost money
        store.drop(leftover)


def make(backend: Backend, pointers: str | None) -> None:
    """Make the store, with its pointers and names in the database `pointers`, or in the store itself.

    If another process makes the store meanwhile, that process wins: the caller reads the resulting `store.json`.
    """
    found = {name: _honoured(probe, backend) for name, probe in PROBES.items()}
    about = {"made": audit.now(), "pointers": pointers or IN_STORE, "probe": found}
    if pointers is not None:
        _make_named(backend, pointers, {**about, "uri": backend.uri, **_only_on(pointers)})
        return
    _refuse_ignored(backend.uri, found)
    _remember_tested(backend)
    if backend.is_local:
        # A store inside a repository must not make the recorded working tree count as changed.
        with contextlib.suppress(FileExistsError):
            backend.create(".gitignore", b"*\n")
    with contextlib.suppress(FileExistsError):
        Store(backend, {}).create_about(about)


def check_server(backend: Backend, *, again: bool = False) -> None:
    """UsageError if the server of a store does not honour conditional writes, as it did when the store was made.

    It may be reached through another gateway now, or have been changed. Each machine tests each server for itself, and
    once more after a week. Where this user may only read, nothing is tested, because nothing can be overwritten.

    Args:
        again: also if it was tested before.
    """
    if backend.is_local or (not again and time.time() - _tested().get(backend.server, 0.0) < TESTED_FOR_S):
        return
    try:
        found = {name: _honoured(probe, backend) for name, probe in PROBES.items()}
    except UsageError as error:
        if error.__cause__ is not None and status_of(error.__cause__) in (401, 403):
            return
        raise
    _refuse_ignored(backend.uri, found)
    _remember_tested(backend)


def _refuse_ignored(uri: str, conditions: dict[str, bool]) -> None:
    ignored = [name for name, honoured in conditions.items() if not honoured]
    if ignored:
        raise UsageError(
            f"The server of {uri} does not honour conditional writes ({' and '.join(ignored)}), so two writers "
            "could overwrite each other.",
            remedy="Name a store on a server that honours If-None-Match and If-Match, or a folder, or have a database "
            f"decide: trainwright store init {uri} --pointers postgresql://…",
        )


def _tested() -> dict[str, float]:
    """When servers were tested from this machine, as Unix time."""
    try:
        return dict(json.loads((state_folder() / TESTED).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _remember_tested(backend: Backend) -> None:
    if not backend.is_local:
        folder = state_folder()
        with locked(folder):
            replace_private(folder / TESTED, json.dumps({**_tested(), backend.server: time.time()}))


def _make_named(backend: Backend, pointers: str, about: Mapping[str, object]) -> None:
    from infra.store.database import NamedBackend, Names

    assert not backend.is_local, "a folder decides its names itself; the spec says so"
    names = Names(pointers, backend.uri)
    names.prepare()
    # Two makers that name different databases cannot see each other there, and the server may let both write
    # store.json. So each writes a claim before it looks for other claims: at least one of the two sees the other and
    # gives up.
    mine = digest(pointers)
    claim = f"{_CLAIMS}/{mine}-{uuid.uuid4().hex}"
    backend.create(claim, pointers.encode())
    other = [name for name in backend.names(_CLAIMS) if not name.startswith(mine)]
    if not other and not backend.exists(layout.STORE):
        named = NamedBackend(backend, names)
        # With one database, the first maker to write there decides what the store is.
        with contextlib.suppress(FileExistsError):
            Store(named, {}).create_about(about)
        with contextlib.suppress(FileExistsError):
            backend.create(layout.STORE, named.read(layout.STORE)[0])
    backend.delete(claim)
    if other:
        raise UsageError(
            f"The store {backend.uri} is being made with its pointers in another database.",
            remedy=f"Wait until that is done; if it was interrupted, delete {backend.uri}/{_CLAIMS}/{other[0]} first.",
        )


def _only_on(pointers: str) -> dict[str, dict[str, str]]:
    return {"host": _host()} if pointers.startswith("sqlite") else {}


def _host() -> dict[str, str]:
    """This host: two hosts of one name have different machine ids, two copies of one disk have different names."""
    try:
        machine = Path("/etc/machine-id").read_bytes()
    except OSError:
        machine = b""
    return {"machine": blake3(machine).hexdigest()[:16], "name": platform.node()}


def _honoured(probe: Callable[[Backend], bool], backend: Backend) -> bool:
    try:
        return probe(backend)
    except (Stale, FileExistsError, NotImplementedThere):  # a condition that holds was refused, or is not supported
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


def _probe_race(backend: Backend) -> bool:
    """Whether one of two writers at the same moment is refused; a folder's file system decides by itself."""
    if backend.is_local:
        return True
    with ThreadPoolExecutor(2) as pool:
        return all(_one_wins(backend, pool) for _ in range(_RACES))


def _one_wins(backend: Backend, pool: ThreadPoolExecutor) -> bool:
    path, start = f".probe/{uuid.uuid4().hex}", threading.Barrier(2)

    def write(put: Callable[[], str]) -> str | None:
        start.wait(60)
        try:
            return put()
        except Overtaken:  # the server confirmed it
            return "confirmed"
        except (FileExistsError, Stale):
            return None

    try:
        made = [lambda data=data: backend.create(path, data) for data in (b"1", b"2")]
        confirmed = list(filter(None, pool.map(write, made)))
        if len(confirmed) != 1:
            return False
        moved = [lambda data=data: backend.replace(path, data, confirmed[0]) for data in (b"3", b"4")]
        return len(list(filter(None, pool.map(write, moved)))) == 1
    finally:
        backend.delete(path)


PROBES: dict[str, Callable[[Backend], bool]] = {
    "conditional_create": _probe_create,
    "conditional_large_create": _probe_large,
    "conditional_overwrite": _probe_overwrite,
    "conditional_race": _probe_race,
}
