"""The raw rows of the input, in the types that sharding read, in batches that a kill does not change. Torch-free.

Rows are counted from 0 over all files. They come in blocks of a fixed number of rows; a block is cut into batches as
sharding cuts rows for `shards.transform`. Work can be continued at any block. The columns that a batch needs for its
label alone may be missing from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.quoting import column_shown, columns_shown, name_shown, nearest_name, rows_shown, type_shown
from infra.sources import Places, Selection, file_facts, merged_schema, prefetch, read_batches
from infra.sources.schema_sniff import SniffedSchema, sniff_schema
from infra.sources.types import Misfit, common, plain
from training.shard.first_pass import TRANSFORM_ROWS, batch_end
from training.shard.units import Source, Unit, rows_in_words

_READ_ROWS = 2**14
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=(.+)\]")
_LIST = re.compile(r"list<(?:item|element): (.+?)(?: not null)?>")


def type_from(text: str) -> pa.DataType | None:
    """The Arrow type that a profile names; None for one that cannot be read back."""
    if match := _ZONED.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _LIST.fullmatch(text):
        inner = type_from(match[1])
        return None if inner is None else pa.list_(inner)
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return None


def block_rows(batch_size: int) -> int:
    """Rows of a block: whole batches of the model, and about as many as a transform gets at once."""
    return batch_size * -(-TRANSFORM_ROWS // batch_size)


def input_rows_shown(first: int, rows: int) -> str:
    """Rows of the input in words."""
    return rows_shown([("the input", first, first + rows - 1)])


@dataclass(frozen=True)
class RawRows:
    """The input, looked at and typed, not yet read.

    Attributes:
        schema: the columns that are read: those of the raw rows that were sharded, then further ones to keep.
        trained: those of them that sharding read, in its order.
        absent: columns that sharding read and the input lacks.
        total: rows, where the files say so.
        row_bytes: estimate of the stored bytes of a row.
    """

    files: list[SourceFile]
    sources: list[SourceSpec]
    root: Path
    schema: pa.Schema
    trained: list[str]
    absent: list[str]
    sniffed: list[SniffedSchema]

    @property
    def total(self) -> int | None:
        """Rows of all files, where each file states it."""
        counts = [one.rows for one in self.sniffed if one.rows is not None]
        return sum(counts) if len(counts) == len(self.sniffed) else None

    @property
    def all_columns(self) -> list[str]:
        """All columns of the files, also those that are not read."""
        return list(dict.fromkeys(name for one in self.sniffed for name in one.names))

    @property
    def row_bytes(self) -> float:
        """An estimate."""
        return sum(one.row_bytes for one in self.sniffed) / max(len(self.sniffed), 1)

    def batches(self, first: int, block: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Row number and rows of each batch from row `first` on, the beginning of a block.

        Raises: UsageError for a value that does not fit its column; CorruptError if a file changed.
        """
        at = first
        waiting: pa.Table = self.schema.empty_table()
        with closing(prefetch(self._read(first))) as ahead:
            for more in ahead:
                waiting = pa.concat_tables([waiting, pa.Table.from_batches([more])])
                while waiting.num_rows >= (limit := min(TRANSFORM_ROWS, block - at % block)):
                    batch, waiting = _cut(waiting, limit)
                    yield at, batch
                    at += batch.num_rows
        while waiting.num_rows:
            batch, waiting = _cut(waiting, min(TRANSFORM_ROWS, block - at % block))
            yield at, batch
            at += batch.num_rows

    def in_words(self, first: int, rows: int) -> str:
        """Where rows are: their numbers in the input and, of several files, the files that have them."""
        words = input_rows_shown(first, rows)
        if len(self.files) < 2 or not rows:
            return words
        source = Source(self.sources, self.root, schema=self.schema)
        every = Unit(0, "", tuple(self.files), 0)
        return f"{words} ({rows_in_words(source, every, Path(), np.arange(first, first + rows))})"

    def _read(self, first: int) -> Iterator[pa.RecordBatch]:
        """The rows after the first `first` ones; files whose rows are all passed over are not opened."""
        files, skip = list(self.files), first
        for one in self.sniffed:
            if one.rows is None or one.rows > skip:
                break
            skip -= one.rows
            files.pop(0)
        if not files:
            return
        selection = Selection(columns=self.schema.names, schema=self.schema, batch_rows=_READ_ROWS)
        try:
            for batch in read_batches(files, self.sources, root=self.root, selection=selection):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                yield batch.slice(skip)
                skip = 0
        except Misfit as error:
            raise self._misfit(error) from error

    def _misfit(self, error: Misfit) -> UsageError:
        """Name the column: reads the files once more, for the types that their values would have."""
        there = set(self.schema.names)
        for file in self.files:
            facts = file_facts(file, self.sources, self.root)
            for one in facts.schema:
                wanted = self.schema.field(one.name).type if one.name in there else None
                if wanted is not None and common(plain(one.type), wanted) != wanted:
                    row = facts.text_from.get(one.name)
                    because = "" if row is None else f" (row {row} holds text)"
                    return _other_type(file, one.name, one.type, wanted, because)
        return error


def look_at(
    files: list[SourceFile], sources: list[SourceSpec], root: Path, raw_types: dict[str, str], keep: list[str]
) -> RawRows:
    """Find out which columns the input has, and with which types they are read.

    Args:
        raw_types: columns that sharding read, and their types as text; empty if unknown: then all columns are read,
            with the types that their values have.
        keep: further columns.

    Raises:
        UsageError: a column to keep does not exist, a file has other columns than the first, or a Parquet file's column
            has a type of another kind.
    """
    places = Places(sources, root)
    sniffed = [sniff_schema(file, sources, root, places) for file in files]
    known = {name: kind for name, text in raw_types.items() if (kind := type_from(text)) is not None}
    there = dict.fromkeys(name for one in sniffed for name in one.names)
    for name in keep:
        if name not in there:
            raise no_column("--keep", name, list(there))
    trained = [name for name in (raw_types or there) if name in there]
    wanted = dict.fromkeys([*trained, *keep])
    _same_columns(files, sniffed, wanted)
    for file, one in zip(files, sniffed, strict=True):
        for name, kind in one.types.items():
            if name in wanted and name in known and common(plain(kind), known[name]) is None:
                raise _other_type(file, name, kind, known[name])
    if any(name not in known for name in wanted):
        found = merged_schema(files, [file_facts(file, sources, root) for file in files])
        known = {**{one.name: one.type for one in found}, **known}
    schema = pa.schema([(name, known[name]) for name in wanted])
    return RawRows(files, sources, root, schema, trained, [name for name in raw_types if name not in there], sniffed)


def no_column(who: str, name: str, there: list[str]) -> UsageError:
    """The error for a column that the input does not have."""
    near = nearest_name(name, there)
    guess = f"; did you mean {column_shown(name_shown(near, name))}?" if near else f"; it has {columns_shown(there)}."
    word = name_shown(name, near or "")
    return UsageError(f"{who}: the input has no column {word}{guess}", remedy="Correct the name, or add the column.")


def _same_columns(files: list[SourceFile], sniffed: list[SniffedSchema], columns: Iterable[str]) -> None:
    """UsageError if a file lacks a column that another has; in JSON Lines, any row may lack any."""
    listed = [(file, one) for file, one in zip(files, sniffed, strict=True) if file.format != "jsonl"]
    having_it: dict[str, SourceFile] = {}
    for file, schema in listed:
        for name in schema.names:
            having_it.setdefault(name, file)
    for file, schema in listed:
        there = set(schema.names)
        for name in columns:
            having = having_it.get(name)
            if having is not None and name not in there:
                raise UsageError(
                    f"{file.uri} has no column {column_shown(name)}, which {having.uri} has.",
                    remedy="Give all files the same columns.",
                )


def _other_type(
    file: SourceFile, name: str, kind: pa.DataType, trained_type: pa.DataType, because: str = ""
) -> UsageError:
    return UsageError(
        f"{file.uri}: the column {column_shown(name)} is {type_shown(kind)}{because}, but the model was trained with "
        f"{type_shown(trained_type)}.",
        remedy="Correct the values.",
    )


def _cut(waiting: pa.Table, limit: int) -> tuple[pa.RecordBatch, pa.Table]:
    some = waiting.slice(0, limit)
    stop = batch_end(some, limit)
    if not waiting.num_columns:
        raise UsageError("The input has no column that the model was trained with.", remedy="Look at its header.")
    [batch] = some.slice(0, stop).combine_chunks().to_batches()
    return batch, waiting.slice(stop)


def label_columns(batch: Any, metrics: Mapping[str, Mapping[str, Any]], columns: list[str]) -> set[str]:
    """The columns of the shards that only the label of a batch is made of: what the metrics call their target.

    Args:
        batch: `train.batch`.
        columns: of the shards.
    """
    targets = {str(one["target"]) for one in metrics.values() if one.get("target") is not None}
    if batch is None:
        return targets & set(columns)
    keys = (
        [[key] for key in batch]
        if isinstance(batch, dict)
        else [[str(at), str(at - len(batch))] for at in range(len(batch))]
    )
    label: set[str] = set()
    others: set[str] = set()
    for names, entry in zip(keys, batch.values() if isinstance(batch, dict) else batch, strict=True):
        parts = [entry] if isinstance(entry, str) else entry
        called = [*names, entry] if isinstance(entry, str) and isinstance(batch, list) else names
        (label if targets & set(called) else others).update(parts)
    return label - others
