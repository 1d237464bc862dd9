"""A writer killed at any line leaves the old state or the new one, never a part, and nothing that is in the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from infra.store import Store, database, folder, open_store
from infra.store.database import NamedBackend, Names
from tests.support.careless import Careless, nothing_is_unknown, swept
from tests.support.killed_lines import every, sweep

Place = tuple[Store, ModuleType, Callable[[], None]]


@pytest.fixture(params=["folder", "database"])
def place(request: pytest.FixtureRequest) -> Place:
    """A store, the module whose lines are killed, and what must hold after each."""
    if request.param == "folder":
        return request.getfixturevalue("folder_store"), folder, lambda: None
    objects: Careless = request.getfixturevalue("objects")
    table: Names = request.getfixturevalue("table")
    return request.getfixturevalue("kept"), database, lambda: nothing_is_unknown(objects, table)


def sweep_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where names are in a database, nothing is left but what has one."""
    if isinstance(store._backend, NamedBackend):
        swept(store._backend, monkeypatch)


@every(3)
def test_create(step: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store, module, holds = place
    states = []

    def check(was_killed: bool) -> None:
        holds()
        there = store.exists("runs/a")
        states.append(there)
        assert there or was_killed
        assert store.list("runs") == (["a"] if there else [])
        if there:
            assert store.read("runs/a") == b"x" * 5000
            store._backend.delete("runs/a")
        store.create("runs/a", b"y")  # nothing is in the way of the next one
        store._backend.delete("runs/a")
        holds()

    assert sweep(lambda: store.create("runs/a", b"x" * 5000), check, module, step=step) > 15
    assert states == sorted(states)
    assert True in states[:-1], "also killed after the file appeared"
    sweep_up(store, monkeypatch)


@every(5)
def test_swap(step: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store, module, holds = place
    pointer = store.pointer("p")
    before = pointer.create(0).value

    def work() -> None:
        held = pointer.read()
        pointer.swap(held, held.value + 1)

    def check(was_killed: bool) -> None:
        nonlocal before
        holds()
        held = pointer.read()
        assert held.value in (before, before + 1)
        assert was_killed or held.value == before + 1
        before = pointer.swap(held, held.value + 10).value  # the lock went with its holder
        assert [name for name in store.list("") if name != "store.json"] == ["p"]

    assert sweep(work, check, module, step=step) > 25
    sweep_up(store, monkeypatch)
    assert pointer.read().value == before


@every(7)
def test_create_of_a_file_and_its_deletion(
    step: int, kept: Store, backend: NamedBackend, objects: Careless, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))  # more would be hashed by threads, which a fork leaves behind

    def work() -> None:
        backend.create_file("a/b", tmp_path / "file")
        backend.delete("a/b")

    def check(was_killed: bool) -> None:
        nothing_is_unknown(objects, backend._names)
        if kept.exists("a/b"):
            assert was_killed
            assert kept.read("a/b") == bytes(1000)
            backend.delete("a/b")

    assert sweep(work, check, database, step=step) > 50
    swept(backend, monkeypatch)


@every(7)
def test_seal(step: int, folder_store: Store) -> None:
    attempt = 0

    def work() -> None:
        writer = folder_store.writer(f"datasets/k-{attempt}")
        writer.put("a", b"1")
        writer.put("b/c", b"2")
        writer.seal("dataset", {}, {})

    def check(was_killed: bool) -> None:
        nonlocal attempt
        uri = f"datasets/k-{attempt}"
        assert set(folder_store.writer(uri).existing()) <= {"a", "b/c"}
        if not folder_store.exists(f"{uri}/manifest.json"):
            assert was_killed
            work()  # another continues with what is there
        folder_store.verify(uri)
        attempt += 1

    assert sweep(work, check, folder, step=step) > 60


@every(17)
def test_opening(step: int, tmp_path: Path) -> None:
    stores = iter(range(10_000))
    uri = ""

    def check(was_killed: bool) -> None:
        nonlocal uri
        if uri:
            assert open_store(uri).list("") == ["store.json"]
        uri = str(tmp_path / str(next(stores)))

    check(True)
    assert sweep(lambda: open_store(uri) and None, check, folder, step=step) > 100
