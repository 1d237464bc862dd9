"""What a folder and S3 do alike: create once, read, list, replace by tag."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.processes.this_process import COUNTERS
from infra.store import Store
from infra.store.s3 import S3Backend


@pytest.mark.parametrize("data", [b"first", b"", b"\x00\xff" * 10, "é".encode()])
def test_create_once(store: Store, data: bytes) -> None:
    store.create("runs/a/report.json", data)
    for again in (b"second", data):
        with pytest.raises(FileExistsError):
            store.create("runs/a/report.json", again)
    assert store.read("runs/a/report.json") == data


def test_requests_and_bytes_are_counted(store: Store, request: pytest.FixtureRequest) -> None:
    store.exists("nothing")
    COUNTERS.take()
    store.create("x", b"12345")
    store.read("x")
    store.list("")
    store.exists("x")
    used = COUNTERS.take()
    assert (used.written_bytes, used.read_bytes) == (5, 5)
    if "named" in request.node.name:
        assert (used.put_requests, used.get_requests) == (1, 2), "the database knows which names there are"
    else:
        assert used.put_requests in (1, 2), "a listing is of the same class"
        assert used.get_requests in (2, 3), "on S3, s3fs may look at what it wrote"


@pytest.mark.parametrize("path", ["no/such", "a/b/c"])
def test_missing(store: Store, path: str) -> None:
    store.create("a/b", b"")  # a file, not a folder
    assert not store.exists(path)
    with pytest.raises(FileNotFoundError):
        store.read(path)


def test_exists_and_list(store: Store) -> None:
    # What NFS and desktops leave behind has a dot, and is no alias, no run and no version.
    for path in ("runs/b/1", "runs/a/1", "runs/a/2", "runs/a/.nfs0001", "runs/c", "runs-x/d", ".hidden/c"):
        store.create(path, b"")
    assert store.exists("runs/a/1")
    assert store.list("runs") == ["a", "b", "c"]
    assert store.list("runs/a") == ["1", "2"]
    assert store.list("nothing") == store.list("runs/c") == []
    assert store.list("") == ["runs", "runs-x", "store.json"]


def test_lists_more_than_a_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(store._backend, S3Backend):
        call = store._backend._fs.call_s3
        few = lambda method, **more: call(method, **({"MaxKeys": 2} if "list" in method else {}), **more)  # noqa: E731
        monkeypatch.setattr(store._backend._fs, "call_s3", few)
    for n in range(5):
        store.create(f"f/{n}/x", b"")
    assert store.list("f") == list("01234")
    assert store._backend.walk("f") == [f"{n}/x" for n in range(5)]


LEAVING = ["", "/etc/x", "../x", "a/../x", "a//b", "a/", "./a", "a\\b", "a\nb", "a\x00b", "a/" + "é" * 128, "a/\udce9"]


@pytest.mark.parametrize("path", LEAVING)
def test_paths_that_leave_the_store_are_refused(folder_store: Store, path: str) -> None:
    uses = (folder_store.read, folder_store.exists, folder_store.writer, folder_store.pointer, folder_store.manifest)
    for use in (*uses, lambda path: folder_store.create(path, b"")):
        with pytest.raises(UsageError, match="cannot be a path in a store"):
            use(path)
    for use in (lambda: folder_store.list(".."), lambda: folder_store.remove(path, why="", by="")):
        with pytest.raises(UsageError):
            use()


def test_a_file_is_created_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 11 MiB in parts of 5 MiB: on S3 the large one is a multipart upload.
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 5 * 2**20)
    for name, size in (("small", 10), ("large", 11 * 2**20)):
        source, other = tmp_path / name, tmp_path / "other"
        source.write_bytes(os.urandom(size))
        other.write_bytes(os.urandom(size))
        store._backend.create_file(f"f/{name}", source)
        with pytest.raises(FileExistsError):
            store._backend.create_file(f"f/{name}", other)
        assert store.read(f"f/{name}") == source.read_bytes()
        copy = tmp_path / "copy"
        assert store._backend.digest(f"f/{name}", copy) == store._backend.digest(f"f/{name}")
        assert copy.read_bytes() == source.read_bytes()
    with pytest.raises(FileNotFoundError):
        store._backend.create_file("f/absent", tmp_path / "absent")
    assert not store.exists("f/absent")


def test_large_data_is_created_once(s3_store: Store) -> None:
    data = bytes(100 * 2**20)  # from here on s3fs uses a multipart upload
    assert s3_store._backend.create("large", data) == s3_store._backend.read("large")[1]
    with pytest.raises(FileExistsError):
        s3_store.create("large", data)


def test_delete(store: Store) -> None:
    store.create("d/e/f", b"")
    store.create("d/g", b"")
    for _ in range(2):
        store._backend.delete("d/e/f")
    assert store.list("d") == ["g"]
    store._backend.delete("d/g")
    assert store.list("") == ["store.json"]


def test_goes_on_after_a_fork(store: Store) -> None:
    store.create("x", b"1")
    child = os.fork()
    if child == 0:
        try:
            store.create("y", store.read("x"))
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (store.read("x"), store.read("y")) == (b"1", b"1")
