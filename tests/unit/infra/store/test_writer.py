"""Files of a sealed directory are created once; the manifest comes last, and only over exactly these files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from blake3 import blake3

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import FileEntry
from infra.store import AlreadySealed, Store

URI = "datasets/k-0"


def entry(path: str, data: bytes) -> FileEntry:
    return FileEntry(path=path, bytes=len(data), blake3=blake3(data).hexdigest())


def test_put_and_seal(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"two")
    first = store.writer(URI)
    assert (first.uri, first.existing()) == (URI, {})
    assert first.put("one", b"one") == entry("one", b"one")
    assert first.put("sub/two", tmp_path / "file") == entry("sub/two", b"two")
    writer = store.writer(URI)  # another process continues with what is there
    assert writer.existing() == {"one": entry("one", b"one"), "sub/two": entry("sub/two", b"two")}
    writer.put("three", b"3")
    assert not store.exists(f"{URI}/manifest.json")
    ref = writer.seal("dataset", {"seed": 1}, {"actor": "me"})
    assert ref.uri == URI
    manifest = store.verify(ref)
    assert manifest.files == [entry("one", b"one"), entry("sub/two", b"two"), entry("three", b"3")]
    assert list(writer.existing()) == ["one", "sub/two", "three"]
    assert (manifest.kind, manifest.settings, manifest.provenance) == ("dataset", {"seed": 1}, {"actor": "me"})
    assert store.read(f"{URI}/sub/two") == b"two"


@pytest.mark.parametrize("as_file", [False, True])
def test_the_same_bytes_again_are_fine_and_others_are_not(store: Store, tmp_path: Path, as_file: bool) -> None:
    def given(data: bytes) -> bytes | Path:
        if as_file:
            (tmp_path / "file").write_bytes(data)
            return tmp_path / "file"
        return data

    first, second = store.writer(URI), store.writer(URI)
    first.put("a", given(b"1"))
    assert second.put("a", given(b"1")) == entry("a", b"1")
    with pytest.raises(CorruptError, match=r"^datasets/k-0/a exists already with other bytes") as raised:
        second.put("a", given(b"2"))
    assert raised.value.details == {"file": "datasets/k-0/a"}
    assert store.read(f"{URI}/a") == b"1"
    first.seal("dataset", {}, {})
    assert second.put("a", given(b"1")) == entry("a", b"1")


def test_what_a_killed_writer_left_gives_way_to_one_that_writes_afresh(store: Store, tmp_path: Path) -> None:
    store.writer(URI).put("a", b"of another machine")
    (tmp_path / "b").write_bytes(b"new")
    store.writer(URI).put("b", b"of another machine")
    writer = store.writer(URI, afresh=True)
    assert writer.put("a", b"1") == entry("a", b"1")
    assert writer.put("b", tmp_path / "b") == entry("b", b"new")
    ref = writer.seal("evaluation", {}, {})
    assert store.verify(ref).files == [entry("a", b"1"), entry("b", b"new")]
    with pytest.raises(CorruptError, match="exists already with other bytes"):
        store.writer(URI, afresh=True).put("a", b"2")
    assert store.verify(ref).ref == ref, "what is sealed stays"


@pytest.mark.parametrize("name", ["manifest.json", "../a", "/a", "a/../../b", "", "a\\b"])
def test_names_that_could_leave_the_directory(folder_store: Store, name: str) -> None:
    with pytest.raises(UsageError):
        folder_store.writer(URI).put(name, b"")
    assert folder_store.list("datasets") == []


def test_a_missing_or_a_foreign_file_is_named(store: Store) -> None:
    writer = store.writer(URI)
    writer.put("a", b"1")
    with pytest.raises(CorruptError, match=r"datasets/k-0 cannot be sealed: datasets/k-0/b is missing\.") as raised:
        writer.seal("dataset", {}, {}, [entry("a", b"1"), entry("b", b"2")])
    assert raised.value.details == {"file": "datasets/k-0/b"}
    with pytest.raises(CorruptError, match=r"datasets/k-0/a does not belong to it\.") as raised:
        writer.seal("dataset", {}, {}, [])
    assert raised.value.details == {"file": "datasets/k-0/a"}
    assert not store.exists(f"{URI}/manifest.json")


def test_a_file_that_is_made_in_pieces_is_stored_once(store: Store, tmp_path: Path) -> None:
    writer, made = store.writer(URI), list[bytes]()

    def make(*chunks: bytes) -> Callable[[], Iterator[memoryview]]:
        def run() -> Iterator[memoryview]:
            for chunk in chunks:
                made.append(chunk)
                yield memoryview(chunk)

        return run

    assert writer.put_made("one", make(b"o", b"ne"), tmp_path) == entry("one", b"one")
    assert made == [b"o", b"ne"]
    assert writer.put_made("one", make(b"one"), tmp_path) == entry("one", b"one")
    with pytest.raises(CorruptError, match=r"^datasets/k-0/one exists already with other bytes"):
        writer.put_made("one", make(b"two"), tmp_path)
    assert store.read(f"{URI}/one") == b"one"
    writer.seal("dataset", {}, {})
    assert writer.put_made("one", make(b"one"), tmp_path) == entry("one", b"one")
    with pytest.raises(CorruptError, match=r"^datasets/k-0/new cannot be added: datasets/k-0 is sealed\."):
        writer.put_made("new", make(b"one"), tmp_path)
    assert not [one for one in tmp_path.iterdir() if one.name != "store"]


def test_the_same_content_keeps_its_first_provenance_and_other_content_is_refused(store: Store) -> None:
    store.writer(URI).put("a", b"1")
    first = store.writer(URI).seal("dataset", {"x": 1}, {"day": 1})
    assert store.writer(URI).seal("dataset", {"x": 1}, {"day": 2}) == first
    assert store.manifest(first).provenance == {"day": 1}
    with pytest.raises(AlreadySealed, match=r"^datasets/k-0 is sealed already, with other content\.") as raised:
        store.writer(URI).seal("dataset", {"x": 2}, {})
    assert raised.value.details == {"file": "datasets/k-0/manifest.json"}
    with pytest.raises(CorruptError, match=r"^datasets/k-0/b cannot be added: datasets/k-0 is sealed\.") as refused:
        store.writer(URI).put("b", b"2")
    assert refused.value.details == {"file": "datasets/k-0/b"}
    assert store.verify(first).settings == {"x": 1}


def test_what_a_writer_has_put_is_not_read_again_to_seal_it(
    folder_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_store.writer(URI).put("other", b"another process's")
    writer = folder_store.writer(URI)
    writer.put("one", b"one")
    writer.put_chunks("two", [memoryview(b"two")], tmp_path)
    digest = Mock(wraps=folder_store._backend.digest)
    monkeypatch.setattr(folder_store._backend, "digest", digest)
    ref = writer.seal("dataset", {}, {})
    assert [call.args[0] for call in digest.call_args_list] == [f"{URI}/other"]
    assert [file.path for file in folder_store.verify(ref).files] == ["one", "other", "two"]
