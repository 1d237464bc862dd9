"""Joins finished parts to one file: Parquet, CSV or JSON Lines, by its suffix. Torch-free.

The bytes depend on the rows alone, not on how they are divided into parts.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from data_contracts.errors import UsageError
from data_contracts.quoting import column_shown

# Of a Parquet file; its bytes depend on it.
GROUP_ROWS = 2**16
SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")


def suffix_of(output: Path) -> str:
    """The suffix that decides the format; UsageError for any other."""
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"The format of {output.name or output} is not clear from its name.",
            remedy="End it in .parquet, .csv or .jsonl.",
        )
    return suffix


def refuse_columns(schema: pa.Schema, output: Path) -> None:
    """UsageError for a column that the format cannot hold."""
    suffix = suffix_of(output)
    if suffix == ".parquet":
        return
    for field in schema:
        kind, vector = field.type, _is_vector(field.type)
        text = pa.types.is_string(kind) or pa.types.is_temporal(kind) or _is_number(kind)
        if not text and not vector:
            raise UsageError(
                f"{output.name}: the column {field.name} is {kind}, which this format cannot hold.",
                remedy="Write a file that ends in .parquet, or leave the column out of --keep.",
            )
    refuse_twice(names_in(schema, output))


def refuse_twice(names: Collection[str]) -> None:
    """UsageError if two columns of the output have one name."""
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise UsageError(
            f"Two columns of the output would be called {column_shown(twice)}.",
            remedy="Leave it out of --keep, or rename the column.",
        )


def join(batches: Iterable[pa.RecordBatch], schema: pa.Schema, output: Path, target: Path) -> None:
    """Write all rows to `target` in the format of `output`'s suffix, in memory for some batches."""
    suffix = suffix_of(output)
    with target.open("wb") as file:
        if suffix == ".parquet":
            _parquet(batches, schema, file)
        elif suffix == ".csv":
            _csv(batches, schema, file)
        else:
            for batch in batches:
                file.write(json_lines(batch))


def names_in(schema: pa.Schema, output: Path) -> list[str]:
    """The columns of the file: in CSV, each value of a vector has one."""
    return _flat(schema.empty_table()).schema.names if suffix_of(output) == ".csv" else schema.names


def _parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: BinaryIO) -> None:
    with pq.ParquetWriter(file, schema) as writer:
        for group in _groups(batches, schema, GROUP_ROWS):
            writer.write_table(group, row_group_size=GROUP_ROWS)


def _csv(batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: BinaryIO) -> None:
    # Not through a writer for all batches, whose constructor takes the header from a schema without lists.
    flat = _flat(schema.empty_table())
    with pyarrow.csv.CSVWriter(file, flat.schema) as writer:
        for batch in batches:
            writer.write_table(_flat(pa.Table.from_batches([batch])))


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    have = 0
    for batch in batches:
        waiting.append(batch)
        have += batch.num_rows
        while have >= rows:
            table = pa.Table.from_batches(waiting, schema)
            yield table.slice(0, rows).combine_chunks()
            waiting, have = table.slice(rows).to_batches(), have - rows
    if have:
        yield pa.Table.from_batches(waiting, schema).combine_chunks()


def _flat(table: pa.Table) -> pa.Table:
    """Each value of a vector as a column of its own."""
    names: list[str] = []
    columns: list[pa.ChunkedArray] = []
    for field in table.schema:
        column = table.column(field.name)
        if not pa.types.is_fixed_size_list(field.type):
            names.append(field.name)
            columns.append(column)
            continue
        for at in range(field.type.list_size):
            names.append(f"{field.name}_{at}")
            columns.append(pc.list_element(column, at))
    return pa.table(columns, names)


def json_lines(batch: pa.RecordBatch) -> bytes:
    """One JSON object a line; a number that is not finite is null, as JSON has no other word for it."""
    if not batch.num_rows:
        return b""
    parts: list[pa.Array | str] = []
    for at, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        parts += [("{" if not at else ", ") + json.dumps(name) + ": ", _texts(column)]
    lines = pc.binary_join_element_wise(*parts, "}\n", "")
    return "".join(lines.to_pylist()).encode()


def _texts(column: pa.Array) -> pa.Array:
    """Each value as JSON."""
    kind = column.type
    if _is_vector(kind):
        # A null row has no values of its own here: it is written as null below.
        inner = _texts(column.flatten())
        sizes = pc.fill_null(pc.list_value_length(column), 0)
        offsets = pa.array([0, *pc.cumulative_sum(sizes).to_pylist()], pa.int32())
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, inner), ", ")
        texts = pc.binary_join_element_wise("[", joined, "]", "")
        return pc.if_else(column.is_valid(), texts, "null")
    if pa.types.is_string(kind):
        return pa.array(["null" if one is None else json.dumps(one) for one in column.to_pylist()], pa.string())
    if pa.types.is_temporal(kind):
        return pc.fill_null(pc.binary_join_element_wise('"', column.cast(pa.string()), '"', ""), "null")
    texts = column.cast(pa.string())
    if pa.types.is_floating(kind):
        texts = pc.if_else(pc.is_finite(column), texts, None)
    return pc.fill_null(texts, "null")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_vector(kind: pa.DataType) -> bool:
    fixed = pa.types.is_fixed_size_list(kind)
    return bool(fixed and _is_number(kind.value_type))


def read_parts(paths: Iterable[Path], on_batch: Callable[[int], None] = lambda rows: None) -> Iterator[pa.RecordBatch]:
    """The batches of parts, in order; not mapped into memory, where their pages would count as this process's."""
    for path in paths:
        with contextlib.closing(pa.OSFile(str(path))) as file, pa.ipc.open_file(file) as reader:
            for at in range(reader.num_record_batches):
                batch = reader.get_batch(at)
                on_batch(batch.num_rows)
                yield batch


def schema_of(path: Path) -> pa.Schema:
    """The columns of a part."""
    with contextlib.closing(pa.OSFile(str(path))) as file, pa.ipc.open_file(file) as reader:
        return reader.schema
