"""Writes the dataset without the rows that are also in a side which is used later: whole shards stay where they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.canonical import canonical
from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset, FileEntry, Ref, ShardFile
from infra.records.handoffs import put_handoff
from infra.store import Writer
from training import formats
from training.contamination.row_digests import row_digests
from training.contamination.sides import Compared, OpenSide
from training.formats import schema as schemas

REASON = "contamination"
Masks = Mapping[int, NDArray[np.bool_]]


def copies(compared: Compared, side: OpenSide, columns: list[str], digests: Path | None) -> NDArray[np.bool_]:
    """Which rows of a side have one of these digests (two uint64 each, ascending): (rows,) bool."""
    found = np.zeros(side.num_rows, bool)
    if digests is None:
        return found
    listed = np.memmap(digests, np.uint64, mode="r").reshape(-1, 2)
    keys = np.ascontiguousarray(listed[:, 0])
    for first, values in compared.blocks(side, columns):
        rows = row_digests(values)
        low, high = np.searchsorted(keys, rows[:, 0], "left"), np.searchsorted(keys, rows[:, 0], "right")
        while len(at := np.flatnonzero(low < high)):
            # Usually one digest in the list begins with a row's first half.
            equal = listed[low[at], 1] == rows[at, 1]
            found[first + at[equal]] = True
            low[at] += 1
    return found


def rows_dropped(compared: Compared, masks: Masks) -> dict[str, int]:
    """How many rows masks mark, by split; UsageError if a split would have no rows left."""
    dropped = {}
    for side in compared.sides:
        mask = masks.get(side.number)
        if mask is None or not mask.any():
            continue
        if mask.all():
            raise UsageError(
                f"contract.contamination drops all rows of {side.side.split!r}: each is in another split, too.",
                remedy="Look at shards.split, or compare more columns (contract.contamination.columns).",
            )
        dropped[side.side.split] = int(mask.sum())
    return dropped


def write_without(
    writer: Writer, dataset: Dataset, compared: Compared, masks: Masks, request: Mapping[str, Any], folder: Path
) -> Ref:
    """Seal the dataset without the rows that masks mark, by side; nothing is dropped from a side without a mask.

    Args:
        request: `key` and `provenance` of the new dataset.
        folder: for shards until they are stored.
    """
    own = {one.side.split: one for one in compared.sides if one.side.own}
    splits: dict[str, list[ShardFile]] = {}
    for name, shards in dataset.splits.items():
        side = own.get(name)
        mask = None if side is None else masks.get(side.number)
        kept = shards if side is None or mask is None else _kept_shards(writer, dataset.format, side, mask, folder)
        splits[name] = kept
    return _sealed(writer, dataset, splits, compared, rows_dropped(compared, masks), request)


def _kept_shards(
    writer: Writer, format_name: str, side: OpenSide, mask: NDArray[np.bool_], folder: Path
) -> list[ShardFile]:
    """The shards of a split without the marked rows: those that lose none stay where they are."""
    format_ = formats.get(format_name)
    kept: list[ShardFile] = []
    for number, shard in enumerate(side.side.dataset.splits[side.side.split]):
        leave = mask[side.first_rows[number] : side.first_rows[number + 1]]
        if not leave.any():
            kept.append(shard)
        elif not leave.all():
            rows = pa.concat_tables(side.shards.tables(number, side.shards.schema.names))
            path = folder / f"{side.side.split}-{number:05d}{format_.SUFFIX}"
            format_.write_shard(rows.filter(pa.array(~leave)).combine_chunks(), path)
            entry = writer.put(path.name, path)
            path.unlink()
            left = int((~leave).sum())
            kept.append(ShardFile(uri="", path=entry.path, rows=left, bytes=entry.bytes, blake3=entry.blake3))
    return kept


def _sealed(
    writer: Writer,
    dataset: Dataset,
    splits: dict[str, list[ShardFile]],
    compared: Compared,
    dropped: dict[str, int],
    request: Mapping[str, Any],
) -> Ref:
    schema = schemas.to_json(next(one for one in compared.sides if one.side.own).shards.schema)
    fields = {
        "schema_version": 1,
        "key": request["key"],
        "format": dataset.format,
        "splits": {name: [shard.to_json() for shard in shards] for name, shards in splits.items()},
        "columns": dataset.columns,
        "dropped_rows": {**dataset.dropped_rows, REASON: sum(dropped.values())},
    }
    beside = [writer.put(schemas.FILE, canonical(schema)), put_handoff(writer, fields)]
    new = [
        FileEntry(path=shard.path, bytes=shard.bytes, blake3=shard.blake3)
        for shards in splits.values()
        for shard in shards
        if not shard.uri
    ]
    shaped = {
        "format": dataset.format,
        "schema": schema,
        "splits": {name: sum(shard.rows for shard in shards) for name, shards in splits.items()},
        "without_copies_of": dataset.ref.id,
        "dropped": dropped,
    }
    return writer.seal("dataset", shaped, request["provenance"], [*new, *beside])
