"""Locks on this machine: of two holders one waits, and a folder in use is never deleted to make room."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from infra.files import hold, locked, make_room


@pytest.mark.parametrize("name", ["a folder", "a file that is made"])
def test_of_two_one_waits(name: str, tmp_path: Path) -> None:
    path = tmp_path / "lock" if "file" in name else tmp_path
    order: list[str] = []
    asked = threading.Event()

    def second() -> None:
        asked.set()
        with locked(path):
            order.append("second")

    with locked(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert asked.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_the_least_recently_used_that_nobody_holds_goes_first(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("held", "old", "young")]
    for folder in folders:
        folder.mkdir()
    handle = hold(folders[0])
    assert handle is not None
    for used_s, folder in enumerate(folders):
        os.utime(folder, (used_s, used_s))
    make_room(folders, lambda: len(list(tmp_path.iterdir())) <= 2)
    assert {path.name for path in tmp_path.iterdir()} == {"held", "young"}
    os.close(handle)
    make_room([path for path in folders if path.exists()], lambda: False)
    assert list(tmp_path.iterdir()) == []
    assert hold(folders[0]) is None, "it is gone"
