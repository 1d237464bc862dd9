"""Before a write is told as done, the file's bytes and every folder that learned a name are on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.store import Store


@pytest.fixture
def calls(folder_store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the store asked the operating system for, in order: (call, path below the root)."""
    seen: list[tuple[str, str]] = []
    root = Path(folder_store.uri)

    def note(name: str, path_of: Callable[..., Any]) -> None:
        real = getattr(os, name)

        def noted(*arguments: Any, **more: Any) -> Any:
            path = Path(path_of(*arguments)).relative_to(root)
            seen.append((name, "draft" if path.parts[:1] == (".tmp",) else str(path)))
            return real(*arguments, **more)

        monkeypatch.setattr(os, name, noted)

    note("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    note("link", lambda source, target: target)
    note("mkdir", lambda path, *more: path)
    note("replace", lambda source, target: target)
    return seen


@pytest.mark.parametrize("write", ["create", "create_file"])
def test_a_file_and_the_folders_that_name_it_are_synced(
    folder_store: Store, calls: list[tuple[str, str]], tmp_path: Path, write: str
) -> None:
    (tmp_path / "file").write_bytes(b"1")
    writes: dict[str, Callable[[], object]] = {
        "create": lambda: folder_store.create("a/b/c", b"1"),
        "create_file": lambda: folder_store._backend.create_file("a/b/c", tmp_path / "file"),
    }
    writes[write]()
    assert calls == [
        ("fsync", "draft"),
        ("mkdir", "a"),
        ("fsync", "."),
        ("mkdir", "a/b"),
        ("fsync", "a"),
        ("link", "a/b/c"),
        ("fsync", "a/b"),
    ]
    calls.clear()
    folder_store.create("a/b/d", b"1")
    assert calls == [("fsync", "draft"), ("link", "a/b/d"), ("fsync", "a/b")]


def test_swap(folder_store: Store, calls: list[tuple[str, str]]) -> None:
    pointer = folder_store.pointer("a/p")
    held = pointer.swap(pointer.create(1), 2)
    calls.clear()
    pointer.swap(held, 3)
    assert calls == [("fsync", "draft"), ("replace", "a/p"), ("fsync", "a")]
