"""Names in a database, over objects in a folder: answers lost, bytes changed or gone, drafts swept."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError

from data_contracts.errors import CorruptError, StorageUnavailable
from infra.store import PointerMoved, Store, database
from infra.store.backend import Stale
from infra.store.database import NamedBackend, Names
from tests.support.careless import Careless, swept


def lost_after(monkeypatch: pytest.MonkeyPatch, table: Names, nth: int, *, before: bool = False) -> list[int]:
    """Lose the answer to the n-th transaction after it was carried out (or before); the list counts them."""
    count = [0]
    real = table._engine.begin
    lost = OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))

    @contextlib.contextmanager
    def begin(engine: Any) -> Iterator[Any]:
        with real() as connection:
            yield connection
            count[0] += 1
            if count[0] == nth and before:
                raise lost
        if count[0] == nth:
            raise lost

    monkeypatch.setattr(type(table._engine), "begin", begin)
    return count


def _create(store: Store) -> None:
    store.create("x", b"ours")
    assert store.read("x") == b"ours"


def _swap(store: Store) -> None:
    pointer = store.pointer("p")
    held = pointer.read()
    moved = pointer.swap(held, "new")
    assert pointer.read() == moved
    assert moved.version == 2
    with pytest.raises(PointerMoved):
        pointer.swap(held, "late")


def _delete(store: Store) -> None:
    store._backend.delete("y")
    assert not store.exists("y")


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("work", [_create, _swap, _delete])
def test_each_answer_of_the_database_lost(
    kept: Store, backend: NamedBackend, work: Callable[[Store], None], before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database.time, "sleep", lambda seconds: None)
    for nth in itertools.count(1):
        kept.create("y", b"") if not kept.exists("y") else None
        kept.pointer("p").create("old")
        with monkeypatch.context() as patch:
            count = lost_after(patch, backend._names, nth, before=before)
            work(kept)
        for name in ("x", "y", "p"):
            backend.delete(name)
        if count[0] < nth:
            break
    assert nth > 3
    swept(backend, monkeypatch)


def test_a_database_that_stays_away(kept: Store, backend: NamedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.time, "sleep", lambda seconds: None)
    kept.create("x", b"1")
    away = Mock(side_effect=OperationalError("SELECT", {}, Exception("connection refused\nIs the server running?")))
    with monkeypatch.context() as patch:
        patch.setattr(type(backend._names._engine), "begin", away)
        words = r"with the names of the store s3://bucket/prefix does not answer \(connection refused\)\."
        with pytest.raises(StorageUnavailable, match=f"^The database {backend._names.database} {words}"):
            kept.read("x")
    assert kept.read("x") == b"1"


@pytest.mark.parametrize("change", [b"", b"12x45", b"123456"])
def test_changed_bytes_are_refused(kept: Store, backend: NamedBackend, objects: Careless, change: bytes) -> None:
    tag = backend.create("x", b"12345")
    objects.create(tag, change)
    for use in (lambda: kept.read("x"), lambda: backend.digest("x")):
        with pytest.raises(
            CorruptError, match=r"^x in the store .* does not hold the bytes that were written"
        ) as raised:
            use()
        assert raised.value.details == {"file": "x"}
    objects.delete(tag)
    with pytest.raises(CorruptError, match="x in the store .* has lost its bytes, though the database has its name"):
        kept.read("x")


def test_a_pointer_that_moves_while_it_is_read(kept: Store) -> None:
    """Its old object is gone when the reader comes for it."""
    pointer = kept.pointer("p")
    held = pointer.create(0)
    done = threading.Event()

    def move() -> None:
        moved = held
        while not done.is_set():
            moved = pointer.swap(moved, moved.value + 1)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        values = [pointer.read().value for _ in range(100)]
    finally:
        done.set()
        mover.join()
    assert values == sorted(values)


def test_a_draft_that_was_swept_gets_no_name(
    kept: Store, backend: NamedBackend, objects: Careless, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = objects.create

    def late(path: str, data: bytes) -> str:
        written = real(path, data)
        swept(backend, monkeypatch)
        return written

    monkeypatch.setattr(objects, "create", late)
    with pytest.raises(
        StorageUnavailable, match="x in the store .* took so long to write that it was removed as unfinished"
    ):
        kept.create("x", b"1")
    assert not kept.exists("x")
    monkeypatch.undo()
    kept.create("x", b"1")


def test_bytes_that_cannot_be_deleted_now_are_swept_later(
    kept: Store, backend: NamedBackend, objects: Careless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pointer did move: that is what is told."""
    pointer = kept.pointer("p")
    held = pointer.create(1)
    with monkeypatch.context() as patch:
        patch.setattr(objects, "delete", Mock(side_effect=StorageUnavailable("away")))
        moved = pointer.swap(held, 2)
        with pytest.raises(Stale):
            backend.replace("p", b"", held.tag)
    assert pointer.read() == moved
    assert len(objects.walk("objects")) == 3
    swept(backend, monkeypatch)
    assert len(objects.walk("objects")) == 1


def test_two_stores_in_one_database(objects: Careless, table: Names, sqlite: str, tmp_path: Path) -> None:
    other = NamedBackend(Careless(tmp_path / "other"), Names(sqlite, "s3://bucket/other"))
    one = NamedBackend(objects, table)
    one.create("x", b"1")
    other.create("x", b"2")
    one.create("y", b"")
    assert (one.read("x")[0], other.read("x")[0], other.names("")) == (b"1", b"2", ["x"])
    other.delete("x")
    assert one.exists("x")


def test_of_two_creators_at_once_the_second_is_told_and_leaves_nothing(
    backend: NamedBackend, objects: Careless, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.create("x", b"first")
    monkeypatch.setattr(backend, "exists", lambda path: False)
    with pytest.raises(FileExistsError):
        backend.create("x", b"second")
    assert backend.read("x")[0] == b"first"
    assert len(objects.walk("objects")) == 1
