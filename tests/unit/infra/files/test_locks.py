"""Locks on this machine: of two holders one waits, and a folder in use is never deleted to make room."""

from __future__ import annotations

import os
import shutil
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


def folder(base: Path, name: str, used_s: int) -> Path:
    made = base / name
    made.mkdir()
    os.utime(made, (used_s, used_s))
    return made


def test_the_least_recently_used_that_nobody_holds_goes_first(tmp_path: Path) -> None:
    folders = [folder(tmp_path, name, used_s) for used_s, name in enumerate(["held", "old", "young"])]
    handle = hold(folders[0])
    assert handle is not None
    os.utime(folders[0], (0, 0))
    make_room(folders, lambda: len(list(tmp_path.iterdir())) <= 2)
    assert {path.name for path in tmp_path.iterdir()} == {"held", "young"}
    os.close(handle)
    make_room([path for path in folders if path.exists()], lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_not_held(tmp_path: Path) -> None:
    made = folder(tmp_path, "gone", 0)
    shutil.rmtree(made)
    assert hold(made) is None
