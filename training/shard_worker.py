"""The child process of the shard stage: the one place where `shards.transform` is imported.

Run as `python -m training.shard_worker REQUEST ANSWER` by `infra.launch.child`; the answer is a `Dataset`. It goes on
with an unsealed directory file by file and seals it when all shards are there.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError, UserCodeError
from data_contracts.handoffs import Dataset, FileEntry, Ref, ShardFile, SourceFile
from data_contracts.spec import ShardsSpec, SourceSpec
from infra.digests import file_digest
from infra.handoffs import FILE as HANDOFF_FILE
from infra.handoffs import put_handoff
from infra.launch.child import child_main
from infra.sources.window import Window
from infra.store import Store, Writer, open_store
from training import formats
from training.cluster import Cluster
from training.formats import schema as schemas
from training.sharding import Earlier, Sharded, shard_files
from training.split import REQUIRED
from training.units import Source


@dataclass(frozen=True)
class StoreShard:
    """Stores one shard, or passes over one that an earlier attempt at this directory stored; may be sent elsewhere.

    Attributes:
        store: as a request names it.
        uri: the directory that is written.
        there: what it holds already.
        scratch: folder of this machine where a shard is written first; None: the usual one of whatever machine it is.
    """

    store: str
    store_options: dict[str, Any]
    uri: str
    there: dict[str, FileEntry]
    scratch: Path | None
    settings: ShardsSpec

    def __call__(self, name: str, rows: pa.Table) -> FileEntry:
        """The shard's file as it is stored; UserCodeError or CorruptError if another is there."""
        with tempfile.TemporaryDirectory(prefix="trainwright-shard-", dir=self.scratch) as folder:
            path = Path(folder) / name
            formats.get(self.settings.format).write_shard(rows, path)
            # A shard that is there is compared, not trusted: shards of two different draws must never stand side by
            # side.
            digest = file_digest(path)
            entry = self.there.get(name)
            if entry is not None and entry.blake3 != digest:
                raise _unlike(f"{self.uri}/{name}", self.settings)
            if entry is None:
                entry = _writer(self.store, canonical(self.store_options).decode(), self.uri).put(name, path)
            return entry


def main(request: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Make and seal the dataset that a request describes; the answer is its hand-off as JSON.

    Args:
        request: `store`, `store_options`, `uri` (directory to write), `key`, `files`, `sources`, `root`, `window`
            (start and end in ISO, or None), `window_column`, `shards` (the spec's section), `project` (folder of the
            user's code, or None), `settings` (added to the manifest's), `provenance`; and, where they differ from the
            default, `name_of_split_for_all` (no split: all rows under this name), `required_splits`, `sensitive`,
            `appended_to` (a dataset whose shards are named again; `files` are those that it does not have), `cluster`
            (`folder` and `at_once`, see `training.cluster`; the caller empties the folder).
        report: told `{"phase", "rows", "total", "rows_per_s", "seconds_left"}`, and what a cluster is to do.
    """
    settings = ShardsSpec.model_validate(request["shards"])
    files = [SourceFile.model_validate(one) for one in request["files"]]
    if not files:
        raise UsageError("There are no source files to shard.", remedy="Look at data.source and at the window.")
    store = open_store(request["store"], request["store_options"], create=False)
    writer = store.writer(request["uri"])
    there = writer.existing()
    window = request.get("window")
    source = Source(
        [SourceSpec.model_validate(one) for one in request["sources"]],
        Path(request["root"]),
        Window.from_iso(*window) if window else None,
        request.get("window_column"),
    )
    parent = Dataset.from_json(request["appended_to"]) if request.get("appended_to") else None
    asked = request.get("cluster")
    cluster = Cluster(Path(asked["folder"]), asked["at_once"], report) if asked else None
    with tempfile.TemporaryDirectory(prefix="trainwright-shards-") as scratch:
        here = Path(scratch)
        sharded = shard_files(
            files,
            source,
            settings,
            StoreShard(
                request["store"], request["store_options"], writer.uri, there, None if cluster else here, settings
            ),
            cluster.folder if cluster else here,
            project=request.get("project"),
            one_split=request.get("name_of_split_for_all"),
            required=request.get("required_splits", REQUIRED),
            sensitive=request.get("sensitive", ()),
            earlier=None if parent is None else _earlier(store, parent),
            report=report,
            cluster=cluster,
        )
    new = [shard for shards in sharded.splits.values() for shard in shards if not shard.uri]
    for name in sorted(there.keys() - {shard.path for shard in new} - {schemas.FILE, HANDOFF_FILE}):
        raise _unlike(f"{writer.uri}/{name}", settings)
    fields, ref = _seal(writer, sharded, settings, new, parent, request)
    for shards in fields["splits"].values():
        for shard in shards:
            shard["uri"] = shard["uri"] or ref.uri
    return Dataset.from_json({**fields, "ref": ref.to_json()}).to_json()


@functools.cache
def _writer(store: str, options: str, uri: str) -> Writer:
    """What writes into a directory, opened once in each process."""
    return open_store(store, json.loads(options), create=False).writer(uri)


def _earlier(store: Store, dataset: Dataset) -> Earlier:
    schema = schemas.from_json(store.read_json(f"{dataset.ref.uri}/{schemas.FILE}"))
    return Earlier(dataset.splits, schema, dataset.dropped_rows)


def _unlike(path: str, settings: ShardsSpec) -> UserCodeError | CorruptError:
    """The error for a file that interrupted work left and that this work would not have written."""
    if settings.transform is not None:
        return UserCodeError(
            f"shards.transform gives other rows than it gave for {path} before the work was interrupted.",
            remedy="Make it deterministic (seed what it draws) and run again.",
        )
    return CorruptError(
        f"{path}, left by interrupted work, is not what the same rows and settings give now.",
        remedy="Remove its directory from the store and run again.",
        details={"file": path},
    )


def _seal(
    writer: Writer,
    sharded: Sharded,
    settings: ShardsSpec,
    new: list[ShardFile],
    parent: Dataset | None,
    request: dict[str, Any],
) -> tuple[dict[str, Any], Ref]:
    """Put the schema and the hand-off beside the shards and seal; the hand-off's fields and its ref."""
    schema = schemas.to_json(sharded.schema)
    fields = {
        "schema_version": 1,
        "key": request["key"],
        "format": settings.format,
        "splits": {name: [shard.to_json() for shard in shards] for name, shards in sharded.splits.items()},
        "columns": schemas.columns_of(sharded.schema),
        "dropped_rows": sharded.dropped_rows,
    }
    beside = [writer.put(schemas.FILE, canonical(schema)), put_handoff(writer, fields)]
    # What shaped the result, and nothing that differs from one machine, day or store to the next.
    shaped = {
        **request["settings"],
        "format": settings.format,
        "schema": schema,
        "splits": {name: sum(shard.rows for shard in shards) for name, shards in sharded.splits.items()},
        "seed": settings.seed,
        "sources": [file["blake3"] for file in request["files"]],
    }
    if parent is not None:
        shaped["appended_to"] = parent.ref.id
    stored = [FileEntry(path=shard.path, bytes=shard.bytes, blake3=shard.blake3) for shard in new]
    return fields, writer.seal("dataset", shaped, request["provenance"], [*stored, *beside])


if __name__ == "__main__":
    from training import shard_worker

    # What is sent elsewhere must be found there by its module's name, which here is __main__.
    child_main(shard_worker.main)
