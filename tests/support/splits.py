"""Sealed splits for tests of the loader: any table in shards of any size, in either format."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from data_contracts.handoffs import Dataset
from infra.files import file_digest
from training import formats
from training.formats.schema import FILE, columns_of, conform_rows, finish, narrow, to_json


def normalised(table: pa.Table) -> pa.Table:
    """The same rows with every column in the form that shards have, all fields nullable."""
    narrowed = narrow(table)
    return conform_rows(narrowed, finish(narrowed.schema, table.schema))


def write_split(folder: Path, table: pa.Table, shard_rows: list[int] | None = None, form: str = "parquet") -> Dataset:
    """The table as split `train` of a dataset whose shards have `shard_rows` rows each (default: one shard)."""
    folder.mkdir(parents=True, exist_ok=True)
    table = normalised(table)
    shards = []
    ends = [sum((shard_rows or [table.num_rows])[:at]) for at in range(len(shard_rows or [0]) + 1)]
    for number, (start, stop) in enumerate(pairwise(ends)):
        path = folder / f"train-{number:05}{formats.get(form).SUFFIX}"
        formats.write_shard(form, table.slice(start, stop - start), path)
        size, digest = path.stat().st_size, file_digest(path)
        shards.append({"uri": "", "path": path.name, "rows": stop - start, "bytes": size, "blake3": digest})
    (folder / FILE).write_text(json.dumps(to_json(table.schema)))
    ref = {"uri": "datasets/d-0", "id": "d" * 64, "seal": "s" * 64}
    return Dataset.from_json(
        {"ref": ref, "key": "d", "format": form, "splits": {"train": shards}, "columns": columns_of(table.schema)}
    )
