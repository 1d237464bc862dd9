"""A link in a folder store leads no command out of it: what it points to is neither deleted nor written to."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError
from infra.garbage import Limits, collect
from infra.store import Store, open_store

DRAFT = "0123456789abcdef" * 2
OWN = (".tmp", ".probe", ".locks")


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Somebody's files, two days old, some named like a draft, some a folder deeper; they must stay as they are."""
    for name in ("id_ed25519", DRAFT, f"keys/{DRAFT}", f"a/{DRAFT}"):
        (tmp_path / "outside" / name).parent.mkdir(parents=True, exist_ok=True)
        aged(tmp_path / "outside" / name)
    before = files(tmp_path / "outside")
    yield tmp_path / "outside"
    assert files(tmp_path / "outside") == before


def aged(path: Path) -> None:
    path.write_bytes(b"theirs")
    os.utime(path, (time.time() - 200_000,) * 2)


def files(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file())


def put_link(store: Store, name: str, target: Path) -> None:
    """`target` in the place of the store's folder `name`."""
    place = Path(store.uri, name)
    if place.exists():
        place.rename(place.with_name("moved"))
    place.symlink_to(target)


WORK: dict[str, Callable[[Store], object]] = {
    "open": lambda store: open_store(store.uri, create=False),
    "gc": lambda store: collect(store, by="a test", limits=Limits(keep_s=0, grace_s=0)),
    "gc --dry-run": lambda store: collect(store, by="a test", limits=Limits(keep_s=0, grace_s=0), dry_run=True),
    "write": lambda store: store.create("x", b"1"),
    "create a pointer": lambda store: store.pointer("p").create(1),
    "move a pointer": lambda store: store.pointer("q").swap(store.pointer("q").read(), 2),
}
USED = {"write": [".tmp"], "create a pointer": [".tmp"], "move a pointer": [".locks"]}


@pytest.mark.parametrize(("work", "name"), [(work, name) for work in WORK for name in USED.get(work, OWN)])
def test_a_link_for_one_of_its_own_folders(folder_store: Store, outside: Path, work: str, name: str) -> None:
    """The pointer that is moved is there before: only then is its lock used."""
    folder_store.pointer("q").create(1)
    put_link(folder_store, name, outside)
    with pytest.raises(CorruptError, match=f"^{name} in the store {folder_store.uri} is a link"):
        WORK[work](folder_store)


@pytest.mark.parametrize("name", OWN)
def test_a_file_and_a_link_to_nothing_are_no_folders_either(folder_store: Store, tmp_path: Path, name: str) -> None:
    put_link(folder_store, name, tmp_path / "nothing")
    with pytest.raises(CorruptError, match="is a link"):
        open_store(folder_store.uri)
    Path(folder_store.uri, name).unlink()
    Path(folder_store.uri, name).write_bytes(b"")
    with pytest.raises(CorruptError, match=rf"^\{name} in the store .* is not a folder\."):
        open_store(folder_store.uri)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("place", [f".tmp/{DRAFT}", ".tmp/deep/er", ".probe/x"])
@pytest.mark.parametrize("work", ["gc", "gc --dry-run"])
def test_a_link_deeper_in_them(folder_store: Store, outside: Path, place: str, work: str) -> None:
    Path(folder_store.uri, place).parent.mkdir(parents=True, exist_ok=True)
    Path(folder_store.uri, place).symlink_to(outside)
    with pytest.raises(CorruptError, match=f"^{place} in the store .* is a link"):
        WORK[work](open_store(folder_store.uri))


def test_opening_sweeps_old_drafts_and_nothing_else(folder_store: Store) -> None:
    own, young = Path(folder_store.uri, ".tmp"), "1" * 32
    for name in (DRAFT, young, "notes.txt", f"keys/{DRAFT}"):
        (own / name).parent.mkdir(exist_ok=True)
        aged(own / name)
    os.utime(own / young, (time.time() - 80_000,) * 2)  # not yet a day
    open_store(folder_store.uri)
    assert [Path(path).relative_to(own).as_posix() for path, _ in files(own)] == [young, f"keys/{DRAFT}", "notes.txt"]


@pytest.mark.parametrize("folder", [".tmp", ".tmp/keys"])
def test_a_leftover_whose_folder_was_swapped_for_a_link_stays(folder_store: Store, outside: Path, folder: str) -> None:
    """Between the listing and the deletion."""
    Path(folder_store.uri, folder).mkdir(exist_ok=True)
    aged(Path(folder_store.uri, folder, DRAFT))
    [left] = folder_store.leftovers()
    put_link(folder_store, folder, outside)
    with pytest.raises(CorruptError, match="is a link"):
        folder_store.drop(left)


@pytest.mark.parametrize("folder", ["runs", "runs/a"])
def test_a_directory_swapped_for_a_link_while_it_is_removed(folder_store: Store, outside: Path, folder: str) -> None:
    folder_store.create(f"runs/a/{DRAFT}", b"1")
    asked = 0

    def swapped() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            put_link(folder_store, folder, outside)
        return False

    with pytest.raises(CorruptError, match=f"^{folder} in the store .* is a link"):
        folder_store.remove("runs/a", why="a test", by="a test", unless=swapped)
    assert asked == 2


def test_a_draft_is_not_followed_when_its_folder_is_swapped(folder_store: Store, outside: Path) -> None:
    """The draft stays in the folder that was opened, wherever that is called meanwhile."""

    def chunks() -> Iterator[memoryview]:
        yield memoryview(b"1")
        put_link(folder_store, ".tmp", outside)
        yield memoryview(b"2")

    with contextlib.suppress(CorruptError):
        folder_store._backend.create_from("x", chunks(), outside)
    assert folder_store.read("x") == b"12"
    assert os.listdir(Path(folder_store.uri, "moved")) == []


def test_no_descriptor_is_left_open(folder_store: Store) -> None:
    def use() -> int:
        for name in ("a/b", "a/c"):
            folder_store.create(name, b"1")
        pointer = folder_store.pointer("p")
        pointer.swap(pointer.read(), 1)
        assert len(folder_store.stored("a")) == 2
        for name in ("a/b", "a/c"):
            assert folder_store.read(name) == b"1"
            folder_store.forget(name)
        folder_store.leftovers()
        folder_store.now_s()
        # Other threads of this process open and close sockets.
        opened = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        return sum(path.startswith(os.path.realpath(folder_store.uri)) for path in opened)

    use()
    assert use() == use() == use()
