"""The names of a store in a database table: create-once and compare-and-set for a server that has neither.

A row is an object: `draft` while it is being written, `named` while a name refers to it, `doomed` until its bytes are
gone. Each change is one transaction and may be sent again, so a lost answer is settled by a retry.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Column, Connection, Engine, Float, Table, Text, UniqueConstraint, event, or_, select
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

from data_contracts.errors import StorageUnavailable, UsageError
from infra.store.backends.backend import Stale
from infra.store.backends.credentials import check_database, looked_up

_TRIES = 5
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
        for tries_left in reversed(range(_TRIES)):
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
                time.sleep(random.uniform(0, 0.05) * 2 ** (_TRIES - tries_left))
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
