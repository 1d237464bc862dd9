"""Finds the raw files that a model was made from, by their digests, before anything is made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.resolved import Resolved
from infra.sources.named_places import NamedPlaces, digests_now


def moved(resolved: Resolved, places: NamedPlaces) -> Resolved:
    """A run's inputs with the raw files below the spec's folder looked for in the reader's folder instead.

    UsageError for a file in a place that the reader did not name.
    """
    for files, sources in _groups(resolved):
        for file in files:
            places.require(file, sources[file.source])
    if places.folder is None:
        return resolved
    root = Path(resolved.root)
    return resolved.model_copy(
        update={
            "root": str(places.folder),
            "files": [places.moved(file, root) for file in resolved.files],
            "sets": {name: [places.moved(file, root) for file in files] for name, files in resolved.sets.items()},
        }
    )


def check_sources(resolved: Resolved, places: NamedPlaces) -> int:
    """Read every raw file, and return how many there are.

    Raises:
        CorruptError: the bytes of a file are not those that were validated; it is named.
        UsageError: a file no longer exists.
    """
    count = 0
    for files, sources in _groups(resolved):
        for file, digest in zip(files, digests_now(files, sources, Path(resolved.root), places), strict=True):
            _check(file, digest)
        count += len(files)
    return count


def _groups(resolved: Resolved) -> Iterator[tuple[list[SourceFile], list[SourceSpec]]]:
    spec = resolved.pipeline()
    yield resolved.files, [] if isinstance(spec.data, str) else spec.data.source
    for name, files in resolved.sets.items():
        yield files, spec.evaluate.sets[name].source or []


def _check(file: SourceFile, digest: str | None) -> None:
    name = f"{file.uri}@{file.rev}" if file.rev else file.uri
    if digest is None:
        raise UsageError(
            f"The raw file {name} no longer exists.",
            remedy="Restore it, or name the folder that has the data now with --data.",
        )
    if digest != file.blake3:
        raise CorruptError(
            f"The raw file {name} has changed: BLAKE3 {digest[:16]}…, but {file.blake3[:16]}… was trained on.",
            remedy="Restore the file, or name the folder that has the data as it was with --data.",
        )
