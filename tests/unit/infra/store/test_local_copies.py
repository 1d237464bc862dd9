"""Copies on this machine: whole or not there, kept while in use, and a fault of this machine is told as one."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_contracts.errors import CorruptError, UsageError
from infra import scratch
from infra.store import Manifest, Store, seal
from infra.store.backend import Backend
from infra.store.seal import copy_of
from tests.support.counted import away
from tests.support.processes import SLEEP, a_process
from tests.support.s3 import S3Server


@pytest.fixture
def manifest(folder_store: Store) -> Manifest:
    writer = folder_store.writer("datasets/k-0")
    writer.put("a", b"aaaa")
    writer.put("sub/b", b"b")
    return folder_store.manifest(writer.seal("dataset", {}, {}))


@pytest.fixture
def backend(folder_store: Store) -> Backend:
    return folder_store._backend


def laid_out(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_is_made_once_and_mended(manifest: Manifest, backend: Backend, tmp_path: Path) -> None:
    base = tmp_path / "deep/cache"
    copy = copy_of(manifest, backend, base)
    inode = copy.stat().st_ino
    assert copy_of(manifest, backend, base) == copy
    assert copy.stat().st_ino == inode
    (copy / "a").write_bytes(b"aaab")
    assert laid_out(copy_of(manifest, backend, base)) == {"a": b"aaaa", "sub/b": b"b"}
    assert list(base.iterdir()) == [copy]


@pytest.mark.parametrize("shards", [3, 30])
def test_many_files_are_read_at_once(shards: int, folder_store: Store, tmp_path: Path) -> None:
    """And the first of two that are missing is named, as if they were read one after the other."""
    writer = folder_store.writer("datasets/many-0")
    for number in range(shards):
        writer.put(f"part/{number:02}", b"%d" % number)
    ref = writer.seal("dataset", {}, {})
    store, backend = away(folder_store)
    copy = store.local(ref, cache=tmp_path / "cache")
    assert laid_out(copy) == {f"part/{number:02}": b"%d" % number for number in range(shards)}
    assert (backend.alone, backend.together) == (1, shards)
    counted: list[bool] = []
    store.verify(ref, on_file=lambda: counted.append(threading.current_thread() is threading.main_thread()))
    assert counted == [True] * shards
    assert (backend.alone, backend.together) == (1 + 2, 2 * shards)
    for number in (1, 2):
        folder_store.forget(f"datasets/many-0/part/{number:02}")
    for read in (store.verify, lambda ref: store.local(ref, cache=tmp_path / "another")):
        with pytest.raises(CorruptError, match="part/01 is missing"):
            read(ref)


def test_of_jobs_that_need_a_copy_at_once_one_downloads_it(
    manifest: Manifest, folder_store: Store, tmp_path: Path
) -> None:
    backends = [away(folder_store)[1] for _ in range(8)]
    together = threading.Barrier(8)

    def job(backend: Backend) -> Path:
        together.wait(60)
        return copy_of(manifest, backend, tmp_path / "cache")

    with ThreadPoolExecutor(8) as jobs:
        [copy] = set(jobs.map(job, backends))
    assert sum(backend.together for backend in backends) == len(manifest.files)
    assert list((tmp_path / "cache").iterdir()) == [copy]


def test_a_full_disk_here_is_no_fault_of_the_server(s3: S3Server, s3_store: Store) -> None:
    s3_store.create("x", bytes(10))
    s3.fault("pass", method="GET", match="/x", times=2)
    with pytest.raises(UsageError, match="No space left on device"):
        s3_store._backend.digest("x", Path("/dev/full"))
    assert [fault["times"] for fault in s3.clear()] == [1], "asked once: another try cannot help"


def test_what_a_killed_download_left_is_swept_by_the_next(manifest: Manifest, backend: Backend, tmp_path: Path) -> None:
    base = tmp_path / "cache"
    (base / "other").mkdir(parents=True)
    old = Path(backend.uri, "store.json").stat().st_mtime - 2 * scratch.SWEEP_AFTER_S
    program = f"""
from pathlib import Path
from infra import scratch
with scratch.make("copy", root=Path({str(base)!r})) as folder:
    (folder.path / "copy").mkdir()
    (folder.path / "copy" / "a").write_bytes(b"aa")
    {SLEEP}
"""
    with a_process(program):
        [killed] = [path for path in base.iterdir() if path.name != "other"]
    with a_process(program):
        [alive] = [path for path in base.iterdir() if path.name not in ("other", killed.name)]
        for folder in (killed, alive):
            os.utime(folder / scratch.NOTE, (old, old))
        copy = copy_of(manifest, backend, base)
        assert {path.name for path in base.iterdir()} == {alive.name, "other", copy.name}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Gives a folder's disk so many bytes, of which copies take what their files take."""

    def give(base: Path, total: int) -> None:
        def usage(path: Path) -> SimpleNamespace:
            used = sum(file.stat().st_size for file in base.rglob("*") if file.is_file())
            return SimpleNamespace(free=total - used)

        monkeypatch.setattr(shutil, "disk_usage", usage)

    return give


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "_held", {})


def copy(base: Path, letter: str, age: int, num_bytes: int = 100) -> Path:
    folder = base / (letter * 64)
    folder.mkdir(parents=True)
    (folder / "x").write_bytes(b"0" * num_bytes)
    os.utime(folder, (1000 - age, 1000 - age))
    return folder


def test_what_nobody_holds_makes_room_the_oldest_first(tmp_path: Path, disk: Callable[[Path, int], None]) -> None:
    disk(tmp_path, 400)
    young, old, oldest = copy(tmp_path, "a", 1), copy(tmp_path, "b", 2), copy(tmp_path, "c", 3)
    other = tmp_path / "another download"
    other.mkdir()
    seal.make_room(tmp_path, 100, "it")
    assert all(folder.exists() for folder in (young, old, oldest))
    seal.make_room(tmp_path, 150, "it")
    assert [folder.exists() for folder in (young, old, oldest, other)] == [True, True, False, True]


def test_what_another_process_holds_is_kept_until_it_ends(tmp_path: Path, disk: Callable[[Path, int], None]) -> None:
    disk(tmp_path, 100)
    held = copy(tmp_path, "a", 1)
    program = f"""
from pathlib import Path
from infra.store import seal
assert seal.hold(Path({str(held)!r}))
{SLEEP}
"""
    with a_process(program), pytest.raises(UsageError, match="0 bytes free"):
        seal.make_room(tmp_path, 1, "it")
    seal.make_room(tmp_path, 1, "it")
    assert not held.exists()


def test_a_disk_too_small_is_named_before_anything_is_fetched(
    s3_store: Store, tmp_path: Path, disk: Callable[[Path, int], None]
) -> None:
    writer = s3_store.writer("datasets/k-0")
    (tmp_path / "x").write_bytes(b"0" * 50)
    writer.put("x", tmp_path / "x")
    ref = writer.seal("dataset", {}, {})
    cache = tmp_path / "cache"
    disk(cache, 49)
    with pytest.raises(UsageError, match="has 49 bytes free, but a copy of datasets/k-0 takes 50"):
        s3_store.local(ref, cache=cache)
    assert list(cache.iterdir()) == []
    disk(cache, 50)
    assert (s3_store.local(ref, cache=cache) / "x").stat().st_size == 50


def test_a_copy_that_another_process_deletes_at_once_is_made_again(
    manifest: Manifest, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, held = seal.hold, list[bool]()

    def deleted_once(folder: Path) -> bool:
        if len(held) == 2:
            shutil.rmtree(folder)
        held.append(hold(folder))
        return held[-1]

    monkeypatch.setattr(seal, "hold", deleted_once)
    copy = copy_of(manifest, backend, tmp_path / "cache")
    assert (held, laid_out(copy)) == ([False, False, False, True], {"a": b"aaaa", "sub/b": b"b"})


@pytest.mark.parametrize("use", ["copy", "link", "verify"])
def test_a_stored_file_that_grew_without_end_is_not_read_to_its_end(
    use: str, folder_store: Store, manifest: Manifest, backend: Backend, tmp_path: Path
) -> None:
    grown = Path(folder_store.uri, "datasets/k-0/a")
    grown.chmod(0o600)
    os.truncate(grown, 2**42)  # zeros that take no space there, but would fill the disk of whoever copies them
    uses = {
        "copy": lambda: copy_of(manifest, backend, tmp_path / "cache"),
        "link": lambda: folder_store.local("datasets/k-0"),
        "verify": lambda: folder_store.verify("datasets/k-0"),
    }
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, most))
    try:
        with pytest.raises(CorruptError, match="^datasets/k-0/a does not hold the bytes that were sealed"):
            uses[use]()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
