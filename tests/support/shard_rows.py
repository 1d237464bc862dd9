"""The rows of a whole shard, which the product reads block by block."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from training import formats
from training.formats.schema import pick


def shard_reader(name: str) -> Callable[..., pa.Table]:
    """A function of path, schema and (optional) columns that reads a shard of the format `name`."""

    def read(path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        blocks = list(formats.get(name).read_blocks(path, schema, columns))
        return pa.concat_tables(blocks) if blocks else pick(schema, columns).empty_table()

    return read
