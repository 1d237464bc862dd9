"""Copies a sealed directory from one store to another: the same bytes, id and seal under the same name."""

from __future__ import annotations

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Ref
from infra.store.store import Store


def copy_sealed(source: Store, target: Store, ref: Ref) -> None:
    """Copy a sealed directory, every byte of which is read and compared before.

    Raises CorruptError for bytes that are not as sealed, or if something else has its name in the target.
    """
    manifest = source.verify(ref)
    folder = source.local(ref)
    writer = target.writer(ref.uri, afresh=True)
    entries = [writer.put(file.path, folder / file.path) for file in manifest.files]
    made = writer.seal(manifest.kind, manifest.settings, manifest.provenance, entries)
    if made != manifest.ref:
        raise CorruptError(f"{ref.uri} in {target.uri} is not the one that was copied from {source.uri}.")
