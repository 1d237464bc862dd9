"""Hand-offs in the store, and the checkpoints and datasets that they name.

A sealed directory holds its hand-off as `handoff.json`, without the `ref`. Anyone who can write to a store can seal
anything, but a checkpoint that is passed off as one of another step or another training is detected here. A dataset's
shards may be in several sealed directories: its own, and those of the datasets that it extends.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Dataset, FileEntry, HandOff, Ref
from infra import scratch
from infra.settings import state_folder
from infra.store import Manifest, Store, Writer, layout
from infra.store.records import corrupt
from infra.store.seal import passing_over
from infra.store.store import WHOLE, Share

FILE = "handoff.json"
T = TypeVar("T", bound=HandOff)
KIND = "checkpoint"
TRAIN = "train.json"
# How the names of the files of the module's tensors begin; `training.checkpoint.saver` writes them.
WEIGHT_FILES = "weights-"
# What torch.compile puts into the names of a module that it wraps.
_COMPILED = "_orig_mod."
# No file type that anyone could unpickle.
_FILE = re.compile(r"[a-z0-9-]+\.(json|safetensors)")
# Beside the shards; `training.formats.schema` writes it.
SCHEMA_FILE = "schema.json"
# In a dataset's provenance: rows that were read and left out by cause, columns that some files lack, why all files were
# sharded again although an earlier dataset has some of them, and the types by which new files are compared.
ROW_COUNTS, LACKING, ANEW, TYPES = "row_counts", "lacking", "anew", "types"


def put_handoff(writer: Writer, fields: Mapping[str, object]) -> FileEntry:
    """Write a hand-off's fields (without `ref`) into a directory that is about to be sealed."""
    return writer.put(FILE, canonical(fields))


def newest_handoff(store: Store, area: str, key: str, kind: type[T]) -> T | None:
    """The hand-off of the newest attempt under a reuse key in an area of the store; None if there is none.

    Raises as `read_handoff`.
    """
    ref = store.newest(area, key)
    return None if ref is None else read_handoff(store, ref, kind)


def read_handoff(store: Store, ref: Ref, kind: type[T]) -> T:
    """The hand-off of a sealed directory, with its `ref`; shards in the directory itself get its URI.

    CorruptError if it is missing, was changed, is not a hand-off of this kind or has another reuse key than its
    directory; UsageError if its schema is newer.
    """

    def handoff(fields: Any) -> tuple[str, T]:
        for shards in fields.get("splits", {}).values():
            for shard in shards:
                shard["uri"] = shard["uri"] or ref.uri
        return fields["key"], kind.from_json({**fields, "ref": ref.to_json()})

    try:
        key, handed_over = store.read_sealed_as(store.manifest(ref), FILE, handoff, f"the hand-off {kind.__name__}")
    except FileNotFoundError as error:
        path = layout.manifest(ref.uri)
        raise CorruptError(f"{path} is missing.", details={"file": path}) from error
    if (layout.split_attempt(ref.uri.rpartition("/")[2]) or ("",))[0] != key:
        raise corrupt(f"{ref.uri}/{FILE}", "is the hand-off of another reuse key")
    return handed_over


def plain_name(name: str) -> str:
    """A tensor's name as it is where no part of the module is compiled."""
    return name.replace(_COMPILED, "")


def verify_checkpoint(
    store: Store, checkpoint: Checkpoint, on_file: Callable[[], None] = lambda: None, share: Share = WHOLE
) -> Manifest:
    """Read every byte of a checkpoint again; CorruptError if it is changed, or is not the one that was named.

    FileNotFoundError if it does not exist.

    Args:
        on_file, share: as in `Store.verify`.
    """
    manifest = store.verify(checkpoint.ref, on_file, share)
    check_against_seal(manifest, checkpoint)
    return manifest


def is_verified(store: Store, checkpoint: Ref) -> bool:
    """Whether the verify stage passed for this checkpoint; CorruptError for a damaged or foreign mark."""
    mark = layout.verified(checkpoint.uri)
    if not store.exists(mark):
        return False
    if store.read_as(mark, lambda value: Ref.model_validate(value["checkpoint"])) != checkpoint:
        raise CorruptError(
            f"{checkpoint.uri} is not the checkpoint that was verified: {mark} marks another checkpoint "
            "than the one that is stored there.",
            details={"file": mark},
        )
    return True


def check_against_seal(manifest: Manifest, checkpoint: Checkpoint) -> None:
    """CorruptError if a sealed directory is not the checkpoint that a pointer or a hand-off describes."""
    path = layout.manifest(manifest.uri)
    if manifest.kind != KIND:
        raise CorruptError(f"{path} is a {manifest.kind}, not a checkpoint.", details={"file": path})
    for file in manifest.files:
        if not _FILE.fullmatch(file.path):
            raise CorruptError(f"{manifest.uri} holds {file.path!r}, which is not a file of a checkpoint.")
    place = layout.checkpoint(checkpoint.training, checkpoint.step, checkpoint.generation)
    described = {"step": checkpoint.step, "epoch": checkpoint.epoch, "world_size": checkpoint.world_size}
    sealed = {"step": None} | {name: manifest.settings[name] for name in described if name in manifest.settings}
    said = {"training": checkpoint.training, "generation": checkpoint.generation}
    wrong = {name: value for name, value in sealed.items() if value != described[name]}
    wrong |= {name: found for name, value in said.items() if (found := manifest.provenance.get(name, value)) != value}
    if manifest.uri != place or wrong:
        what = ", ".join(f"{name} {value}" for name, value in wrong.items()) or f"lies at {manifest.uri}"
        raise CorruptError(
            f"{path} is whole, but does not belong to {checkpoint.training} at step {checkpoint.step}: {what}.",
            details={"file": path},
        )


def num_weight_bytes(manifest: Manifest) -> int:
    """Bytes of the module's parameters and buffers in a checkpoint."""
    return sum(file.bytes for file in manifest.files if file.path.startswith(WEIGHT_FILES))


def read_trained_with(store: Store, manifest: Manifest) -> dict[str, object]:
    """The settings, code and data of a checkpoint, sealed beside its weights; CorruptError if they are changed."""
    return store.read_sealed_as(manifest, TRAIN, dict)


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
    store: Store, series: str, inputs: Sequence[Mapping[str, object]]
) -> tuple[Dataset, list[dict[str, object]]] | None:
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


def find_dataset_by_id(store: Store, dataset_id: str) -> Dataset | None:
    """The sealed dataset with an id; None if it does not exist or was deleted."""
    for ref, _, _ in _sealed(store):
        if ref.id == dataset_id and store.claim(ref.uri):
            return read_handoff(store, ref, Dataset)
    return None


def mixed(dataset: Dataset, others: Mapping[str, Dataset]) -> Dataset:
    """The dataset with its split `train` extended by those of others, by name; their shards stay where they are."""
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
