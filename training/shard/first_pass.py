"""The first pass: reads units, decides each row's split, transforms, and stores rows for the second pass.

A `Gatherer` processes units in order, in any process; the results of several are merged in the units' order. Plain
functions over picklable requests, so that an engine on other machines can call them too. After it come the checks that
need all rows: the splits' sizes, the schema, and what cannot be sharded.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_rows import Numbers, number_before
from data_contracts.errors import UsageError, UserCodeError
from data_contracts.pipeline_spec import ShardsSpec
from data_contracts.quoting import column_shown
from infra.sources import prefetch
from training import formats
from training.formats.schema import Facts, Mismatch, Size, conform_rows, widen
from training.shard.spill import BATCH_BYTES, Spill, Spilled, shuffle_keys, stream_start
from training.shard.splitter import (
    LEFT_OUT,
    Notes,
    Splitter,
    find_shared,
    in_order,
    judge,
    keys_of,
    note_sides,
    refuse_empty,
    refuse_shared,
)
from training.shard.units import Earlier, Fetcher, Source, Unit, rows_in_words
from training.user.imports import add_project, load_callable

# Rows that a user's transform gets at once, fewer if they are larger than TRANSFORM_BYTES. A transform may look at
# neighbouring rows, so both numbers decide the result: they belong to the shard stage's version.
TRANSFORM_ROWS = 4_096
TRANSFORM_BYTES = 2**26

Transform = Callable[[pa.RecordBatch], pa.RecordBatch]
Count = Callable[[int, int], None]  # called with rows that were read, and with the bytes of units that are done


@dataclass(frozen=True)
class Job:
    """What is the same for all units of a first pass.

    Attributes:
        folder: where rows are spilled.
        run_bytes: rows that a process sorts at once.
        keep_bytes: rows that may stay in memory; 0: all are written.
        batch_bytes: rows that the second pass reads at once from a file.
        one_split: put every row into a split of this name instead of splitting.
        bounds: for a split by time with fractions, see `training.shard.splitter.cut`.
        sensitive: columns whose values no message may show.
        project: folder of the user's code, if a transform runs.
    """

    source: Source
    settings: ShardsSpec
    folder: Path
    run_bytes: int
    keep_bytes: int = 0
    batch_bytes: int = BATCH_BYTES
    one_split: str | None = None
    bounds: tuple[int, ...] | None = None
    sensitive: tuple[str, ...] = ()
    project: str | None = None

    def splitter(self) -> Splitter:
        """A new splitter; UsageError if the columns cannot be split by."""
        return Splitter(self.settings.split, self.source.schema, self.bounds, self.sensitive)


@dataclass
class Gathered:
    """The result of the first pass over some units.

    Attributes:
        unit_rows: rows of each unit.
        assigned: rows of each split, before the transform.
        facts: about the columns and the splits' sizes, after it.
        rows: the rows, by split and shuffle key.
        sides: the split of each key, for a split by time or column that has a key.
        tally: of the rows that were read, see `infra.sources.read_batches`.
    """

    unit_rows: list[int] = field(default_factory=list)
    assigned: Counter[str] = field(default_factory=Counter)
    notes: Notes = field(default_factory=Notes)
    facts: Facts = field(default_factory=Facts)
    rows: Spilled = field(default_factory=Spilled)
    sides: Spilled = field(default_factory=Spilled)
    tally: Counter[str] = field(default_factory=Counter)

    def merge(self, other: Gathered) -> None:
        """Add the result for later units; Mismatch if a transform's columns differ."""
        self.unit_rows += other.unit_rows
        self.assigned.update(other.assigned)
        self.notes.merge(other.notes)
        self.facts.merge(other.facts)
        self.rows.merge(other.rows)
        self.sides.merge(other.sides)
        self.tally.update(other.tally)


def gather(job: Job, units: Sequence[Unit]) -> Gathered:
    """Process units: the work of one process in the first pass."""
    return Gatherer(job, load_transform(job.settings, job.project), lambda rows, of_bytes: None).work(units)


def times_of(job: Job, task: tuple[list[Unit], Path]) -> tuple[int, Notes]:
    """Write the times of some units' rows to a file as raw int64, reading that column alone.

    Args:
        task: the units and the file.

    Returns: the number of rows, and notes about them.
    """
    (units, path), splitter, rows = task, job.splitter(), 0
    fetcher = Fetcher(job.source, job.folder)
    assert job.settings.split.time is not None
    with path.open("wb") as file:
        for unit in units:
            at = 0
            for batch in fetcher.read(unit, [job.settings.split.time]):
                splitter.times(pa.Table.from_batches([batch]), (unit.number, at)).tofile(file)
                at += batch.num_rows
            rows += at
    fetcher.close()
    return rows, splitter.notes


def load_transform(settings: ShardsSpec, project: str | None) -> Transform | None:
    """The user's `shards.transform`, imported here; UsageError or UserCodeError if it cannot be imported."""
    if settings.transform is None:
        return None
    assert project is not None, "a request with a transform names the project"
    return load_callable(settings.transform.call, settings.transform.args, "shards.transform", add_project(project))


class Gatherer:
    """Processes units in order.

    Args:
        ahead: read in a thread while other rows are worked on; for a process that has the machine to itself.
    """

    def __init__(self, job: Job, transform: Transform | None, count: Count, *, ahead: bool = False) -> None:
        self._job, self._transform, self._count, self._ahead = job, transform, count, ahead
        self._splitter = None if job.one_split is not None else job.splitter()
        self._found = Gathered()
        self._rows = Spill(job.folder, job.run_bytes, job.keep_bytes, _unified, job.batch_bytes)
        split = job.settings.split
        checked = job.one_split is None and split.key is not None and bool(split.time or split.column)
        self._sides = Spill(job.folder, job.run_bytes // 8, job.keep_bytes // 8) if checked else None
        self._waiting: dict[str, list[pa.Table]] = {}
        self._numbers: dict[str, list[NDArray[np.int64]]] = {}
        self._written: dict[str, int] = {}
        self._unit: Unit

    def work(self, units: Sequence[Unit]) -> Gathered:
        """The result for these units."""
        fetcher = Fetcher(self._job.source, self._job.folder)
        for unit in units:
            self._unit, self._written, at = unit, {}, 0
            batches = fetcher.read(unit, tally=self._found.tally)
            for batch in prefetch(batches) if self._ahead else batches:
                self._take(pa.Table.from_batches([batch]), unit, at)
                at += batch.num_rows
                self._count(batch.num_rows, 0)
            for split in list(self._waiting):
                self._transform_waiting(split, to_the_end=True)
            self._found.unit_rows.append(at)
            self._count(0, unit.bytes)
        fetcher.close()
        self._found.rows = self._rows.close()
        if self._sides is not None:
            self._found.sides = self._sides.close()
        if self._splitter is not None:
            self._found.notes = self._splitter.notes
        return self._found

    def _take(self, rows: pa.Table, unit: Unit, at: int) -> None:
        names, of_row, rows, numbers = self._assigned(rows, unit, at)
        counts = np.bincount(of_row, minlength=len(names)).tolist()
        for split, count in zip(names, counts, strict=True):
            if count:
                self._found.assigned[split] += count
        if self._transform is None:
            self._put(names, of_row, rows)
            return
        for index in np.flatnonzero(counts).tolist():
            mask = of_row == index
            part = rows if mask.all() else rows.filter(pa.array(mask))
            self._waiting.setdefault(names[index], []).append(part)
            self._numbers.setdefault(names[index], []).append(numbers[mask])
            self._transform_waiting(names[index])

    def _assigned(
        self, rows: pa.Table, unit: Unit, at: int
    ) -> tuple[list[str], NDArray[np.int16], pa.Table, NDArray[np.int64]]:
        """Splits, each row's index into them, the rows that are in one, and their numbers in the unit.

        No rows are returned once it is certain that they will be refused.
        """
        numbers = np.arange(at, at + rows.num_rows)
        if self._splitter is None:
            assert self._job.one_split is not None
            return [self._job.one_split], np.zeros(rows.num_rows, np.int16), rows, numbers
        of_row = self._splitter.assign(rows, (unit.number, at))
        if self._splitter.notes.spoilt:
            return self._splitter.names, of_row[:0], rows.slice(0, 0), numbers[:0]
        if self._sides is not None:
            note_sides(self._sides, self._splitter.digests(rows), of_row, self._splitter.names, (unit.number, at))
        there = of_row != LEFT_OUT
        if not there.all():
            of_row, rows, numbers = of_row[there], rows.filter(pa.array(there)), numbers[there]
        return self._splitter.names, of_row, rows, numbers

    def _transform_waiting(self, split: str, to_the_end: bool = False) -> None:
        """Give the waiting rows of a split to the transform, in batches that do not depend on how they were read."""
        waiting = pa.concat_tables(self._waiting.pop(split))
        numbers = np.concatenate(self._numbers.pop(split))
        while waiting.num_rows:
            stop = batch_end(waiting)
            if stop == waiting.num_rows < TRANSFORM_ROWS and not to_the_end:
                # The next rows may belong to this batch.
                self._waiting[split], self._numbers[split] = [waiting], [numbers]
                return
            [batch] = waiting.slice(0, stop).combine_chunks().to_batches()
            waiting, of_batch, numbers = waiting.slice(stop), numbers[:stop], numbers[stop:]
            self._transform_batch(split, batch, of_batch)

    def _transform_batch(self, split: str, batch: pa.RecordBatch, numbers: NDArray[np.int64]) -> None:
        """Transform a batch, whose rows have these numbers in the unit, and keep what is made of it.

        UserCodeError names the file and the rows: as few as still raise the same at the same line.
        """
        assert self._transform is not None
        try:
            made = checked_rows(self._transform(batch))
            if made.num_rows:  # an empty result does not decide the types: an empty list of Python objects has none
                self._put([split], np.zeros(made.num_rows, np.int16), made)
        except UserCodeError as error:
            first, last = fewest_rows(self._transform, batch, error)
            place = rows_in_words(self._job.source, self._unit, self._job.folder, numbers[first:last])
            error.message = f"{error.message.rstrip('.')}, on {place}."
            raise

    def _put(self, splits: Sequence[str], of_row: NDArray[np.int16], rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        try:
            narrowed = self._found.facts.look(splits, of_row, rows)
        except Mismatch as error:
            raise unlike_batches(error) from error
        formats.get(self._job.settings.format).refuse(narrowed)
        keys = np.empty(rows.num_rows, np.uint64)
        for index, split in enumerate(splits):
            mask = of_row == index
            keys[mask] = self._next_keys(split, int(mask.sum()))
        self._rows.put_mixed(splits, of_row, keys, narrowed)

    def _next_keys(self, split: str, rows: int) -> NDArray[np.uint64]:
        """The shuffle keys of a split's next rows of this unit."""
        first = self._written.get(split, 0)
        self._written[split] = first + rows
        start = stream_start(self._job.settings.seed, split, self._unit.number, self._unit.digest)
        return shuffle_keys(start, first, rows)


def fewest_rows(transform: Transform, batch: pa.RecordBatch, error: UserCodeError) -> tuple[int, int]:
    """The rows of a batch, START and STOP, for which a transform still raises as it did; found by halving."""
    raised, first, last = _raised_at(error), 0, batch.num_rows
    while raised is not None and last - first > 1:
        middle = (first + last) // 2
        for start, stop in ((first, middle), (middle, last)):
            try:
                transform(batch.slice(start, stop - start))
            except UserCodeError as other:
                if _raised_at(other) == raised:
                    first, last = start, stop
                    break
        else:
            break
    return first, last


def _raised_at(error: UserCodeError) -> tuple[type, str, int | None] | None:
    """The type, file and line of the exception behind an error; None if the code did not raise."""
    cause = error.__cause__
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    return (type(cause), frames[-1].filename, frames[-1].lineno) if frames else None


def unlike_batches(error: Mismatch) -> UserCodeError:
    """The error for a transform whose batches have different columns."""
    return UserCodeError(
        f"shards.transform does not give every batch the same columns and types: {error}.",
        remedy="Return batches with one schema.",
    )


def _unified(tables: Sequence[pa.Table]) -> list[pa.Table]:
    schema = reduce(widen, (table.schema for table in tables))
    return [conform_rows(table, schema) for table in tables]


def batch_end(rows: pa.Table, most: int | None = None) -> int:
    """The number of rows in the next batch: a function of the rows alone, not of the chunks that hold them.

    Args:
        most: rows at most; default `TRANSFORM_ROWS`.
    """
    some = rows.slice(0, TRANSFORM_ROWS if most is None else most)
    sizes = np.cumsum(_row_bytes(some))
    return max(1, int(np.searchsorted(sizes, TRANSFORM_BYTES, "right")))


def _row_bytes(rows: pa.Table) -> NDArray[np.int64]:
    """The approximate size of each row's values in bytes."""
    total = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        type_ = column.type
        if pa.types.is_string(type_) or pa.types.is_binary(type_):
            total += pc.binary_length(column).fill_null(0).to_numpy()
        elif pa.types.is_list(type_):
            item = type_.value_type.bit_width // 8 if pa.types.is_primitive(type_.value_type) else 16
            total += pc.list_value_length(column).fill_null(0).to_numpy() * item
        elif pa.types.is_primitive(type_) or pa.types.is_fixed_size_binary(type_):
            total += type_.bit_width // 8
    return total


def checked_rows(result: object) -> pa.Table:
    """What a transform returned; UserCodeError if it is not rows, or two columns have one name."""
    if not isinstance(result, pa.RecordBatch | pa.Table):
        kind = f"{type(result).__module__}.{type(result).__qualname__}".removeprefix("builtins.")
        raise UserCodeError(
            f"shards.transform returned a {kind}, not a pyarrow.RecordBatch.",
            remedy="Return a RecordBatch; its number of rows may differ.",
        )
    names = result.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserCodeError(
            f"shards.transform returned two columns called {column_shown(repr(twice))}.", remedy="Rename one of them."
        )
    return pa.Table.from_batches([result]) if isinstance(result, pa.RecordBatch) else result


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
) -> dict[str, object]:
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
