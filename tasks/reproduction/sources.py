"""Finds the raw files that a model was made from, by their digests, before anything is made again."""

from __future__ import annotations

from pathlib import Path

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import PipelineSpec, SourceSpec
from data_contracts.resolved import Resolved
from infra.sources import Places, digest_now


def moved(resolved: Resolved, data: Path | None) -> Resolved:
    """A run's inputs with the raw files below the spec's folder looked for below `data` instead."""
    if data is None:
        return resolved
    root, here = Path(resolved.root), data.resolve()

    def place(file: SourceFile) -> SourceFile:
        path = Path(file.uri)
        inside = "://" not in file.uri and file.rev is None and path.is_relative_to(root)
        return file.model_copy(update={"uri": str(here / path.relative_to(root))}) if inside else file

    return resolved.model_copy(
        update={
            "root": str(here),
            "files": [place(file) for file in resolved.files],
            "sets": {name: [place(file) for file in files] for name, files in resolved.sets.items()},
        }
    )


def check_sources(resolved: Resolved) -> int:
    """Read every raw file, and return how many there are.

    Raises:
        CorruptError: the bytes of a file are not those that were validated; it is named.
        UsageError: a file no longer exists.
    """
    spec = resolved.pipeline()
    groups = [(resolved.files, [] if isinstance(spec.data, str) else spec.data.source)]
    groups += [(files, _sources(spec, name)) for name, files in resolved.sets.items()]
    for files, sources in groups:
        places = Places(sources, Path(resolved.root))
        for file in files:
            _check(file, places)
    return sum(len(files) for files, _ in groups)


def _sources(spec: PipelineSpec, name: str) -> list[SourceSpec]:
    return spec.evaluate.sets[name].source or []


def _check(file: SourceFile, places: Places) -> None:
    name = f"{file.uri}@{file.rev}" if file.rev else file.uri
    found = digest_now(file, places)
    if found is None:
        raise UsageError(
            f"The raw file {name} no longer exists.",
            remedy="Restore it, or name the folder that has the data now with --data.",
        )
    if found != file.blake3:
        raise CorruptError(
            f"The raw file {name} has changed: BLAKE3 {found[:16]}…, but {file.blake3[:16]}… was trained on.",
            remedy="Restore the file, or name the folder that has the data as it was with --data.",
        )
