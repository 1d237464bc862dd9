"""Opening and making a store: what it says of itself, and who is turned away with which sentence."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, UsageError
from infra.store import Store, open_store
from tests.support.damage import overwrite
from tests.support.s3 import S3Server
from tests.support.users import NOBODY, as_user, open_to_all

PROBED = {
    "conditional_create": True,
    "conditional_large_create": True,
    "conditional_overwrite": True,
    "conditional_race": True,
}


def test_a_store_says_what_the_probe_found(store: Store) -> None:
    about = store.read_json("store.json")
    assert about.pop("made")
    assert about.pop("probe") == PROBED
    with_a_database = about["pointers"] != "store"
    assert with_a_database or about == {"pointers": "store", "schema": 3}
    assert not with_a_database or (about["pointers"][:9], about["schema"], about["uri"]) == ("sqlite://", 3, store.uri)
    before = store.read("store.json")
    again = open_store(store.uri, store.storage_options)
    assert again.read("store.json") == before, "fixed when made"
    assert again.uri == store.uri
    assert store._backend.walk(".probe") == []


def test_no_store_and_none_wanted(s3: S3Server, tmp_path: Path) -> None:
    for uri, options in ((str(tmp_path / "x"), {}), (f"s3://{s3.bucket()}/x", s3.options)):
        with pytest.raises(
            UsageError, match=f"^There is no store at {uri}. Name one that exists, or run a pipeline to "
        ):
            open_store(uri, options, create=False)
    assert not (tmp_path / "x").exists()


def test_a_newer_store(store: Store) -> None:
    kept = getattr(store._backend, "_objects", store._backend)  # a database does not hold the `store.json` that counts
    kept.delete("store.json")
    kept.create("store.json", b'{"schema":4}')
    newer = f"^The store {store.uri} has schema 4, newer than the 3 that this Trainwright reads. Upgrade Trainwright."
    with pytest.raises(UsageError, match=newer):
        open_store(store.uri, store.storage_options)


NAMED = {"schema": 1, "pointers": "sqlite:////x/names.db", "uri": "/x"}
BROKEN = ["", "[]", '{"schema":"1"}', "{}"]
BROKEN += [json.dumps({**NAMED, **more}) for more in ({"uri": 5}, {"pointers": 5}, {"host": {"name": 5}}, {"host": {}})]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_store_file(folder_store: Store, text: str) -> None:
    overwrite(Path(folder_store.uri, "store.json"), text)
    with pytest.raises(CorruptError, match=r"store\.json") as raised:
        open_store(folder_store.uri)
    assert raised.value.details == {"file": "store.json"}


NOT_IMPLEMENTED = {"do": "refuse", "status": 501, "code": "NotImplemented"}
FALSE_412 = {"do": "refuse", "status": 412, "code": "PreconditionFailed"}
# A server that ignores a condition, does not know it, or refuses one that holds: which request of the probe, after how
# many PUTs (three creates, a part, a create, an overwrite) that are carried out as they are.
DISHONEST = [
    ("conditional_create", {"do": "ignore", "method": "PUT", "times": 2}, 0),
    ("conditional_large_create", {"do": "ignore", "method": "POST", "match": "uploadId="}, 0),
    ("conditional_overwrite", {"do": "ignore", "method": "PUT"}, 6),
    ("conditional_create", {"method": "PUT", **NOT_IMPLEMENTED}, 0),
    ("conditional_create", {"method": "PUT", **FALSE_412}, 0),
    ("conditional_large_create", {"method": "POST", "match": "uploadId=", **NOT_IMPLEMENTED}, 0),
    ("conditional_overwrite", {"method": "PUT", **NOT_IMPLEMENTED}, 5),
    ("conditional_overwrite", {"method": "PUT", **FALSE_412}, 5),
]


@pytest.mark.parametrize(("what", "fault", "after"), DISHONEST)
def test_a_server_without_conditional_writes_is_refused(s3: S3Server, what: str, fault: dict, after: int) -> None:
    uri = f"s3://{s3.bucket()}/x"
    if after:
        s3.fault("pass", method="PUT", match=".probe/", times=after)
    s3.fault(**{"match": ".probe/", **fault})
    words = rf"does not honour conditional writes \({what}\), so two writers could overwrite each other\."
    with pytest.raises(UsageError, match=f"^The server of {uri} {words}"):
        open_store(uri, s3.options)
    with pytest.raises(UsageError, match="There is no store"):
        open_store(uri, s3.options, create=False)


# Who may not, and what does not answer.


@pytest.mark.parametrize("what", ["make", "create", "swap", "list"])
def test_a_folder_without_permission(folder_store: Store, tmp_path: Path, what: str) -> None:
    open_to_all(tmp_path / "store")
    pointer = folder_store.pointer("p")
    held = pointer.create(1)
    closed = tmp_path / "store" / "closed"
    closed.mkdir(mode=0o700)
    if os.geteuid() != 0:
        for folder in (closed, tmp_path / "store/.tmp", tmp_path / "store", tmp_path):
            folder.chmod(0o500 if folder != closed else 0)
    work, named = {
        "make": (lambda: open_store(str(tmp_path / "other")), ""),
        "create": (lambda: open_store(folder_store.uri).create("x", b""), "x in "),
        "swap": (lambda: pointer.swap(held, 2), "p in "),
        "list": (lambda: folder_store.list("closed"), "closed in "),
    }[what]
    where = tmp_path / ("other" if what == "make" else "store")

    def refused() -> None:
        with pytest.raises(UsageError) as raised:
            work()
        assert raised.value.message == f"This user may not use {named}the store {where} (Permission denied)."
        assert raised.value.remedy == "Give this user permission for the folder, or name another store."

    as_user(NOBODY, refused)
    for folder in (tmp_path, tmp_path / "store", tmp_path / "store/.tmp"):
        folder.chmod(0o700)


def test_a_store_that_may_only_be_read_is_read(folder_store: Store, tmp_path: Path) -> None:
    folder_store.create("x", b"1")
    open_to_all(tmp_path / "store")
    old = tmp_path / "store/.tmp/old"
    old.write_bytes(b"")
    os.utime(old, (0, 0))

    def work() -> None:
        assert open_store(folder_store.uri).read("x") == b"1"

    as_user(NOBODY, work)


@pytest.mark.parametrize("uri", ["file", "file/below", "/proc/store"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, uri: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    why = "its file system takes no new folders" if uri[0] == "/" else f"{tmp_path}/file is a file, not a folder"
    refused = re.escape(f"The folder of the store {tmp_path / uri} cannot be made: {why}. Name another folder.")
    with pytest.raises(UsageError, match=f"^{refused}$"):
        open_store(str(tmp_path / uri))


def test_a_folder_under_a_file(folder_store: Store) -> None:
    folder_store.create("a", b"")
    with pytest.raises(UsageError, match="may not use a/b in the store"):
        folder_store.create("a/b", b"")
    assert not folder_store.exists("a/b")
    assert folder_store.list("a/b") == []


def test_a_folder_that_was_just_removed_is_made_again(folder_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process deletes an empty folder between our making it and our link."""
    link = os.link
    removals = 3

    def removed_first(source: str, target: Path, **more: Any) -> None:
        nonlocal removals
        if removals:
            removals -= 1
            target.parent.rmdir()
        link(source, target, **more)

    monkeypatch.setattr(os, "link", removed_first)
    folder_store.create("a/b", b"1")
    assert folder_store.read("a/b") == b"1"
    removals = 1000
    with pytest.raises(FileNotFoundError):
        folder_store.create("c/d", b"1")


def test_a_link_whose_answer_was_lost_is_ours(folder_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS does: the server linked, its answer was lost, and the request sent again finds the name taken."""
    link = os.link

    def twice(source: str, target: Path, **more: Any) -> None:
        with contextlib.suppress(FileExistsError):
            link(source, target, **more)
        link(source, target, **more)

    monkeypatch.setattr(os, "link", twice)
    folder_store.create("a", b"1")
    assert folder_store.read("a") == b"1"
    with pytest.raises(FileExistsError):
        folder_store.create("a", b"1")


def test_a_lock_is_let_go_although_a_child_holds_the_file(folder_store: Store) -> None:
    """A child forked while the lock was held keeps the open file; it must not keep the lock."""
    held = folder_store.pointer("p").create(1)
    reading, writing = os.pipe()
    with folder_store._backend._locked("p"):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    assert folder_store.pointer("p").swap(held, 2).value == 2
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)
