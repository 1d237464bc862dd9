"""Pointers move by compare-and-set, and a value that comes back is not the one that was read before."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from infra.store import PointerMoved, Store, Versioned


def test_life_of_a_pointer(store: Store) -> None:
    pointer = store.pointer("aliases/m/champion")
    assert pointer.path == "aliases/m/champion"
    assert pointer.read() is None
    first = pointer.create({"version": 1})
    assert pointer.read() == first
    assert (first.value, first.version) == ({"version": 1}, 1)
    second = pointer.swap(first, {"version": 2})
    assert (second.value, second.version) == ({"version": 2}, 2)
    assert store.pointer("aliases/m/champion").read() == second
    body = b'{"schema":2,"value":{"version":2},"version":2,"path":"aliases/m/champion"'
    assert store.read("aliases/m/champion") == body + f',"digest":"{sha256(body).hexdigest()}"}}'.encode()


def test_a_late_create_or_swap_loses(store: Store) -> None:
    """Only the tag counts: a value that comes back is another version."""
    pointer = store.pointer("p")
    gone = Versioned("a", 1, '"0"')
    with pytest.raises(PointerMoved) as raised:
        pointer.swap(gone, "b")
    assert raised.value.current is None
    assert pointer.read() is None
    first = pointer.swap(None, "a")
    back = pointer.swap(pointer.swap(first, "b"), "a")
    late = [lambda: pointer.create("c"), *(lambda old=old: pointer.swap(old, "c") for old in (None, first, gone))]
    for move in late:
        with pytest.raises(PointerMoved, match="^p was moved by another$") as raised:
            move()
        assert (raised.value.current, raised.value.path) == (back, "p")
    assert pointer.read() == back


@pytest.mark.parametrize("path", ["aliases/m/champion", "p"])
def test_a_lock_lies_in_the_store_and_no_draft_there_or_where_the_command_was_called(
    folder_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    pointer = folder_store.pointer(path)
    pointer.swap(pointer.create(1), 2)
    with pytest.raises(FileExistsError):
        folder_store.create(path, b"")
    assert sha256(path.encode()).hexdigest()[:32] in os.listdir(Path(folder_store.uri, ".locks"))
    assert (os.listdir(), os.listdir(Path(folder_store.uri, ".tmp"))) == ([], [])
