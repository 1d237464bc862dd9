"""A writer killed at any line leaves the old state or the new one, never a part, and nothing that is in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.store import Store, folder, open_store
from tests.support.killed_lines import sweep


def test_create(folder_store: Store) -> None:
    states = []

    def check(was_killed: bool) -> None:
        there = folder_store.exists("runs/a")
        states.append(there)
        assert there or was_killed
        assert folder_store.list("runs") == (["a"] if there else [])
        if there:
            assert folder_store.read("runs/a") == b"x" * 5000
            folder_store._backend.delete("runs/a")
        folder_store.create("runs/a", b"y")  # nothing is in the way of the next one
        folder_store._backend.delete("runs/a")

    assert sweep(lambda: folder_store.create("runs/a", b"x" * 5000), check, folder, folder) > 15
    assert states == sorted(states)
    assert True in states[:-1], "also killed after the file appeared"


def test_swap(folder_store: Store) -> None:
    pointer = folder_store.pointer("p")
    pointer.create(0)

    def work() -> None:
        held = pointer.read()
        pointer.swap(held, held.value + 1)

    before = 0

    def check(was_killed: bool) -> None:
        nonlocal before
        held = pointer.read()
        assert held.value in (before, before + 1)
        assert was_killed or held.value == before + 1
        before = pointer.swap(held, held.value + 10).value  # the lock went with its holder
        assert folder_store.list("") == ["p", "store.json"]

    assert sweep(work, check, folder, folder) > 25


def test_seal(folder_store: Store) -> None:
    attempt = 0

    def work() -> None:
        writer = folder_store.writer(f"datasets/k-{attempt}")
        writer.put("a", b"1")
        writer.put("b/c", b"2")
        writer.seal("dataset", {}, {})

    def check(was_killed: bool) -> None:
        nonlocal attempt
        uri = f"datasets/k-{attempt}"
        writer = folder_store.writer(uri)
        assert set(writer.existing()) <= {"a", "b/c"}
        if folder_store.exists(f"{uri}/manifest.json"):
            folder_store.verify(uri)
        else:
            assert was_killed
            work()  # another goes on with what is there
            folder_store.verify(uri)
        attempt += 1

    assert sweep(work, check, folder, folder) > 60


def test_opening(tmp_path: Path) -> None:
    stores = iter(range(10_000))
    uri = ""

    def work() -> None:
        open_store(uri)

    def check(was_killed: bool) -> None:
        nonlocal uri
        if uri:
            assert open_store(uri).list("") == ["store.json"]
        uri = str(tmp_path / str(next(stores)))

    check(True)
    assert sweep(work, check, folder, folder, step=7) > 100


def test_leftovers_are_swept_after_a_day(folder_store: Store, tmp_path: Path) -> None:
    old, new = tmp_path / "store/.tmp" / ("0" * 32), tmp_path / "store/.tmp" / ("1" * 32)
    for draft in (old, new):
        draft.write_bytes(b"part of a file")
    now = new.stat().st_mtime
    os.utime(old, (now - 90_000, now - 90_000))
    os.utime(new, (now - 80_000, now - 80_000))
    open_store(folder_store.uri)
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("path", ["aliases/m/champion", "p"])
def test_every_draft_is_gone_after_a_good_end(folder_store: Store, tmp_path: Path, path: str) -> None:
    pointer = folder_store.pointer(path)
    pointer.swap(pointer.create(1), 2)
    with pytest.raises(FileExistsError):
        folder_store.create(path, b"")
    assert list((tmp_path / "store/.tmp").iterdir()) == []
