"""The child process of the shard stage: the only place where `shards.transform` is imported.

Run as `python -m training.shard.worker REQUEST ANSWER` by `infra.child`; the answer is a `Dataset`. It
continues an unsealed directory file by file and seals it when all shards are stored.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError, UserCodeError
from data_contracts.handoffs import Dataset, FileEntry, ShardFile
from data_contracts.messages.children import StoreAddress
from data_contracts.messages.raw_data import SHARD, ShardRequest
from data_contracts.pipeline_spec import ShardsSpec
from infra import scratch
from infra.cluster_tasks import Cluster
from infra.contract.quarantine import read_left_out
from infra.files import hash_chunks
from infra.processes.child_main import Report, child_main
from infra.records.handoffs import ANEW, LACKING, ROW_COUNTS, TYPES, put_handoff, read_handoff
from infra.records.handoffs import FILE as HANDOFF_FILE
from infra.sources.resolve import Window
from infra.store import Store, Writer, open_at
from training import formats
from training.formats import schema as schemas
from training.shard.two_passes import Sharded, Sharding, shard_files
from training.shard.units import Earlier, Source, Types


@dataclass(frozen=True)
class StoreShard:
    """Stores one shard, or skips a shard that an earlier attempt at this directory stored; may be sent elsewhere.

    Attributes:
        uri: the directory that is written.
        there: the entries that it already holds.
        scratch: local folder for a store that needs a whole file; None: the default of the machine that runs it.
    """

    store: StoreAddress
    uri: str
    there: dict[str, FileEntry]
    scratch: Path | None
    settings: ShardsSpec

    def __call__(self, name: str, rows: pa.Table) -> FileEntry:
        """The shard's file as it is stored; UserCodeError or CorruptError if a different file is stored there."""
        make = partial(formats.get(self.settings.format).encode, rows)
        entry = self.there.get(name)
        if entry is None:
            here = self.scratch or scratch.default_root()
            return _writer(self.store.model_dump_json(), self.uri).put_made(name, make, here)
        # An existing shard is compared, not trusted: shards of two different draws must never be mixed.
        if entry.blake3 != hash_chunks(make())[1]:
            raise _unlike(f"{self.uri}/{name}", self.settings)
        return entry


def main(request: ShardRequest, report: Report) -> Dataset:
    """Make and seal the dataset that a request describes.

    Args:
        report: called with `ShardProgress`, and for a cluster with each `ClusterTaskOrder`.
    """
    if not request.files:
        raise UsageError("There are no source files to shard.", remedy="Look at data.source and at the window.")
    store = open_at(request.store)
    writer = store.writer(request.uri)
    there = writer.existing()
    with scratch.make("shards") as folder:
        sharded = shard_files(_sharding(request, store, there, folder.path, report))
    if not sharded.extended:
        request = _without_parent(request)
    new = [shard for shards in sharded.splits.values() for shard in shards if not shard.uri]
    for name in sorted(there.keys() - {shard.path for shard in new} - {schemas.FILE, HANDOFF_FILE}):
        raise _unlike(f"{writer.uri}/{name}", request.shards)
    sealed = _seal(writer, sharded, new, request)
    return sealed if sealed.same_as is None else read_handoff(store, sealed.same_as, Dataset)


def _sharding(request: ShardRequest, store: Store, there: dict[str, FileEntry], here: Path, report: Report) -> Sharding:
    """The work that a request asks for.

    Args:
        there: files that the directory already holds.
        here: a folder of this machine.
    """
    shared = request.cluster
    cluster = Cluster(Path(shared.folder), shared.at_once, report) if shared else None
    write = StoreShard(
        store=store.address,
        uri=request.uri,
        there=there,
        scratch=None if cluster else here,
        settings=request.shards,
    )
    window = Window.from_iso(*request.window) if request.window else None
    return Sharding(
        files=request.files,
        source=Source(request.sources, Path(request.root), window, request.window_column, strict=request.strict),
        settings=request.shards,
        write=write,
        folder=cluster.folder if cluster else here,
        project=request.project,
        one_split=request.one_split,
        required=request.required_splits,
        sensitive=request.sensitive,
        earlier=None if request.appended_to is None else _earlier(store, request.appended_to),
        every=request.every,
        report=report,
        cluster=cluster,
        left_out=None if request.quarantine is None else partial(read_left_out, store, request.quarantine),
    )


@functools.cache
def _writer(store: str, uri: str) -> Writer:
    """The writer of a directory in the store at an address (as JSON), opened once in each process."""
    return open_at(StoreAddress.model_validate_json(store)).writer(uri)


def _earlier(store: Store, dataset: Dataset) -> Earlier:
    manifest = store.manifest(dataset.ref)
    schema = store.read_sealed_as(manifest, schemas.FILE, schemas.from_json)
    types, counts = (manifest.provenance.get(name) for name in (TYPES, ROW_COUNTS))
    known = None if types is None else Types.from_json(types)
    return Earlier(dataset.splits, schema, dataset.dropped_rows, counts or {}, known)


def _without_parent(request: ShardRequest) -> ShardRequest:
    """The request for a dataset of all its files, which has no shard of another."""
    if request.appended_to is None:
        return request
    parents = [one for one in request.provenance["parents"] if one != request.appended_to.ref.to_json()]
    provenance = {**request.provenance, "parents": parents}
    return request.model_copy(update={"files": request.every, "appended_to": None, "provenance": provenance})


def _unlike(path: str, settings: ShardsSpec) -> UserCodeError | CorruptError:
    """The error for a file that interrupted work left and that this work would not have written."""
    if settings.transform is not None:
        return UserCodeError(
            f"shards.transform gives other rows for {path} than before the work was interrupted.",
            remedy="Make it deterministic (seed what it draws) and run again.",
        )
    return CorruptError(
        f"{path}, left by interrupted work, is not what the same rows and settings give now.",
        remedy="Remove its directory from the store and run again.",
        details={"file": path},
    )


def _seal(writer: Writer, sharded: Sharded, new: list[ShardFile], request: ShardRequest) -> Dataset:
    """Store the schema and the hand-off beside the shards and seal; `new` are the shards stored here."""
    schema, settings = schemas.to_json(sharded.schema), request.shards
    fields = {
        "schema_version": 1,
        "key": request.key,
        "format": settings.format,
        "splits": {name: [shard.to_json() for shard in shards] for name, shards in sharded.splits.items()},
        "columns": schemas.columns_of(sharded.schema),
        "dropped_rows": sharded.dropped_rows,
        **_documents(sharded, request.appended_to),
    }
    earlier = request.appended_to
    if earlier is not None and not new and fields["dropped_rows"] == earlier.dropped_rows:
        fields["same_as"] = earlier.ref.to_json()  # nothing was added, so what was made of it stays
    # Not what decided the result: no id depends on it.
    provenance = {**request.provenance, ROW_COUNTS: sharded.counts}
    provenance |= {name: fact for name, fact in ((LACKING, sharded.lacking), (ANEW, sharded.anew)) if fact}
    if settings.append and sharded.types.may_be_stored(request.sensitive):
        provenance[TYPES] = sharded.types.to_json()
    beside = [writer.put(schemas.FILE, canonical(schema)), put_handoff(writer, fields)]
    # Everything that decided the result, and nothing that differs between machines, days or stores.
    shaped = {
        **request.settings,
        "format": settings.format,
        "schema": schema,
        "splits": {name: sum(shard.rows for shard in shards) for name, shards in sharded.splits.items()},
        "seed": settings.seed,
        "sources": [file.blake3 for file in request.files],
    }
    if "quarantined" in sharded.dropped_rows:
        shaped["quarantined"] = sharded.dropped_rows["quarantined"]
    if earlier is not None:
        shaped["appended_to"] = earlier.ref.id
    stored = [FileEntry(path=shard.path, bytes=shard.bytes, blake3=shard.blake3) for shard in new]
    ref = writer.seal("dataset", shaped, provenance, [*stored, *beside])
    # A shard that is not another dataset's lies in this one's directory.
    splits = {
        name: [shard if shard.uri else shard.model_copy(update={"uri": ref.uri}) for shard in shards]
        for name, shards in sharded.splits.items()
    }
    return Dataset.from_json({**fields, "splits": splits, "ref": ref})


def _documents(sharded: Sharded, earlier: Dataset | None) -> dict[str, dict[str, int]]:
    """The field `documents`, with those of the dataset that was extended; {} unless documents were split."""
    before = {} if earlier is None else earlier.documents
    found = {"all": sharded.documents.all, "undivided": sharded.documents.short}
    return (
        {"documents": {name: one + before.get(name, 0) for name, one in found.items()}}
        if before or found["all"]
        else {}
    )


if __name__ == "__main__":
    from training.shard import worker

    # Functions that are sent elsewhere are found by their module's name, which would be __main__ here.
    child_main(SHARD, worker.main)
