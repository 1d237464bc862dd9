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
from data_contracts.handoffs import Dataset, Ref, ShardFile
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


def write_without(
    writer: Writer, dataset: Dataset, compared: Compared, masks: Masks, request: Mapping[str, Any], folder: Path
) -> tuple[Dataset, dict[str, int]]:
    """Seal the dataset without the rows that masks mark, by side; returns it and the rows left out of each split.

    Args:
        request: `key` and `provenance` of the new dataset.

    Raises:
        UsageError: a split would have no rows left.
    """
    own = {one.side.split: one for one in compared.sides if one.side.own}
    format_ = formats.get(dataset.format)
    splits: dict[str, list[ShardFile]] = {}
    dropped: dict[str, int] = {}
    for name, shards in dataset.splits.items():
        side = own.get(name)
        mask = None if side is None else masks.get(side.number)
        if side is None or mask is None or not mask.any():
            splits[name] = shards
            continue
        if mask.all():
            raise UsageError(
                f"contract.contamination drops all rows of {name!r}: each is in another split, too.",
                remedy="Look at shards.split, or compare more columns (contract.contamination.columns).",
            )
        dropped[name] = int(mask.sum())
        splits[name] = []
        for number, shard in enumerate(shards):
            leave = mask[side.first_rows[number] : side.first_rows[number + 1]]
            if not leave.any():
                splits[name].append(shard)
            elif not leave.all():
                rows = pa.concat_tables(side.shards.tables(number, side.shards.schema.names))
                path = folder / f"{name}-{number:05d}{format_.SUFFIX}"
                format_.write_shard(rows.filter(pa.array(~leave)).combine_chunks(), path)
                entry = writer.put(path.name, path)
                path.unlink()
                kept = int((~leave).sum())
                splits[name].append(
                    ShardFile(uri="", path=entry.path, rows=kept, bytes=entry.bytes, blake3=entry.blake3)
                )
    return _sealed(writer, dataset, splits, compared, dropped, request), dropped


def _sealed(
    writer: Writer,
    dataset: Dataset,
    splits: dict[str, list[ShardFile]],
    compared: Compared,
    dropped: dict[str, int],
    request: Mapping[str, Any],
) -> Dataset:
    schema = schemas.to_json(next(one for one in compared.sides if one.side.own).shards.schema)
    fields = {
        "schema_version": 1,
        "key": request["key"],
        "format": dataset.format,
        "splits": {name: [shard.to_json() for shard in shards] for name, shards in splits.items()},
        "columns": dataset.columns,
        "dropped_rows": {**dataset.dropped_rows, REASON: sum(dropped.values())},
    }
    writer.put(schemas.FILE, canonical(schema))
    put_handoff(writer, fields)
    shaped = {
        "format": dataset.format,
        "schema": schema,
        "splits": {name: sum(shard.rows for shard in shards) for name, shards in splits.items()},
        "without_copies_of": dataset.ref.id,
        "dropped": dropped,
    }
    ref = writer.seal("dataset", shaped, request["provenance"])
    placed = {name: [_placed(shard, ref) for shard in shards] for name, shards in splits.items()}
    return Dataset.from_json({**fields, "splits": placed, "ref": ref})


def _placed(shard: ShardFile, dataset: Ref) -> ShardFile:
    return shard if shard.uri else shard.model_copy(update={"uri": dataset.uri})
