"""A dataset whose shards lie in two directories: laid out below one root, also from S3, and verified whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Dataset, ShardFile
from infra.records.handoffs import dataset_to_extend, local_dataset, local_split, newest_dataset, put_handoff
from infra.store import Store

pytestmark = pytest.mark.usefixtures("home")


def seal(store: Store, key: str, data: bytes, earlier: list[ShardFile] | None = None, **settings: object) -> Dataset:
    """A dataset with one shard of its own, after the earlier ones."""
    writer = store.writer(f"datasets/{key}-0")
    entry = writer.put(f"train-{len(earlier or []):05d}.parquet", data)
    writer.put("schema.json", b"{}")
    own = ShardFile(uri="", path=entry.path, rows=1, bytes=entry.bytes, blake3=entry.blake3)
    splits = {"train": [shard.to_json() for shard in [*(earlier or []), own]]}
    put_handoff(writer, {"schema_version": 1, "key": key, "format": "parquet", "splits": splits, "columns": {}})
    writer.seal("dataset", settings, {"finished": "2026"})
    found = newest_dataset(store, key)
    assert found is not None
    return found


def test_shards_elsewhere_lie_below_the_same_root(any_store: Store) -> None:
    store = any_store
    first = seal(store, "a", b"first")
    second = seal(store, "b", b"second", first.splits["train"])

    def shards(folder: Path) -> list[bytes]:
        root = folder.parents[1]
        assert folder == root / second.ref.uri
        return [(root / one.uri / one.path).read_bytes() for one in second.splits["train"]]

    for _ in range(2):
        assert shards(local_dataset(store, second)) == [b"first", b"second"]
    with local_split(store, second, "train") as folder:
        assert shards(folder) == [b"first", b"second"]
    assert folder.parents[1].exists() == store.is_local, "a copy is gone afterwards"


def test_a_dataset_is_whole_only_with_its_parents(store: Store) -> None:
    first = seal(store, "a", b"first")
    lie = first.splits["train"][0].model_copy(update={"blake3": "0" * 64})
    with pytest.raises(AssertionError):
        seal(store, "b", b"second", [lie])
    second = seal(store, "c", b"second", first.splits["train"])
    store.remove(first.ref.uri, why="a test", by="a test")
    assert newest_dataset(store, "c") is None
    with pytest.raises((CorruptError, FileNotFoundError)):
        store.verify(second.splits["train"][0].uri)


def test_the_dataset_with_the_most_of_the_files_is_extended(store: Store) -> None:
    files = [{"blake3": letter} for letter in "wxyz"]
    one = seal(store, "a", b"1", series="s", inputs=files[:1])
    two = seal(store, "b", b"2", series="s", inputs=files[:2])
    seal(store, "c", b"3", series="other", inputs=files[:3])
    seal(store, "d", b"4", series="s", inputs=[*files[:2], {"blake3": "elsewhere"}])
    assert dataset_to_extend(store, "s", files) == (two, files[:2])
    assert dataset_to_extend(store, "s", files[:2]) == (one, files[:1])
    assert dataset_to_extend(store, "s", files[2:]) is None
    (Path(store.uri) / two.ref.uri / "train-00000.parquet").unlink()
    assert dataset_to_extend(store, "s", files) == (one, files[:1])
