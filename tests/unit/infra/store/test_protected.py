"""Files of a folder store are read-only; what must change or be deleted still can, for a group too, without root."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from infra import code_bundle
from infra.store import Store, open_store
from tests.support.files import umask, write_files
from tests.support.users import COLLEAGUE, GROUP, NOBODY, as_user, open_to_all


def filled(root: Path) -> Store:
    """A store with a sealed directory, a bundle of code and a pointer that has moved once."""
    store = open_store(str(root))
    store.writer("datasets/k-0").put("a", b"a")
    write_files(root.parent, {"file": b"b", "project/mine.py": "x = 1\n"})
    writer = store.writer("datasets/k-0")
    writer.put("b", root.parent / "file")
    writer.put_chunks("c", [memoryview(b"c")], root.parent)
    writer.seal("dataset", {}, {})
    code_bundle.pack(root.parent / "project", store)
    moved(store)
    return store


def moved(store: Store) -> int:
    """Move the pointer; returns how often it was moved."""
    pointer = store.pointer("aliases/m/champion")
    current = pointer.read()
    return pointer.swap(current, {"n": 1 if current is None else current.value["n"] + 1}).value["n"]


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.parent.name != ".locks"]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that every user can reach and write to."""
    open_to_all(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o2777)
    os.chown(place, -1, GROUP)
    return place


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o444), (0o002, 0o444), (0o027, 0o440), (0o077, 0o400)])
def test_everything_is_read_only_and_the_umask_says_who_may_read(tmp_path: Path, mask: int, mode: int) -> None:
    with umask(mask):
        store = filled(tmp_path / "store")
        assert moved(store) == 2
    modes = {str(path): stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path / "store")}
    assert len(modes) > 8
    assert {path: one for path, one in modes.items() if one != mode} == {}
    for path in files(tmp_path / "store"):  # as an earlier version left them
        path.chmod(0o664)
    store = open_store(str(tmp_path / "store"), create=False)
    assert [entry.path for entry in store.verify("datasets/k-0").files] == ["a", "b", "c"]
    assert moved(store) == 3


@pytest.mark.root
def test_a_user_cannot_write_in_place_and_can_do_all_else(shared: Path) -> None:
    def work() -> None:
        os.environ["TRAINWRIGHT_HOME"] = str(shared / "home")
        store = filled(shared / "store")
        for path in files(shared / "store"):
            with pytest.raises(PermissionError):
                path.write_bytes(b"")
        [bundle] = store.list("code")
        laid_out = code_bundle.unpack(store, store.manifest(f"code/{bundle}").ref, shared / "unpacked")
        (laid_out / "mine.py").write_text("changed\n")
        store.remove("datasets/k-0", why="a test", by="a test")
        assert not store.exists("datasets/k-0/a")
        shutil.rmtree(shutil.copytree(shared / "store", shared / "copy"))
        shutil.rmtree(shared / "store")

    as_user(NOBODY, work)


@pytest.mark.root
def test_a_store_of_a_group_is_everybodys_in_it(shared: Path) -> None:
    store = shared / "store"
    store.mkdir()
    store.chmod(0o2770)

    def work() -> None:
        os.environ["TRAINWRIGHT_HOME"] = str(shared / "home")
        filled(store)

    as_user(NOBODY, work, umask=0o002)
    for uid in (COLLEAGUE, NOBODY, COLLEAGUE):
        as_user(uid, lambda: moved(open_store(str(store))), umask=0o002)
    as_user(COLLEAGUE, lambda: open_store(str(store)).remove("datasets/k-0", why="t", by="t"), umask=0o002)
    assert open_store(str(store)).pointer("aliases/m/champion").read().value == {"n": 4}
    assert not (store / "datasets/k-0/a").exists()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_store_that_is_made_is_closed_to_others_and_a_folder_that_is_there_stays_as_it_is(
    tmp_path: Path, mask: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    with umask(mask):
        for folder in (tmp_path / "project" / "store", shared):
            open_store(str(folder)).create("runs/r/x.json", b"1")
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (tmp_path / "project" / "store", shared)]
    assert modes == [0o700, 0o2775]
    assert stat.S_IMODE((tmp_path / "project").stat().st_mode) == 0o777 & ~mask
