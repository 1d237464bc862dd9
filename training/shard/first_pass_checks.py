"""Checks that need all rows, after the first pass: the splits' sizes, the schema, and what cannot be sharded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from data_contracts.arrow_rows import Numbers, number_before
from data_contracts.errors import UsageError
from training.formats.schema import Size
from training.shard.append import Earlier
from training.shard.first_pass import Gathered, Job
from training.shard.source_units import Source, Unit
from training.shard.split_leakage import find_shared, refuse_shared
from training.shard.split_notes import Notes, judge, refuse_empty
from training.shard.splitter import in_order, keys_of


def sizes_and_schema(
    gathered: Gathered,
    job: Job,
    units: Sequence[Unit],
    required: Collection[str],
    earlier: Earlier | None,
    left_out: Numbers | None = None,
) -> tuple[dict[str, Size], pa.Schema]:
    """The splits in order with their sizes, and the schema; UsageError for errors that only all rows can show.

    NotExtended if the rows of `earlier` would have another type with the new ones.

    Args:
        left_out: the numbers of rows that no unit reads, for the numbers in messages.
    """
    if earlier is None and not sum(gathered.unit_rows):
        raise no_rows()
    first_rows = [0, *accumulate(gathered.unit_rows)]
    split = job.settings.split
    there = {} if earlier is None else earlier.rows()
    if job.one_split is not None:
        names, required = [job.one_split], (job.one_split,)
    else:
        judge(gathered.notes, split, first_rows, job.sensitive, left_out)
        shared = find_shared(gathered.sides, first_rows)
        if shared is not None:
            values = _row_at(job.source, units, first_rows, keys_of(split), shared.row)
            row = shared.row if left_out is None else number_before(shared.row, left_out)
            raise refuse_shared(replace(shared, row=row), split, values, job.sensitive)
        names = in_order({*gathered.assigned, *there}) if split.column is not None else job.splitter().names
    assigned = {name: gathered.assigned.get(name, 0) + there.get(name, 0) for name in names}
    refuse_empty(assigned, required, *_splitting(gathered.notes))
    sizes = {name: gathered.facts.sizes.get(name, Size()) for name in names}
    if job.settings.transform is not None:
        kept = {name: size.rows + there.get(name, 0) for name, size in sizes.items()}
        refuse_empty(kept, required, "shards.transform")
    return sizes, _schema(gathered, earlier)


def _splitting(notes: Notes) -> tuple[str, str]:
    """The field that decides which rows each split gets, and why one may get none, as the end of a sentence."""
    documents = notes.documents
    if notes.key is not None and not notes.several_keys:
        return "shards.split", ": all rows have the same key"
    why = f": {documents.short:,} of {documents.all:,} documents are too short to be cut" if documents.short else ""
    return ("shards.split.gap", f"{why} with it") if documents.by_gap else ("shards.split", why)


def _schema(gathered: Gathered, earlier: Earlier | None) -> pa.Schema:
    if gathered.facts.form is None:
        if earlier is not None:
            return earlier.schema
        raise no_rows()
    if earlier is None:
        return gathered.facts.schema()
    earlier.stored_with(gathered.facts)
    return earlier.schema


def _row_at(
    source: Source, units: Sequence[Unit], first_rows: Sequence[int], columns: list[str], row: int
) -> dict[str, Any]:
    """Some columns of one row, read from the source again."""
    unit = int(np.searchsorted(first_rows, row, "right")) - 1
    at = row - first_rows[unit]
    for batch in source.read(units[unit], columns):
        if at < batch.num_rows:
            return batch.slice(at, 1).to_pylist()[0]
        at -= batch.num_rows
    raise AssertionError(f"row {row} was there in the first pass")


def no_rows() -> UsageError:
    """The error for a source without rows."""
    return UsageError(
        "The source has no rows to shard.", remedy="Look at data.source and at the window, if there is one."
    )
