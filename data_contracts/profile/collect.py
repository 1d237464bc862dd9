"""Profiles data part by part and merges the parts, in any order, into one profile."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from data_contracts.profile.bins import BinCounter
from data_contracts.profile.columns import Column, of_texts, summary
from data_contracts.profile.hashes import of_patterns
from data_contracts.profile.moments import block_of
from data_contracts.profile.moments import merged as merged_moments
from data_contracts.profile.record import ColumnProfile, Profile, Sample
from data_contracts.profile.samples import NumberSample, TextSample


def profile_of(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, sensitive: Collection[str], threads: int | None = None
) -> Profile:
    """The profile of one part, such as a file.

    Args:
        batches: its rows, in batches of any sizes.
        schema: of all batches.
        sensitive: columns of which only rows and nulls are counted.
        threads: columns that are counted at once; default: one per processor. It does not affect the result.
    """
    block = block_of(len(schema))
    columns = [Column(field.name, field.type, field.name in sensitive, block) for field in schema]
    rows = 0
    with ThreadPoolExecutor(threads or os.cpu_count() or 1, "profile") as pool:
        for batch in batches:
            rows += batch.num_rows
            list(pool.map(Column.add, columns, batch.columns))
        return Profile(rows=rows, columns=list(pool.map(Column.record, columns)))


def merged(parts: Sequence[Profile]) -> Profile:
    """The profile of all parts together; all have the same columns."""
    columns = [_merged(list(same)) for same in zip(*(part.columns for part in parts), strict=True)]
    return Profile(rows=sum(part.rows for part in parts), columns=columns)


def _merged(parts: list[ColumnProfile]) -> ColumnProfile:
    first = parts[0]
    counts = {name: sum(getattr(one, name) for one in parts) for name in ("rows", "nulls", "infinite")}
    plain = ColumnProfile(name=first.name, type=first.type, kind=first.kind, **counts)
    parts = [one for one in parts if one.values]
    binned = [one.bins for one in parts if one.bins is not None]
    if not parts or len(binned) < len(parts):  # no values, or nothing is known of those of a part
        return plain.model_copy(update={"bins": first.bins, "sample": first.sample} if not parts else {})
    counter = BinCounter()
    for one in binned:
        counter.merge(one)
    sample = _sample(parts, counter.shift)
    ranges = [(one.minimum, one.maximum) for one in parts if one.minimum is not None and one.maximum is not None]
    finite = (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None
    moments = [one.moments for one in parts if one.values > one.infinite]
    known = [one for one in moments if one is not None]
    sums = merged_moments(known) if known and len(known) == len(moments) else None
    fields = summary(counter.record(), sums, sample, finite)
    return plain.model_copy(update=fields | (of_texts(sample) if first.kind in ("text", "bytes") else {}))


def _sample(parts: list[ColumnProfile], shift: int) -> Sample | None:
    kind = parts[0].kind
    if kind == "text":
        texts = TextSample()
        for one in parts:
            if one.sample is None:
                return None
            texts.merge(one.sample)
        return texts.record()
    if kind not in ("number", "time") or shift == 0:
        return None
    numbers = NumberSample()
    for one in parts:
        if one.sample is not None:
            numbers.add(np.array(one.sample.hashes, np.uint64))
        elif one.bins is not None:
            numbers.add(of_patterns(np.array(one.bins.keys, np.int64)))
    return numbers.record()
