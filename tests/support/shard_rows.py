"""The rows of a whole shard, which the product reads block by block, and of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.handoffs import Dataset
from infra.records.handoffs import local_dataset
from infra.store import Store
from training import formats
from training.formats import shard_path
from training.formats.schema import pick, read_schema


def shard_reader(name: str) -> Callable[..., pa.Table]:
    """A function of path, schema and (optional) columns that reads a shard of the format `name`."""

    def read(path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        blocks = list(formats.get(name).read_blocks(path, schema, columns))
        return pa.concat_tables(blocks) if blocks else pick(schema, columns).empty_table()

    return read


def rows_in(store: Store, dataset: Dataset, *splits: str) -> list[dict[str, Any]]:
    """The rows of these splits of a sealed dataset, or of all its splits, in stored order."""
    folder = local_dataset(store, dataset)
    read, schema = shard_reader(dataset.format), read_schema(folder)
    shards = [shard for split in splits or dataset.splits for shard in dataset.splits[split]]
    return [row for shard in shards for row in read(shard_path(folder, dataset, shard), schema).to_pylist()]
