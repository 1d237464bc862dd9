"""Make a store. A place without conditional writes is refused, unless a database decides the names.

`store.json` is written last: if it exists, the store is complete.
"""

from __future__ import annotations

import contextlib
import json
import platform
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from data_contracts.canonical import digest
from data_contracts.errors import UsageError
from infra import audit
from infra.files.atomic import replace_private
from infra.files.locks import locked
from infra.machine.settings import state_folder
from infra.store import layout
from infra.store.backends.backend import Backend, NotImplementedThere, Overtaken, Stale
from infra.store.backends.s3_errors import status_of
from infra.store.store import Store

if TYPE_CHECKING:
    from infra.store.backends.name_database import Names

_CLAIMS = ".making"
IN_STORE = "store"
# Rounds in which two writers race; a server that checks and writes in two steps fails the first or second.
_RACES = 5
TESTED, TESTED_FOR_S = "tested-servers.json", 7 * 24 * 3600.0


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


def _refuse_ignored(uri: str, found: dict[str, bool]) -> None:
    ignored = [name for name, honoured in found.items() if not honoured]
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


def names_of(backend: Backend, about: dict[str, Any]) -> Names:
    """The names of a store whose `store.json` is `about`; UsageError if this host cannot use its database."""
    from infra.store.backends.name_database import Names

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


def _make_named(backend: Backend, pointers: str, about: dict[str, Any]) -> None:
    from infra.store.backends.database_backend import NamedBackend
    from infra.store.backends.name_database import Names

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


def _only_on(pointers: str) -> dict[str, Any]:
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
