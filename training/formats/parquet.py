"""Parquet shards: what pandas, DuckDB and Polars read as it is; tensors are fixed-size binary."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.errors import CorruptError
from training.formats.schema import pick

SUFFIX = ".parquet"

# A row group is the least that can be read alone; fixed, so that a file does not depend on the machine.
ROW_GROUP_ROWS = 65_536


def refuse(table: pa.Table) -> None:
    """Parquet holds every type that a shard can have."""


def write_shard(table: pa.Table, path: Path) -> None:
    """Write normalised rows to a new file; the same rows give the same bytes however they are chunked."""
    # Pages of fixed-size binary end where chunks end, so the chunks are joined first. Uncompressed: reading is what
    # training waits for, and a dictionary pays only where strings repeat.
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    pq.write_table(
        table.combine_chunks().replace_schema_metadata(None),
        path,
        row_group_size=ROW_GROUP_ROWS,
        compression="none",
        use_dictionary=texts or False,
        version="2.6",
        store_schema=True,
    )


def read_shard(path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file, in order.

    Args:
        schema: the dataset's; the result has exactly its fields, or those that `columns` names, in their order.

    Raises:
        CorruptError: the file is no Parquet file, or holds other columns or types than the schema says.
        UsageError: `columns` names one that the schema does not have.
    """
    wanted = pick(schema, columns)
    try:
        # ParquetFile, for read_table would take `name=value` parts of the path for columns.
        table = pq.ParquetFile(path).read(columns=wanted.names)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptError(f"Shard {path.name} cannot be read as Parquet: {error}.") from error
    for field in wanted:
        if field.name not in table.column_names:
            raise CorruptError(f"Shard {path.name} has no column {field.name!r}, which its dataset's schema names.")
        stored = table.schema.field(field.name).type
        if stored != field.type:
            raise CorruptError(
                f"Shard {path.name} holds {field.name!r} as {stored}, but its dataset's schema says {field.type}."
            )
    return pa.Table.from_arrays([table.column(name) for name in wanted.names], schema=wanted)
