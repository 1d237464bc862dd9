"""Datasets whose shards are in several sealed directories: their own, and those of the datasets that they extend."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Dataset, FileEntry, Ref
from infra import scratch
from infra.machine.settings import state_folder
from infra.records.handoffs import read_handoff
from infra.store import Store, layout
from infra.store.seal import passing_over

# Beside the shards; `training.formats.schema` writes it.
SCHEMA_FILE = "schema.json"
# In a dataset's provenance: rows that were read and left out by cause, columns that some files lack, why all files were
# sharded again although an earlier dataset has some of them, and the types by which new files are compared.
ROW_COUNTS, LACKING, ANEW, TYPES = "row_counts", "lacking", "anew", "types"


def newest_dataset(store: Store, key: str) -> Dataset | None:
    """The newest sealed and intact dataset of a reuse key, every byte of all its shards read; None if there is none."""
    ref = store.newest("datasets", key)
    if ref is None:
        return None
    dataset = read_handoff(store, ref, Dataset)
    with passing_over():
        return _whole(store, dataset)
    return None


def _whole(store: Store, dataset: Dataset) -> Dataset:
    """The dataset, or the one that stands for it; FileNotFoundError or CorruptError unless every shard is whole."""
    if dataset.same_as is not None:
        if not store.claim(dataset.same_as.uri):
            raise FileNotFoundError(dataset.same_as.uri)
        store.verify(dataset.same_as)
        dataset = read_handoff(store, dataset.same_as, Dataset)
    verify_elsewhere(store, dataset)
    return dataset


def verify_elsewhere(store: Store, dataset: Dataset) -> None:
    """Read the shards in other directories again and compare; FileNotFoundError or CorruptError."""
    for uri in _elsewhere(dataset):
        sealed = store.verify(uri).files
        for shard in _shards(dataset):
            entry = FileEntry(path=shard.path, bytes=shard.bytes, blake3=shard.blake3)
            if shard.uri == uri and entry not in sealed:
                path = f"{uri}/{shard.path}"
                raise CorruptError(
                    f"{path} is not the shard that the dataset {dataset.ref.uri} names.", details={"file": path}
                )


def local_dataset(store: Store, dataset: Dataset) -> Path:
    """The dataset's own directory on this machine; its other shards are at their URIs below the same root.

    Raises as `Store.local`.
    """
    own = store.local(dataset.ref)
    elsewhere = {uri: store.local(uri) for uri in _elsewhere(dataset)}
    if store.is_local or not elsewhere:  # the folders of one store lie below one root
        return own
    # Copies from S3 are named by their seals: links place them at their URIs below one root.
    root = state_folder() / "cache" / f"{dataset.ref.seal}-with-parents"
    for uri, folder in [(dataset.ref.uri, own), *elsewhere.items()]:
        link = root / uri
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(folder)
    return root / dataset.ref.uri


@contextlib.contextmanager
def local_split(store: Store, dataset: Dataset, *splits: str) -> Iterator[Path]:
    """The dataset's directory as `local_dataset` gives it, for these splits: of a store on S3 only they are copied.

    UsageError if there is no such split; CorruptError for a shard that is not what was sealed.
    """
    if store.is_local:
        yield local_dataset(store, dataset)
        return
    with scratch.make("split") as root:
        wanted = [(dataset.ref.uri, SCHEMA_FILE)]
        shards = [shard for split in splits for shard in dataset.splits.get(split, [])]
        wanted += [(shard.uri or dataset.ref.uri, shard.path) for shard in shards]
        for uri, name in wanted:
            path = root.path / uri / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.read_sealed(store.manifest(uri), name))
        yield root.path / dataset.ref.uri


def beginning(dataset: Dataset) -> Dataset:
    """The dataset with the first shard of each split alone."""
    return dataset.model_copy(update={"splits": {name: shards[:1] for name, shards in dataset.splits.items()}})


def dataset_to_extend(
    store: Store, series: str, inputs: list[dict[str, Any]]
) -> tuple[Dataset, list[dict[str, Any]]] | None:
    """The dataset of a series with the most of these source files and no others, and its files; None if there is none.

    Args:
        series: required value of `settings.series` in its manifest.
        inputs: all source files by content; the dataset's own are in `settings.inputs`.
    """
    wanted = Counter(map(canonical, inputs))
    found = []
    for ref, settings, finished in _sealed(store):
        had = Counter(map(canonical, settings.get("inputs", [])))
        if settings.get("series") == series and had < wanted:
            found.append((had.total(), finished, ref, settings["inputs"]))
    for _, _, ref, had_inputs in sorted(found, key=lambda one: one[:2], reverse=True):
        with passing_over():
            if store.claim(ref.uri):
                store.verify(ref)
                return _whole(store, read_handoff(store, ref, Dataset)), had_inputs
    return None


def find_dataset(store: Store, uri: str) -> Dataset | None:
    """The sealed dataset at a URI; None if it does not exist or was deleted."""
    try:
        ref = store.manifest(uri).ref
    except FileNotFoundError:
        return None
    return read_handoff(store, ref, Dataset) if store.claim(uri) else None


def find_dataset_by_id(store: Store, wanted: str) -> Dataset | None:
    """The sealed dataset with an id; None if it does not exist or was deleted."""
    for ref, _, _ in _sealed(store):
        if ref.id == wanted and store.claim(ref.uri):
            return read_handoff(store, ref, Dataset)
    return None


def mixed(dataset: Dataset, others: Mapping[str, Dataset]) -> Dataset:
    """The dataset with its split `train` extended by those of others, by name; their shards stay where they are."""
    if not others:
        return dataset
    shards = [shard for name in sorted(others) for shard in others[name].splits["train"]]
    if not shards:
        return dataset
    own = {**dataset.splits, "train": [*dataset.splits["train"], *shards]}
    return dataset.model_copy(update={"splits": own})


def _sealed(store: Store) -> Iterator[tuple[Ref, dict[str, Any], str]]:
    for name in store.list("datasets"):
        uri = f"datasets/{name}"
        with passing_over():
            if not store.exists(layout.tombstone(uri)):
                manifest = store.manifest(uri)
                yield manifest.ref, manifest.settings, str(manifest.provenance.get("finished", ""))


def _elsewhere(dataset: Dataset) -> list[str]:
    return sorted({shard.uri for shard in _shards(dataset)} - {dataset.ref.uri, ""})


def _shards(dataset: Dataset) -> list[Any]:
    return [shard for shards in dataset.splits.values() for shard in shards]
