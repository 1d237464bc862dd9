"""From rows to shards: split, transform, shuffle, cut and write. Plain functions over an iterator and a callback.

The result depends on the rows and the settings alone, never on how the rows came in batches. All rows are held in
memory at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.handoffs import FileEntry, ShardFile
from data_contracts.spec import ShardsSpec
from training import formats
from training.formats.normal import normalise
from training.order import permutation
from training.split import REQUIRED, Assignment, assign, refuse_empty

# Rows that a user's transform gets at once. A transform may look at the rows beside a row, so this decides the
# result: it belongs to the shard stage's version.
TRANSFORM_ROWS = 4_096

Transform = Callable[[pa.RecordBatch], pa.RecordBatch]
Write = Callable[[str, pa.Table], FileEntry]
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Sharded:
    """What was written: the shards of each split in order, the schema of their rows, and the rows left out."""

    splits: dict[str, list[ShardFile]]
    schema: pa.Schema
    dropped_rows: dict[str, int] = field(default_factory=dict)


def shard_rows(
    batches: Iterable[pa.RecordBatch],
    settings: ShardsSpec,
    write: Write,
    *,
    transform: Transform | None = None,
    one_split: str | None = None,
    required: Collection[str] = REQUIRED,
    sensitive: Collection[str] = (),
    progress: Progress = lambda phase, rows, total: None,
) -> Sharded:
    """Write all rows as shards called `<split>-<00000><suffix>`; `ShardFile.uri` is left empty for the caller.

    Args:
        write: stores one shard (name, normalised rows in order) and says what it stored.
        transform: maps a batch of one split's rows, in source order, to a batch.
        one_split: put every row into a split of this name instead of splitting.
        required: splits that must have rows; unused with `one_split`.
        sensitive: columns whose values no message may show.
        progress: told the phase (`reading`, `transforming`, `writing`), its rows so far and in all, if known.

    Raises:
        UsageError: the split cannot be made, or the format cannot hold a column; nothing was written.
        UserCodeError: the transform raised or returned something else than rows.
    """
    rows = _collect(batches, progress)
    if one_split is not None:
        assigned, required = Assignment([one_split], np.zeros(rows.num_rows, np.int16)), (one_split,)
    else:
        assigned = assign(rows, settings.split, required, sensitive)
    parts = [rows.filter(pa.array(assigned.of_row == index)) for index in range(len(assigned.names))]
    del rows
    if transform is not None:
        parts = _transformed(parts, transform, progress)
        counts = {name: part.num_rows for name, part in zip(assigned.names, parts, strict=True)}
        refuse_empty(counts, required, "shards.transform")
    sizes = [part.num_rows for part in parts]
    # Types are settled over the rows of all splits together: whether a list is a tensor depends on every row.
    whole = normalise(pa.concat_tables(parts))
    del parts
    formats.get(settings.format).refuse(whole)
    splits: dict[str, list[ShardFile]] = {}
    start = written = 0
    for name, count in zip(assigned.names, sizes, strict=True):
        splits[name] = []
        for file_name, shard in _shards(name, whole.slice(start, count), settings):
            entry = write(file_name, shard)
            splits[name].append(
                ShardFile(uri="", path=entry.path, rows=shard.num_rows, bytes=entry.bytes, blake3=entry.blake3)
            )
            written += shard.num_rows
            progress("writing", written, whole.num_rows)
        start += count
    return Sharded(splits, whole.schema, assigned.dropped)


def num_shards(rows: pa.Table, target_size_bytes: int) -> int:
    """How many shards normalised rows make; each has at least one row."""
    return max(1, min(rows.num_rows, math.ceil(logical_bytes(rows) / target_size_bytes)))


def logical_bytes(rows: pa.Table) -> int:
    """Bytes of the values of normalised rows, whatever buffers and chunks they lie in."""
    return sum(_value_bytes(column) for column in rows.columns)


def bounds(num_rows: int, shards: int) -> list[int]:
    """`shards` + 1 row numbers that cut `num_rows` rows into shards whose sizes differ by one at most."""
    return [num_rows * index // shards for index in range(shards + 1)]


def _collect(batches: Iterable[pa.RecordBatch], progress: Progress) -> pa.Table:
    kept, rows = [], 0
    for batch in batches:
        kept.append(batch)
        rows += batch.num_rows
        progress("reading", rows, None)
    if not rows:
        raise UsageError(
            "The source has no rows to shard.", remedy="Look at data.source and at the window, if there is one."
        )
    return pa.Table.from_batches(kept)


def _transformed(parts: list[pa.Table], transform: Transform, progress: Progress) -> list[pa.Table]:
    total, done = sum(part.num_rows for part in parts), 0
    results = []
    for part in parts:
        made: list[pa.Table] = []
        for batch in _rebatched(part):
            made.append(_checked(transform(batch)))
            done += batch.num_rows
            progress("transforming", done, total)
        # An empty answer says nothing about types (an empty list of Python objects has none).
        results.append([table for table in made if table.num_rows] or made[:1])
    try:
        schema = pa.unify_schemas([table.schema.remove_metadata() for made in results for table in made])
        conformed = [[_conformed(table, schema) for table in made] for made in results]
    except (ValueError, pa.ArrowTypeError) as error:
        raise UserCodeError(
            f"shards.transform does not give every batch the same columns and types: {str(error).splitlines()[0]}.",
            remedy="Return batches with one schema.",
        ) from error
    return [pa.concat_tables(made or [schema.empty_table()]) for made in conformed]


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise ValueError(f"column {missing[0]!r} is not in all of them")
    return table.select(schema.names).cast(schema)


def _rebatched(part: pa.Table) -> Iterator[pa.RecordBatch]:
    """Batches of TRANSFORM_ROWS rows, the last one smaller, whatever the part's own chunks are."""
    for start in range(0, part.num_rows, TRANSFORM_ROWS):
        yield from part.slice(start, TRANSFORM_ROWS).combine_chunks().to_batches()


def _checked(result: object) -> pa.Table:
    if not isinstance(result, pa.RecordBatch | pa.Table):
        kind = f"{type(result).__module__}.{type(result).__qualname__}".removeprefix("builtins.")
        raise UserCodeError(
            f"shards.transform returned a {kind}, not a pyarrow.RecordBatch.",
            remedy="Return a RecordBatch; its number of rows may differ.",
        )
    names = result.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserCodeError(f"shards.transform returned two columns called {twice!r}.", remedy="Rename one of them.")
    return pa.Table.from_batches([result]) if isinstance(result, pa.RecordBatch) else result


def _shards(split: str, rows: pa.Table, settings: ShardsSpec) -> Iterator[tuple[str, pa.Table]]:
    """Names and rows of a split's shards: a seeded permutation of the whole split, cut evenly."""
    if not rows.num_rows:
        return
    order = permutation(rows.num_rows, "shuffle", settings.seed, split)
    suffix = formats.get(settings.format).SUFFIX
    cuts = bounds(rows.num_rows, num_shards(rows, settings.target_size_bytes))
    for index, (start, stop) in enumerate(pairwise(cuts)):
        yield f"{split}-{index:05d}{suffix}", rows.take(pa.array(order[start:stop]))


def _value_bytes(column: pa.ChunkedArray | pa.Array) -> int:
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return pc.sum(pc.binary_length(column)).as_py() or 0
    if pa.types.is_list(type_):
        return 4 * len(column) + _value_bytes(pc.list_flatten(column))
    if pa.types.is_null(type_):
        return 0
    return len(column) * type_.bit_width // 8
