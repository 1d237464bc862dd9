"""Tables as datasets in shards of any size and in either format, with a hand-off, and without a store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.handoffs import Dataset
from infra.files import file_digest
from training import formats
from training.formats.schema import FILE, columns_of, conform_rows, finish, narrow, to_json


def normalised(table: pa.Table) -> pa.Table:
    """The same rows with every column in the form that shards have, all fields nullable."""
    narrowed = narrow(table)
    return conform_rows(narrowed, finish(narrowed.schema, table.schema))


def write_dataset(
    folder: Path,
    tables: Mapping[str, pa.Table],
    *,
    shards: int = 2,
    shard_rows: list[int] | None = None,
    form: str = "parquet",
) -> dict[str, Any]:
    """Tables, by split, as a dataset in shards: so many of about equal size, or of `shard_rows` rows each.

    Returns the hand-off as JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, list[dict[str, Any]]] = {}
    for split, rows in tables.items():
        table = normalised(rows)
        equal = [round(table.num_rows * at / shards) for at in range(shards + 1)]
        ends = equal if shard_rows is None else [0, *accumulate(shard_rows)]
        splits[split] = []
        for number, (start, stop) in enumerate(pairwise(ends)):
            path = folder / f"{split}-{number:05}{formats.get(form).SUFFIX}"
            formats.write_shard(form, table.slice(start, stop - start), path)
            size, digest = path.stat().st_size, file_digest(path)
            splits[split].append({"uri": "", "path": path.name, "rows": stop - start, "bytes": size, "blake3": digest})
    (folder / FILE).write_text(json.dumps(to_json(table.schema)))
    ref = {"uri": "datasets/d-0", "id": "d" * 64, "seal": "s" * 64}
    return {"ref": ref, "key": "d", "format": form, "splits": splits, "columns": columns_of(table.schema)}


def write_split(folder: Path, table: pa.Table, shard_rows: list[int] | None = None, form: str = "parquet") -> Dataset:
    """The table as split `train` of a dataset whose shards have `shard_rows` rows each (default: one shard)."""
    return Dataset.from_json(write_dataset(folder, {"train": table}, shards=1, shard_rows=shard_rows, form=form))
