"""A store whose names are decided in a database while the bytes stay on a server without conditional writes.

The bytes of a name are in an object of their own, `objects/<name>/<BLAKE3>-<nonce>`. It is written once, under a key
that nobody else uses, before the database gives it the name. So a name exists if and only if its bytes do. What a
killed writer leaves has no name and is recorded.

A row of the database's table is an object: `draft` while it is being written, `named` while a name refers to it,
`doomed` until its bytes are gone. Each change is one transaction and may be sent again, so a lost answer is settled by
a retry.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from blake3 import blake3
from sqlalchemy import Column, Connection, Engine, Float, Table, Text, UniqueConstraint, event, or_, select
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError
from infra.files import file_digest
from infra.store.backend import MAX_CLOCK_DIFFERENCE_S, Backend, Leftover, Stale, Stored, send_whole
from infra.store.s3 import check_database, looked_up

_TRANSACTION_TRIES = 5
_WAIT_FOR_LOCK_S = 30
_REFUSED = ("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_READONLY")
_CLOCKS = {
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
_LAST = "\U0010ffff"
# Compared byte by byte, because names are searched by their beginning.
_Bytes = Text(collation="C").with_variant(Text(collation="BINARY"), "sqlite")
_TABLE = Table(
    "trainwright_objects",
    sqlalchemy.MetaData(),
    Column("store", _Bytes, primary_key=True),
    Column("object", _Bytes, primary_key=True),
    Column("path", _Bytes, nullable=True),
    Column("state", Text, nullable=False),
    Column("since", Float, nullable=False),
    UniqueConstraint("store", "path"),
)
_at = _TABLE.c
T = TypeVar("T")
_TRIES = 4
_SWEEP_AFTER_S = 86_400


class NamedBackend:
    """Objects of another backend, named by a database (see `Backend` for the methods). A tag is an object's name."""

    is_local = False

    def __init__(self, objects: Backend, names: Names) -> None:
        self._objects, self._names = objects, names
        self.uri, self.server = objects.uri, objects.server

    def create(self, path: str, data: bytes) -> str:
        """Store `data`, then give it the name."""
        return self._create(path, blake3(data).hexdigest(), lambda new: self._objects.create(new, data))

    def create_file(self, path: str, source: Path, *, private: bool = False) -> None:
        """Store a file's bytes, then give them the name."""
        self._create(path, file_digest(source), lambda new: self._objects.create_file(new, source, private=private))

    def create_from(self, path: str, chunks: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
        """Store the chunks, then give them the name."""
        return send_whole(self, path, chunks, scratch)

    def read(self, path: str) -> tuple[bytes, str]:
        """All bytes, checked against their digest."""

        def whole(name: str) -> tuple[bytes, str]:
            data = self._objects.read(name)[0]
            return data, blake3(data).hexdigest()

        return self._checked(path, whole)

    def replace(self, path: str, data: bytes, tag: str) -> str:
        """Store `data`, then give it the name if the object `tag` still has it."""
        digest = blake3(data).hexdigest()
        new = self._draft(path, digest, lambda name: self._objects.create(name, data))
        try:
            self._names.swap(path, tag, new)
        except Stale:
            self._drop(new)
            raise
        self._drop(tag)
        return new

    def digest(self, path: str, copy: Path | None = None, most: float = math.inf) -> tuple[int, str]:
        """Size and BLAKE3, checked against the digest of what was written."""

        def digest(name: str) -> tuple[tuple[int, str], str]:
            found = self._objects.digest(name, copy, most)
            return found, found[1]

        return self._checked(path, digest)[0]

    def exists(self, path: str) -> bool:
        """Whether an object has the name."""
        return self._names.find(path) is not None

    def names(self, folder: str, starting: str = "") -> list[str]:
        """Sorted names without those that begin with a dot."""
        base = f"{folder}/" if folder else ""
        names = {path.removeprefix(base).partition("/")[0] for path in self._names.beginning(base + starting)}
        return sorted(name for name in names if not name.startswith("."))

    def walk(self, folder: str, *, links: bool = False) -> list[str]:
        """Sorted paths of all names; there are no links."""
        return [path.removeprefix(f"{folder}/") for path in self._names.beginning(f"{folder}/")]

    def delete(self, path: str) -> None:
        """Remove the name, then the bytes."""
        taken = self._names.take(path)
        if taken is not None:
            self._drop(taken)

    def stored(self, folder: str) -> list[Stored]:
        """All names below `folder`, sorted, with their objects' sizes and times."""
        start = f"{folder}/" if folder else ""
        named = self._names.objects(start)
        held = {one.path: one for one in self._objects.stored(f"objects/{folder}".rstrip("/"))}
        there = [(path, held[name]) for path, name in sorted(named.items()) if name in held and path[:1] != "."]
        return [Stored(path, one.bytes, one.written_s) for path, one in there]

    def leftovers(self) -> list[Leftover]:
        """Unfinished uploads, and objects without a name."""
        unnamed = set(self._names.unnamed(0))
        found = [one for one in self._objects.stored("objects") if one.path in unnamed]
        return [*self._objects.leftovers(), *(Leftover(one.path, one.bytes, one.written_s) for one in found)]

    def now_s(self) -> float:
        """The time with which the backend would date an object written now."""
        return self._objects.now_s()

    def drop(self, leftover: Leftover) -> None:
        """Abort an upload, or remove an object that still has no name."""
        if leftover.path.startswith("objects/") and not leftover.upload_id:
            self._drop(leftover.path)
        else:
            self._objects.drop(leftover)

    def local(self, uri: str) -> Path | None:
        """None: a folder on this machine would hold objects, not names."""
        return None

    def creates_large_once(self, path: str) -> bool:
        """True: the database decides, whatever the size."""
        return True

    def sweep(self) -> None:
        """Remove what killed writers left more than a day ago."""
        with contextlib.suppress(TrainwrightError):  # the server is unreachable, or this user may only read
            old = self._names.unnamed(_SWEEP_AFTER_S)
            # SQLite has only this machine's clock, which may be wrong.
            if old and abs(self.now_s() - time.time()) < MAX_CLOCK_DIFFERENCE_S:
                for name in old:
                    self._drop(name)

    def _create(self, path: str, digest: str, write: Callable[[str], object]) -> str:
        if self.exists(path):  # avoids sending large files in vain
            raise FileExistsError(path)
        new = self._draft(path, digest, write)
        try:
            self._names.give(path, new)
        except FileExistsError:
            self._drop(new)
            raise
        return new

    def _draft(self, path: str, digest: str, write: Callable[[str], object]) -> str:
        new = f"objects/{path}/{digest}-{uuid.uuid4().hex}"
        self._names.draft(new)
        write(new)
        return new

    def _drop(self, name: str) -> None:
        with contextlib.suppress(StorageUnavailable):  # the caller's work is done: the bytes are swept another day
            if self._names.doom(name):
                self._objects.delete(name)
                self._names.forget(name)

    def _checked(self, path: str, read: Callable[[str], tuple[T, str]]) -> tuple[T, str]:
        problem, before, tries = "", "", 0
        while tries < _TRIES:
            name = self._names.find(path)
            if name is None:
                raise FileNotFoundError(path)
            before, tries = name, tries + 1 if name == before else 1  # each move of a pointer begins anew
            try:
                value, digest = read(name)
            except FileNotFoundError:  # a pointer was moved meanwhile, and its old object is gone
                problem = "has lost its bytes, though the database has its name"
                continue
            if digest == name.rpartition("/")[2].partition("-")[0]:
                return value, name
            problem = "does not hold the bytes that were written"
        raise CorruptError(f"{path} in the store {self.uri} {problem}.", details={"file": path})


class Names:
    """The rows of one store.

    Every method raises StorageUnavailable if the database does not answer, UsageError if it may not be used.

    Args:
        database: `postgresql://…` with a named password (`env:NAME`), or `sqlite:////…`.
        store: the store's address, which is the key of its rows; several stores may share a database.
    """

    def __init__(self, database: str, store: str) -> None:
        self.database, self.store = database, store
        self._engine = _engine(database)
        # The database's own time as Unix time, because writers' clocks differ.
        self._now = sqlalchemy.literal_column(_CLOCKS[self._engine.dialect.name], Float)

    def prepare(self) -> None:
        """Make the table if it does not exist."""
        try:
            self._do(lambda connection: _TABLE.create(connection, checkfirst=True))
        except (IntegrityError, UsageError):
            if not self.prepared():  # another process made it at the same time
                raise

    def prepared(self) -> bool:
        """Whether the table exists; does not make a missing SQLite file."""
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        if file is not None and not os.path.exists(file):
            return False
        return self._do(lambda connection: sqlalchemy.inspect(connection).has_table(_TABLE.name))

    def draft(self, new: str) -> None:
        """Record the object `new`, whose name nobody else uses, before its first byte is written."""
        row = {"store": self.store, "object": new, "state": "draft", "since": self._now}
        try:
            self._do(lambda connection: connection.execute(_TABLE.insert().values(row)))
        except IntegrityError:
            return  # ours, from a try whose answer was lost

    def give(self, path: str, new: str) -> None:
        """Give the name `path` to the draft `new`. FileExistsError if another object has it."""
        try:
            self._do(lambda connection: self._give(connection, path, new))
        except IntegrityError as error:
            raise FileExistsError(path) from error

    def swap(self, path: str, old: str, new: str) -> None:
        """Move the name from `old` to the draft `new`, and doom `old`. Stale if `old` does not have the name."""

        def work(connection: Connection) -> None:
            held = _TABLE.update().where(self._is(old), _at.path == path)
            if not connection.execute(held.values(path=None, state="doomed", since=self._now)).rowcount:
                if connection.scalar(select(_at.object).where(self._is(new), _at.path == path)) is None:
                    raise Stale(path)
                return  # done by a try whose answer was lost
            self._give(connection, path, new)

        self._do(work)

    def take(self, path: str) -> str | None:
        """Remove the name `path`; returns the object that had it, now doomed, or None."""
        rows = _TABLE.update().where(_at.store == self.store, _at.path == path).returning(_at.object)
        gone = rows.values(path=None, state="doomed", since=self._now)
        return self._do(lambda connection: connection.scalar(gone))

    def doom(self, unnamed: str) -> bool:
        """Doom an object, so that it can never get a name; False if it has one."""
        rows = _TABLE.update().where(self._is(unnamed), _at.state != "named")
        return bool(self._do(lambda connection: connection.execute(rows.values(state="doomed")).rowcount))

    def forget(self, doomed: str) -> None:
        """Delete the row of an object whose bytes are gone."""
        rows = _TABLE.delete().where(self._is(doomed), _at.state == "doomed")
        self._do(lambda connection: connection.execute(rows))

    def find(self, path: str) -> str | None:
        """The object that has the name `path`; None if there is none."""
        query = select(_at.object).where(_at.store == self.store, _at.path == path)
        return self._do(lambda connection: connection.scalar(query))

    def beginning(self, start: str) -> list[str]:
        """All names that begin with `start`, sorted."""
        near = (_at.path >= start) & (_at.path <= start + _LAST)
        query = select(_at.path).where(_at.store == self.store, near).order_by(_at.path)
        return [path for path in self._do(lambda connection: connection.scalars(query).all()) if path is not None]

    def objects(self, start: str) -> dict[str, str]:
        """The object of each name that begins with `start`."""
        near = (_at.path >= start) & (_at.path <= start + _LAST)
        query = select(_at.path, _at.object).where(_at.store == self.store, near)
        return dict(self._do(lambda connection: [(path, name) for path, name in connection.execute(query)]))

    def unnamed(self, for_s: float) -> list[str]:
        """Objects that have had no name for `for_s` seconds, by the database's clock."""
        without = (_at.state != "named") & (_at.since <= self._now - for_s)
        query = select(_at.object).where(_at.store == self.store, without)
        return list(self._do(lambda connection: connection.scalars(query).all()))

    def _is(self, name: str) -> Any:
        return (_at.store == self.store) & (_at.object == name)

    def _give(self, connection: Connection, path: str, new: str) -> None:
        rows = _TABLE.update().where(self._is(new), or_(_at.state == "draft", _at.path == path))
        if not connection.execute(rows.values(path=path, state="named", since=self._now)).rowcount:
            raise StorageUnavailable(
                f"{path} in the store {self.store} took so long to write that it was removed as unfinished."
            )

    def _do(self, work: Callable[[Connection], T]) -> T:
        for tries_left in reversed(range(_TRANSACTION_TRIES)):
            try:
                with self._engine.begin() as connection:
                    return work(connection)
            except IntegrityError:
                raise
            except SQLAlchemyError as error:
                cause = error.orig if isinstance(error, DBAPIError) else error
                said = str(cause).strip().partition("\n")[0]
                where = f"The database {self.database} with the names of the store {self.store}"
                passing = isinstance(error, (OperationalError, InterfaceError))
                if not passing or getattr(cause, "sqlite_errorname", "").startswith(_REFUSED):
                    raise UsageError(
                        f"{where} cannot be used ({said}).", remedy="Check its address and its user's permissions."
                    ) from error
                if not tries_left:
                    raise StorageUnavailable(f"{where} does not answer ({said}).") from error
                time.sleep(random.uniform(0, 0.05) * 2 ** (_TRANSACTION_TRIES - tries_left))
        raise AssertionError("unreachable")


def _engine(database: str) -> Engine:
    url = sqlalchemy.make_url(database)
    # No connection is kept, so a fork or a restarted server finds no stale connection.
    pool = sqlalchemy.NullPool
    if url.drivername == "sqlite":
        waiting = {"timeout": _WAIT_FOR_LOCK_S, "isolation_level": "IMMEDIATE"}
        engine = sqlalchemy.create_engine(url, poolclass=pool, connect_args=waiting)

        @event.listens_for(engine, "connect")
        def durable(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA synchronous=EXTRA")  # a commit survives a power failure

        return engine
    check_database(database)
    url = url.set(drivername="postgresql+psycopg")
    if url.password is not None:
        url = url.set(password=looked_up("store.pointers", str(url.password)))
    try:
        return sqlalchemy.create_engine(url, poolclass=pool, connect_args={"connect_timeout": 10})
    except ModuleNotFoundError as error:
        raise UsageError(
            "Pointers in PostgreSQL need psycopg, which is not installed.", remedy="Run pip install 'psycopg[binary]'."
        ) from error
