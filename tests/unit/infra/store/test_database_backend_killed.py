"""Writers of named objects, killed at each of their lines: a name has its bytes, and nothing is in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store import Store, database
from infra.store.database import NamedBackend, Names
from tests.support.careless import Careless, nothing_is_unknown, swept
from tests.support.killed_lines import every, sweep


@pytest.fixture
def store(kept: Store) -> Store:
    """The one over objects in a folder."""
    return kept


@every(3)
def test_create_killed(
    step: int, store: Store, backend: NamedBackend, objects: Careless, table: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []

    def check(was_killed: bool) -> None:
        nothing_is_unknown(objects, table)
        there = store.exists("runs/a")
        states.append(there)
        assert there or was_killed
        if there:
            assert store.read("runs/a") == b"x" * 5000
            with pytest.raises(FileExistsError):
                store.create("runs/a", b"y")
        else:
            store.create("runs/a", b"y")
        backend.delete("runs/a")
        nothing_is_unknown(objects, table)

    assert sweep(lambda: store.create("runs/a", b"x" * 5000), check, database, database, step=step) > 30
    assert states == sorted(states)
    assert True in states[:-1], "also killed after the name was given"
    swept(backend, monkeypatch)


@every(7)
def test_create_of_a_file_and_its_deletion_killed(
    step: int, store: Store, backend: NamedBackend, objects: Careless, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))  # more would be hashed by threads, which a fork leaves behind

    def work() -> None:
        backend.create_file("a/b", tmp_path / "file")
        backend.delete("a/b")

    def check(was_killed: bool) -> None:
        nothing_is_unknown(objects, backend._names)
        if store.exists("a/b"):
            assert was_killed
            assert store.read("a/b") == bytes(1000)
            backend.delete("a/b")

    assert sweep(work, check, database, database, step=step) > 50
    swept(backend, monkeypatch)


@every(5)
def test_swap_killed(
    step: int, store: Store, backend: NamedBackend, objects: Careless, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = store.pointer("p")
    pointer.create(0)
    before = 0

    def work() -> None:
        held = pointer.read()
        pointer.swap(held, held.value + 1)

    def check(was_killed: bool) -> None:
        nonlocal before
        nothing_is_unknown(objects, backend._names)
        held = pointer.read()
        assert held.value in (before, before + 1)
        assert was_killed or held.value == before + 1
        before = pointer.swap(held, held.value + 10).value
        assert store.list("") == ["p"]

    assert sweep(work, check, database, database, step=step) > 60
    swept(backend, monkeypatch)
    assert pointer.read().value == before
