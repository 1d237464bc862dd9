"""The child process of the shard stage: the one place where `shards.transform` is imported.

Run as `python -m training.shard_worker REQUEST ANSWER` by `infra.launch.child`; the answer is a `Dataset`. It goes on
with an unsealed directory file by file and seals it when all shards are there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError, UserCodeError
from data_contracts.handoffs import Dataset, FileEntry, Ref, SourceFile
from data_contracts.spec import ShardsSpec, SourceSpec
from infra.digests import file_digest
from infra.handoffs import FILE as HANDOFF_FILE
from infra.handoffs import put_handoff
from infra.launch.child import child_main
from infra.sources.read import read_batches
from infra.sources.window import Window
from infra.store import Writer, open_store
from training import formats
from training.formats import schema as schemas
from training.sharding import Sharded, Transform, shard_rows
from training.split import REQUIRED
from training.user_code import add_project, load_callable


def main(request: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Make and seal the dataset that a request describes; the answer is its hand-off as JSON.

    Args:
        request: `store`, `store_options`, `uri` (directory to write), `key`, `files`, `sources`, `root`, `window`
            (start and end in ISO, or None), `window_column`, `shards` (the spec's section), `project` (folder of the
            user's code, or None), `settings` (added to the manifest's), `provenance`; and, where they differ from the
            default, `name_of_split_for_all` (no split: all rows under this name), `required_splits`, `sensitive`.
        report: told `{"phase", "rows", "total"}`.
    """
    settings = ShardsSpec.model_validate(request["shards"])
    files = [SourceFile.model_validate(one) for one in request["files"]]
    if not files:
        raise UsageError("There are no source files to shard.", remedy="Look at data.source and at the window.")
    store = open_store(request["store"], request["store_options"], create=False)
    writer = store.writer(request["uri"])
    there = writer.existing()
    transform = _transform(settings, request.get("project"))
    window = request.get("window")
    batches = read_batches(
        files,
        [SourceSpec.model_validate(one) for one in request["sources"]],
        root=Path(request["root"]),
        window=Window.from_iso(*window) if window else None,
        window_column=request.get("window_column"),
    )
    with tempfile.TemporaryDirectory(prefix="trainwright-shards-") as scratch:
        sharded = shard_rows(
            batches,
            settings,
            _into(writer, there, Path(scratch), settings),
            transform=transform,
            one_split=request.get("name_of_split_for_all"),
            required=request.get("required_splits", REQUIRED),
            sensitive=request.get("sensitive", ()),
            progress=lambda phase, rows, total: report({"phase": phase, "rows": rows, "total": total}),
        )
    made = {shard.path for shards in sharded.splits.values() for shard in shards}
    for name in sorted(there.keys() - made - {schemas.FILE, HANDOFF_FILE}):
        raise _unlike(f"{writer.uri}/{name}", settings)
    fields, ref = _seal(writer, sharded, settings, files, request)
    for shards in fields["splits"].values():
        for shard in shards:
            shard["uri"] = ref.uri
    return Dataset.from_json({**fields, "ref": ref.to_json()}).to_json()


def _transform(settings: ShardsSpec, project: str | None) -> Transform | None:
    if settings.transform is None:
        return None
    if project is None:
        raise UsageError("shards.transform needs the user's project, but the request names none.")
    root = add_project(project)
    return load_callable(settings.transform.call, settings.transform.args, "shards.transform", root)


def _into(
    writer: Writer, there: dict[str, FileEntry], scratch: Path, settings: ShardsSpec
) -> Callable[[str, pa.Table], FileEntry]:
    """A callback that stores one shard, or passes over one that an earlier attempt at this directory stored."""
    write_shard = formats.get(settings.format).write_shard

    def write(name: str, rows: pa.Table) -> FileEntry:
        path = scratch / name
        write_shard(rows, path)
        # A shard that is there is compared, not trusted: shards of two different draws must never stand side by side.
        digest = file_digest(path)
        if name in there and there[name].blake3 != digest:
            raise _unlike(f"{writer.uri}/{name}", settings)
        entry = there[name] if name in there else writer.put(name, path)
        path.unlink(missing_ok=True)
        return entry

    return write


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
    writer: Writer, sharded: Sharded, settings: ShardsSpec, files: list[SourceFile], request: dict[str, Any]
) -> tuple[dict[str, Any], Ref]:
    """Put the schema and the hand-off beside the shards and seal; the hand-off's fields (without URIs) and its ref."""
    schema = schemas.to_json(sharded.schema)
    fields = {
        "schema_version": 1,
        "key": request["key"],
        "format": settings.format,
        "splits": {name: [shard.to_json() for shard in shards] for name, shards in sharded.splits.items()},
        "columns": schemas.columns_of(sharded.schema),
        "dropped_rows": sharded.dropped_rows,
    }
    writer.put(schemas.FILE, canonical(schema))
    put_handoff(writer, fields)
    # What shaped the result, and nothing that differs from one machine, day or store to the next.
    shaped = {
        **request["settings"],
        "format": settings.format,
        "schema": schema,
        "splits": {name: sum(shard.rows for shard in shards) for name, shards in sharded.splits.items()},
        "seed": settings.seed,
        "sources": [file.blake3 for file in files],
    }
    return fields, writer.seal("dataset", shaped, request["provenance"])


if __name__ == "__main__":
    child_main(main)
