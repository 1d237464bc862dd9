"""Verify, local copies, attempts and removal: what is broken is named, what is gone is passed over."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from infra.store import Manifest, Store, layout, seal
from infra.store.backend import Backend
from infra.store.seal import write_manifest
from infra.store.store import Share

URI = "datasets/k-0"


def make(store: Store, uri: str = URI, **files: bytes) -> Ref:
    writer = store.writer(uri)
    for name, data in (files or {"a": b"aaaa", "b": b"bb"}).items():
        writer.put(name, data)
    writer.put("sub/c", b"c")
    return writer.seal("dataset", {"seed": 1}, {"actor": "me"})


def overwrite(store: Store, path: str, data: bytes) -> None:
    """Change stored bytes behind the store's back."""
    store._backend.delete(path)
    store.create(path, data)


def relabel(store: Store) -> None:
    """Another whole manifest, true to the files, in the place of the one pointed at."""
    manifest = store.manifest(URI)
    overwrite(store, f"{URI}/manifest.json", write_manifest("dataset", {"seed": 2}, {}, manifest.files)[0])


DAMAGE: dict[str, tuple[Callable[[Store], None], str]] = {
    "a changed byte": (
        lambda store: overwrite(store, f"{URI}/a", b"aaba"),
        "a does not hold the bytes that were sealed",
    ),
    "a shorter file": (lambda store: overwrite(store, f"{URI}/b", b"b"), "b does not hold the bytes that were sealed"),
    "a missing file": (lambda store: store._backend.delete(f"{URI}/sub/c"), "sub/c is missing"),
    "an extra file": (lambda store: store.create(f"{URI}/d", b""), "d is extra"),
    "an extra file below": (lambda store: store.create(f"{URI}/sub/manifest.json", b""), "sub/manifest.json is extra"),
    "another manifest": (relabel, "manifest.json is whole, but is not the one that the reference names"),
    "a broken manifest": (
        lambda store: overwrite(
            store, f"{URI}/manifest.json", store.read(f"{URI}/manifest.json").replace(b"me", b"it")
        ),
        "manifest.json was changed after it was sealed",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_names_what_is_broken(store: Store, damage: str, tmp_path: Path) -> None:
    ref = make(store)
    assert store.verify(ref) == store.verify(URI) == store.manifest(ref) == store.manifest(URI)
    do, sentence = DAMAGE[damage]
    do(store)
    with pytest.raises(CorruptError, match=f"^{URI}/{sentence}") as raised:
        store.verify(ref)
    assert raised.value.details == {"file": f"{URI}/{sentence.split()[0]}"}
    if "extra" not in damage:
        with pytest.raises(CorruptError, match=sentence):
            store.local(ref, cache=tmp_path / "cache")
        assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_divide_the_files_of_a_verify(folder_store: Store, processes: int) -> None:
    ref = make(folder_store)
    overwrite(folder_store, f"{URI}/b", b"??")
    read: list[int] = []
    found = 0
    for number in range(processes):
        try:
            folder_store.verify(ref, lambda: read.append(0), Share(number, processes))
        except CorruptError:
            found += 1
    assert found == 1
    assert len(read) == (1 if processes == 1 else 2), "alone, the first fault ends it"


@pytest.mark.parametrize("where", ["a", "sub", "more", ""])
@pytest.mark.parametrize("outside", [True, False])
def test_links_are_refused_and_removed_without_being_followed(
    folder_store: Store, tmp_path: Path, where: str, outside: bool
) -> None:
    """A link's target can change later, so even one to the very same bytes is refused."""
    ref = make(folder_store)
    place = Path(folder_store.uri, URI, where) if where else Path(folder_store.uri, URI)
    target = tmp_path / "outside" if outside else Path(folder_store.uri, "inside")
    if place.exists():
        os.rename(place, target)
    else:
        target.write_bytes(b"")
    kept = sorted(target.rglob("*"))
    place.symlink_to(target)
    with pytest.raises(CorruptError, match=f"^{URI}{where and '/'}{where} is a link") as raised:
        folder_store.verify(ref)
    assert raised.value.details == {"file": f"{URI}/{where}".rstrip("/")}
    folder_store.remove(URI, why="test", by="test")
    assert sorted(target.rglob("*")) == kept
    assert not place.is_symlink()
    assert folder_store.list("datasets") == []
    assert folder_store.exists(f"tombstones/{URI}.json")


def test_a_named_pipe_hangs_neither_a_reader_nor_the_one_that_moves_a_pointer(folder_store: Store) -> None:
    ref, pointer = make(folder_store), folder_store.pointer("p")
    before = pointer.create({"a": 1})
    for path in (f"{URI}/a", "p"):
        Path(folder_store.uri, path).unlink()
        os.mkfifo(Path(folder_store.uri, path))
    with pytest.raises(CorruptError, match="datasets/k-0/a is a link or a special file"):
        folder_store.verify(ref)
    for use in (lambda: folder_store._backend.digest(f"{URI}/a"), lambda: pointer.swap(before, {"a": 2})):
        with pytest.raises(CorruptError, match="is not a plain file"):
            use()


def test_a_key_that_climbs_out_is_extra(s3_store: Store) -> None:
    ref = make(s3_store)
    s3_store._backend._fs.call_s3("put_object", Bucket=s3_store._backend.bucket, Key=f"a/prefix/{URI}/../x", Body=b"")
    with pytest.raises(CorruptError, match=r"datasets/k-0/\.\./x is extra"):
        s3_store.verify(ref)


def test_local_in_a_folder_is_a_checked_copy_with_links_to_large_files(folder_store: Store) -> None:
    ref = make(folder_store)
    folder = folder_store.local(ref)
    assert folder == folder_store.local(URI) != Path(folder_store.uri, URI)
    assert (folder / "a").read_bytes() == b"aaaa"
    overwrite(folder_store, f"{URI}/a", b"bbbb")
    assert (folder / "a").read_bytes() == b"aaaa"


def test_of_two_downloads_one_is_kept(s3_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = make(s3_store)
    download = seal._download

    def other_is_faster(manifest: Manifest, backend: Backend, folder: Path) -> None:
        monkeypatch.setattr(seal, "_download", download)
        seal._make(
            manifest, backend, tmp_path / manifest.seal
        )  # on a machine with the same folder, but without its locks
        download(manifest, backend, folder)

    monkeypatch.setattr(seal, "_download", other_is_faster)
    copy = s3_store.local(ref, cache=tmp_path)
    assert list(tmp_path.iterdir()) == [copy]
    assert (copy / "b").read_bytes() == b"bb"


def test_attempts_and_removal(store: Store) -> None:
    assert store.newest("datasets", "k") is None
    assert store.next_attempt("datasets", "k") == "datasets/k-0"
    store.writer("datasets/k-0").put("a", b"1")
    assert store.newest("datasets", "k") is None, "not sealed"
    assert store.next_attempt("datasets", "k") == "datasets/k-0", "continued"
    first = store.writer("datasets/k-0").seal("dataset", {}, {})
    assert store.newest("datasets", "k") == first
    assert store.next_attempt("datasets", "k") == "datasets/k-1"
    second = make(store, "datasets/k-1")
    assert store.newest("datasets", "k") == second
    overwrite(store, "datasets/k-1/a", b"tampered")
    assert store.newest("datasets", "k") == first, "the corrupt one is passed over"
    for why in ("too old", "again"):
        assert store.remove("datasets/k-1", why=why, by="me") is True
    assert store.list("datasets") == ["k-0"]
    tombstone = store.read_json("tombstones/datasets/k-1.json")
    assert tombstone.pop("time")
    assert tombstone == {"by": "me", "uri": "datasets/k-1", "why": "too old"}
    assert store.next_attempt("datasets", "k") == "datasets/k-2", "a number is never used again"
    with pytest.raises(FileNotFoundError):
        store.manifest("datasets/k-1")


def test_a_newer_schema_is_not_passed_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make(store)
    monkeypatch.setattr("infra.store.seal.SCHEMA", 0)
    with pytest.raises(UsageError, match="newer than the 0 that this Trainwright reads"):
        store.newest("datasets", "k")


@pytest.mark.parametrize("deletes", range(4))
def test_a_removal_that_was_cut_off(folder_store: Store, monkeypatch: pytest.MonkeyPatch, deletes: int) -> None:
    """The tombstone counts from the start, the manifest is the first to go, and a second call ends it."""
    make(folder_store)
    ends = chain(repeat(DEFAULT, deletes), [KeyboardInterrupt])
    with monkeypatch.context() as patch:
        patch.setattr(folder_store._backend, "delete", Mock(wraps=folder_store._backend.delete, side_effect=ends))
        with pytest.raises(KeyboardInterrupt):
            folder_store.remove(URI, why="", by="")
    assert folder_store.exists(f"{URI}/manifest.json") == (deletes == 0)
    assert folder_store.newest("datasets", "k") is None
    assert folder_store.next_attempt("datasets", "k") == "datasets/k-1"
    folder_store.remove(URI, why="", by="")
    assert folder_store.list("datasets") == []


def test_all_manifests_go_before_any_file(folder_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make(folder_store, "trainings/k-0/checkpoints/1-g0")
    folder_store.create_json("trainings/k-0/a.json", {})
    order: list[str] = []
    monkeypatch.setattr(type(folder_store._backend), "delete", lambda backend, path: order.append(path))
    folder_store.remove("trainings/k-0", why="", by="")
    assert order[0] == "trainings/k-0/checkpoints/1-g0/manifest.json"
    assert len(order) == 5


@pytest.mark.parametrize(("answers", "tombstone"), [([True], False), ([False, True], True)])
def test_a_removal_is_given_up_if_the_directory_is_needed_after_all(
    folder_store: Store, answers: list[bool], tombstone: bool
) -> None:
    make(folder_store)
    left = list(answers)
    assert folder_store.remove(URI, why="", by="", unless=lambda: left.pop(0)) is False
    assert left == []
    assert folder_store.exists(f"{URI}/manifest.json")
    assert folder_store.exists(layout.tombstone(URI)) is tombstone


def test_a_claim_fails_if_a_removal_began_before_it_was_written(
    folder_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder_store)
    create_once = folder_store.create_once

    def remove_first(path: str, value: bytes | dict[str, Any]) -> bool:
        if path.startswith(layout.uses(URI)):
            assert folder_store.remove(URI, why="old", by="a test", unless=lambda: folder_store.last_claim_s(URI) > 0)
        return create_once(path, value)

    monkeypatch.setattr(folder_store, "create_once", remove_first)
    assert not folder_store.claim(URI)


def test_a_sealed_file_is_read_as_what_it_should_be(folder_store: Store) -> None:
    writer = folder_store.writer(URI)
    writer.put("rows.json", b'{"rows":3}')
    manifest = folder_store.manifest(writer.seal("dataset", {}, {}))
    assert folder_store.read_sealed_as(manifest, "rows.json", lambda value: value["rows"]) == 3
    with pytest.raises(CorruptError, match=r"^datasets/k-0/rows\.json is not a table of rows"):
        folder_store.read_sealed_as(manifest, "rows.json", lambda value: value["columns"], "a table of rows")
    with pytest.raises(CorruptError, match=r"^datasets/k-0/none is missing"):
        folder_store.read_sealed_as(manifest, "none", dict)
