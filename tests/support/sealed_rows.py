"""Sealed datasets made of tables, without the shard stage: each split's rows lie in shards of a few rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from data_contracts.handoffs import Dataset, Ref, ShardFile
from data_contracts.messages.raw_data import Side
from infra.files import file_digest
from training import formats
from training.contamination.exact import Compared, open_sides
from training.formats import schema as schemas


def sealed(root: Path, name: str, splits: dict[str, pa.Table], shard_rows: int = 4) -> Dataset:
    """A dataset under `root/datasets/name`; its seal is not checked by who reads its shards."""
    folder = root / "datasets" / name
    folder.mkdir(parents=True)
    schema = next(iter(splits.values())).schema
    (folder / schemas.FILE).write_text(json.dumps(schemas.to_json(schema)))
    found: dict[str, list[ShardFile]] = {}
    for split, rows in splits.items():
        found[split] = []
        for number, start in enumerate(range(0, rows.num_rows, shard_rows)):
            path = folder / f"{split}-{number:05d}.parquet"
            part = rows.slice(start, shard_rows)
            formats.write_shard("parquet", part, path)
            found[split].append(
                ShardFile(
                    uri=f"datasets/{name}",
                    path=path.name,
                    rows=part.num_rows,
                    bytes=path.stat().st_size,
                    blake3=file_digest(path),
                )
            )
    ref = Ref(uri=f"datasets/{name}", id=name, seal=name)
    return Dataset(ref=ref, key=name, format="parquet", splits=found, columns=schemas.columns_of(schema))


def compared(root: Path, sides: list[Side], columns: list[str]) -> Compared:
    """The sides opened, with these columns."""
    fields = dict.fromkeys(columns, "contract.contamination")
    return open_sides(sides, [root / side.dataset.ref.uri for side in sides], fields, lambda: None)
