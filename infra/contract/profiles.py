"""Profiles raw files, each for itself, and reads the profile that is sealed beside a contract report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import FileEntry, Ref, SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.profile.collect import profile_of
from data_contracts.profile.merge import Merger
from data_contracts.profile.record import Profile
from infra.sources import Selection, file_facts, merged_schema, read_ahead, read_batches
from infra.store import Store, Writer

FILE = "profile.json"
# Of `format: files`; each is a whole file, which the profile does not open.
_CONTENT = "bytes"


def profiled(
    files: list[SourceFile],
    sources: list[SourceSpec],
    root: Path,
    *,
    selection: Selection,
    sensitive: Collection[str],
    on_batch: Callable[[], None] = lambda: None,
    empty: bool = False,
) -> Profile | None:
    """The profile of raw files; None if they have no rows, unless `empty`.

    Args:
        files, sources, root: as for `read_batches`.
        selection: the window.
        sensitive: columns of which only rows and nulls are counted.
        on_batch: called for each batch.
        empty: also files without rows have a profile, of the columns of `selection.schema`.

    Raises: as `read_batches`.
    """
    every = selection.schema
    if every is None:
        every = merged_schema(files, [file_facts(file, sources, root) for file in files])
    listed = any(file.format == "files" for file in files)
    columns = [name for name in every.names if not (listed and name == _CONTENT)]
    whole = replace(selection, schema=every, columns=columns, encoded=True)
    schema = pa.schema([every.field(name) for name in columns])

    def batches(part: list[SourceFile]) -> Iterator[pa.RecordBatch]:
        with contextlib.closing(read_ahead(read_batches(part, sources, root=root, selection=whole))) as ahead:
            for batch in ahead:
                on_batch()
                yield batch

    merger = Merger()
    for _, part in groupby(files, key=_part):
        merger.add(profile_of(batches(list(part)), schema, sensitive))
    profile = merger.record()
    return profile if profile.rows or empty else None


def put_profile(writer: Writer, profile: Profile) -> FileEntry:
    """Write a profile into a contract's directory that is about to be sealed.

    Whoever may read the store's shards may read it, so that others' runs can compare their data with it.
    """
    return writer.put(FILE, canonical(profile.to_json()))


def read_profile(store: Store, contract: Ref) -> Profile | None:
    """The profile beside a contract report; None for a report of an earlier Trainwright, which has none.

    CorruptError if the report is gone or its profile was changed; UsageError if the profile's schema is newer.
    """
    try:
        manifest = store.manifest(contract)
    except FileNotFoundError as error:
        raise CorruptError(f"{contract.uri}, the contract report of a dataset, is missing.") from error
    if all(entry.path != FILE for entry in manifest.files):
        return None
    return store.read_sealed_as(manifest, FILE, Profile.from_json, "the profile")


def _part(file: SourceFile) -> str:
    """What is profiled as one part: a file of rows, or all files of one source that are rows or documents."""
    return f"source {file.source}" if file.format in ("files", "text") else file.uri
