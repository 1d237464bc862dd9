"""Finds rows of two sides with the same values, also but for columns that number them, and labels that differ.

A side's shards are read block by block, each block with its place and its digests. Two rows have the same digest if and
only if their columns hold the same values. A null equals a null and NaN equals NaN, as in the splitter's keys; 0.0
equals -0.0, and numbers of different widths are equal by value. The values of a tensor are compared byte for byte. The
digest is 128 bits of BLAKE3, so equal digests stand for equal rows. NumPy lays out a row's values; then one row at a
time is hashed, at about 1 µs a row.

Each block's rows become records (digest, side, first row, count, labels) that are sorted on disk by digest; all records
of a digest are then read together. Memory is bounded by the records of CHECKED_ROWS rows, or of one digest.
`write_without` writes the dataset without the rows that are also in a side which is used later: whole shards stay where
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_rows import is_text
from data_contracts.canonical import canonical
from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset, FileEntry, Ref, ShardFile
from data_contracts.messages.raw_data import Conflicts, Overlap, RowPosition, Side
from data_contracts.quoting import column_shown, type_shown
from infra.records.handoffs import put_handoff
from infra.store import Writer
from training import formats
from training.formats import Shards
from training.formats import schema as schemas
from training.shard.key_digests import DIGEST_BYTES, binary_parts, digests, group_starts
from training.shard.spill import Spill, Spilled

BLOCK_ROWS = 2**16
# Called after each piece of work, so that a long comparison is not taken for a hung process.
Advance = Callable[[], None]
CHECKED_ROWS = 2**18
EXAMPLES = 10
RUN_BYTES = 2**26
KEEP_BYTES = 2**27
_NAMES = ("key", "rest", "side", "first", "rows", "label_low", "label_high", "row_low", "row_high")
_SIGNED = ("side", "first", "rows", "row_low", "row_high")
_SCHEMA = pa.schema([(name, pa.int64() if name in _SIGNED else pa.uint64()) for name in _NAMES])
Columns = dict[str, NDArray[np.generic]]
Pair = tuple[int, int]
REASON = "contamination"
Masks = Mapping[int, NDArray[np.bool_]]


@dataclass
class OpenSide:
    """A side and its shards.

    Attributes:
        number: position among the sides.
        first_rows: per shard, the rows of all shards before it.
    """

    number: int
    side: Side
    shards: Shards
    first_rows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first_rows = [0, *np.cumsum(self.shards.rows).tolist()]

    @property
    def num_rows(self) -> int:
        """Rows of all shards."""
        return self.first_rows[-1]

    def place(self, row: int) -> RowPosition:
        """Where a row of the side is, by its number over all shards."""
        shard = int(np.searchsorted(self.first_rows, row, "right")) - 1
        entry = self.side.dataset.splits[self.side.split][shard]
        return RowPosition(shard=f"{entry.uri}/{entry.path}", row=row - self.first_rows[shard])


@dataclass(frozen=True)
class Compared:
    """All sides, and the common types of the columns in which they are compared.

    Attributes:
        fields: the field of the spec that asks for each column, for a message.
        advanced: called after each piece of work.
    """

    sides: Sequence[OpenSide]
    types: dict[str, pa.DataType]
    fields: Mapping[str, str]
    advanced: Advance

    def blocks(self, side: OpenSide, names: Sequence[str]) -> Iterator[tuple[int, list[pa.ChunkedArray]]]:
        """Columns of a side's rows in order, brought to the common types, each time with the first row's number."""
        for number, first in enumerate(side.first_rows[:-1]):
            for table in side.shards.tables(number, list(dict.fromkeys(names))):
                for start in range(0, table.num_rows, BLOCK_ROWS):
                    block = table.slice(start, BLOCK_ROWS)
                    yield first + start, [self._common(block, side, name) for name in names]
                    self.advanced()
                first += table.num_rows

    def _common(self, block: pa.Table, side: OpenSide, name: str) -> pa.ChunkedArray:
        """A block's column in the common type, in which NaN is a missing value as in pandas.

        Raises: UsageError, without the value, for one that this type cannot hold.
        """
        values, kind = block.column(name), self.types[name]
        try:
            common = values.cast(kind)
        except pa.ArrowException as error:
            raise UsageError(
                f"{self.fields[name]}: column {column_shown(repr(name))} is {values.type} in {side.side.name} and "
                f"{self.types[name]} beside it, which cannot hold all of its values exactly.",
                remedy="Give both the same type, or leave the column out.",
            ) from error
        return pc.if_else(pc.is_nan(common), pa.scalar(None, kind), common) if pa.types.is_floating(kind) else common


def open_sides(
    sides: Sequence[Side], folders: Sequence[Path], columns: Mapping[str, str], advanced: Advance
) -> Compared:
    """The sides' shards in these folders; UsageError if a column has types that do not compare.

    Args:
        columns: the columns, each with the field of the spec that asks for it.
    """
    opened = [
        OpenSide(number, side, Shards(folder, side.dataset, side.split))
        for number, (side, folder) in enumerate(zip(sides, folders, strict=True))
    ]
    return Compared(opened, {name: _common(opened, name, field) for name, field in columns.items()}, columns, advanced)


def _common(opened: Sequence[OpenSide], name: str, field: str) -> pa.DataType:
    fields = [one.shards.schema.field(name).remove_metadata() for one in opened]
    nested = next((one.type for one in fields if _is_nested(one.type)), None)
    if nested is not None:
        raise UsageError(
            f"{field}: column {column_shown(repr(name))} is {type_shown(nested)}, which cannot be compared.",
            remedy="Leave the column out with contract.contamination.ignore, or flatten it in shards.transform.",
        )
    try:
        return pa.unify_schemas([pa.schema([one]) for one in fields], promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        other = next(index for index, one in enumerate(fields) if one.type != fields[0].type)
        raise UsageError(
            f"{field}: column {column_shown(repr(name))} is {fields[0].type} in {opened[0].side.name} "
            f"and {fields[other].type} in {opened[other].side.name}, which cannot be compared.",
            remedy="Give both the same type, or leave the column out with contract.contamination.ignore.",
        ) from error


def _is_nested(type_: pa.DataType) -> bool:
    """Whether values have parts other than those of a list."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _is_nested(type_.value_type)
    return bool(pa.types.is_nested(type_))


def row_digests(columns: Sequence[pa.ChunkedArray]) -> NDArray[np.uint64]:
    """The digest of each row: (rows, 2) uint64, little-endian; the columns have the same types in each call."""
    rows = np.concatenate([_laid_out(column.combine_chunks()) for column in columns], axis=1)
    return digests(rows.reshape(-1), np.arange(len(rows) + 1) * rows.shape[1])


def _laid_out(values: pa.Array) -> NDArray[np.uint8]:
    """A row of as many bytes for each value: whether there is one, and what it is."""
    there = values.is_valid().to_numpy(zero_copy_only=False)
    body = _bodies(values)
    body[~there] = 0
    return np.concatenate([there.astype(np.uint8)[:, None], body], axis=1)


def _bodies(values: pa.Array) -> NDArray[np.uint8]:
    type_ = values.type
    if pa.types.is_null(type_):
        return np.zeros((len(values), 0), np.uint8)
    if pa.types.is_floating(type_):
        numbers = values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        numbers[np.isnan(numbers)] = np.nan  # one of the many
        return _bytes_of(numbers.view(np.uint64))
    if pa.types.is_date32(type_) or pa.types.is_time32(type_):
        values = values.cast(pa.int32())
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_temporal(type_):
        # The bits of a large unsigned number are those of a negative one.
        whole = values.cast(pa.int64(), safe=False)
        return _bytes_of(whole.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _lists(values)
    return _texts(values)


def _bytes_of(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(words, "<u8").view(np.uint8).reshape(-1, 8).copy()


def _texts(values: pa.Array) -> NDArray[np.uint8]:
    """Texts and bytes by their digests; Arrow finds the distinct values, which are hashed once."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary.cast(pa.large_binary())
    table = np.vstack([digests(*binary_parts(distinct)), np.zeros((1, 2), "<u8")]).view(np.uint8)
    return table[encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)]


def _lists(values: pa.Array) -> NDArray[np.uint8]:
    """Lists by the digests of their values in order, so that no two lists of different lengths are the same bytes."""
    inner = _laid_out(pc.list_flatten(values))
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(np.concatenate([[0], lengths])) * inner.shape[1]
    return digests(inner.reshape(-1), ends).view(np.uint8).reshape(-1, DIGEST_BYTES).copy()


@dataclass
class Shared:
    """What is in several sides: per pair of sides the rows of each, and the first examples; and all conflicts.

    Attributes:
        pairs: (earlier, later) → rows of earlier, rows of later, rows of later with another label.
        to_drop: side → file with the digests (two uint64 each, ascending) of its rows that are in a later side.
    """

    pairs: dict[Pair, NDArray[np.int64]] = field(default_factory=dict)
    examples: dict[Pair, list[Pair]] = field(default_factory=dict)
    conflicts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    conflicting: list[tuple[Pair, Pair]] = field(default_factory=list)
    to_drop: dict[int, Path] = field(default_factory=dict)

    def overlaps(self, sides: Sequence[OpenSide]) -> list[Overlap]:
        """The pairs with rows in both, in the order of the sides."""
        return [
            Overlap(
                kind="exact",
                earlier=sides[a].side.name,
                later=sides[b].side.name,
                earlier_rows=int(counts[0]),
                later_rows=int(counts[1]),
                conflicting=int(counts[2]),
                examples=[(sides[b].place(later), sides[a].place(earlier)) for later, earlier in self.examples[a, b]],
            )
            for (a, b), counts in sorted(self.pairs.items())
            if counts[0]
        ]

    def of_labels(self, sides: Sequence[OpenSide]) -> Conflicts:
        """The conflicts of labels over all sides."""
        places = [tuple(sides[side].place(row) for side, row in both) for both in self.conflicting]
        return Conflicts(groups=int(self.conflicts[0]), rows=int(self.conflicts[1]), examples=places)


def record(compared: Compared, columns: Sequence[str], label: Sequence[str], folder: Path) -> Spilled:
    """The records of all rows, sorted."""
    spill = Spill(folder, RUN_BYTES, KEEP_BYTES)
    for side in compared.sides:
        for first, values in compared.blocks(side, [*columns, *label]):
            digests = row_digests(values[: len(columns)])
            labels = row_digests(values[len(columns) :])[:, 0] if label else np.zeros(len(digests), np.uint64)
            found = _records(digests, labels, first)
            found["side"] = np.full(len(found["key"]), side.number, np.int64)
            spill.put("", found["key"], pa.table([found[name] for name in _NAMES], schema=_SCHEMA))
    return spill.close()


def _records(digests: NDArray[np.uint64], labels: NDArray[np.uint64], first: int) -> dict[str, NDArray]:
    """One record for each digest of a block, with its lowest and highest label and a row of each."""
    rows = np.arange(first, first + len(digests))
    order = np.lexsort((rows, labels, digests[:, 1], digests[:, 0]))
    key, rest, labels, rows = digests[order, 0], digests[order, 1], labels[order], rows[order]
    begins = group_starts(key, rest)
    ends = np.append(begins[1:], len(key)) - 1
    return {
        "key": key[begins],
        "rest": rest[begins],
        "first": np.minimum.reduceat(rows, begins) if len(rows) else rows,
        "rows": ends - begins + 1,
        "label_low": labels[begins],
        "label_high": labels[ends],
        "row_low": rows[begins],
        "row_high": rows[ends],
    }


def find_shared(compared: Compared, noted: Spilled, folder: Path) -> Shared:
    """What is in several sides, in the order of the digests."""
    shared, sides = Shared(), compared.sides
    used = np.array([one.side.use for one in sides])
    pairs = [pair for pair in combinations(range(len(sides)), 2) if used[pair[0]] != used[pair[1]]]
    # The side that is used earlier comes first.
    pairs = sorted((a, b) if used[a] < used[b] else (b, a) for a, b in pairs)
    for part in _parts(noted):
        groups = _Groups(part, len(sides))
        for pair in pairs:
            groups.count(shared, pair)
        groups.conflicts(shared)
        for side in sides:
            if side.side.own:
                groups.list_to_drop(shared, side.number, used, folder)
        compared.advanced()
    return shared


def _has_repeats(noted: Spilled) -> bool:
    """Whether two rows of a side have the same digest."""
    for part in _parts(noted):
        again = np.logical_and.reduce([part[name][1:] == part[name][:-1] for name in ("key", "rest", "side")])
        if again.any() or (part["rows"] > 1).any():
            return True
    return False


def _parts(noted: Spilled) -> Iterator[dict[str, NDArray]]:
    """Records by digest, side and first row; all records of a digest are in one part."""
    for start, stop in noted.ranges("", CHECKED_ROWS) if noted.rows("") else []:
        table = noted.part("", start, stop).read(lambda rows: rows, _SCHEMA)
        columns = {name: table.column(name).to_numpy() for name in _NAMES}
        order = np.lexsort((columns["first"], columns["side"], columns["rest"], columns["key"]))
        yield {name: column[order] for name, column in columns.items()}


class _Groups:
    """The records of a part by digest; those of one record with one label say nothing and are left out."""

    def __init__(self, part: dict[str, NDArray], num_sides: int) -> None:
        begins = group_starts(part["key"], part["rest"])
        sizes = np.diff(np.append(begins, len(part["key"])))
        says = np.repeat((sizes > 1), sizes) | (part["label_low"] != part["label_high"])
        self.part = {name: column[says] for name, column in part.items()}
        self.begins = group_starts(self.part["key"], self.part["rest"])
        sizes = np.diff(np.append(self.begins, len(self.part["key"])))
        at = (np.repeat(np.arange(len(self.begins)), sizes), self.part["side"])
        shape = (len(self.begins), num_sides)
        self.rows = np.zeros(shape, np.int64)
        np.add.at(self.rows, at, self.part["rows"])
        self.first = np.full(shape, np.iinfo(np.int64).max)
        np.minimum.at(self.first, at, self.part["first"])
        self.low = np.full(shape, np.iinfo(np.uint64).max, np.uint64)
        np.minimum.at(self.low, at, self.part["label_low"])
        self.high = np.zeros(shape, np.uint64)
        np.maximum.at(self.high, at, self.part["label_high"])

    def count(self, shared: Shared, pair: Pair) -> None:
        """Add the rows that are in both sides of a pair."""
        earlier, later = pair
        both = np.flatnonzero((self.rows[:, earlier] > 0) & (self.rows[:, later] > 0))
        differ = self.low[both][:, pair].min(axis=1) != self.high[both][:, pair].max(axis=1) if len(both) else both > 0
        of_later = self.rows[both, later]
        counts = np.array([self.rows[both, earlier].sum(), of_later.sum(), of_later[differ].sum()], np.int64)
        shared.pairs[pair] = shared.pairs.get(pair, np.zeros(3, np.int64)) + counts
        found = zip(self.first[both, later].tolist(), self.first[both, earlier].tolist(), strict=True)
        shared.examples[pair] = sorted([*shared.examples.get(pair, []), *found])[:EXAMPLES]

    def conflicts(self, shared: Shared) -> None:
        """Add the groups that have more than one label."""
        if not len(self.begins):
            return
        part = self.part
        groups = np.flatnonzero(self.low.min(axis=1) != self.high.max(axis=1))
        shared.conflicts += np.array([len(groups), self.rows[groups].sum()], np.int64)
        ends = np.append(self.begins[1:], len(part["key"]))
        found = list(shared.conflicting)
        order = np.lexsort((part["first"][self.begins[groups]], part["side"][self.begins[groups]]))
        for group in groups[order[:EXAMPLES]].tolist():
            inside = slice(self.begins[group], ends[group])
            low = self.begins[group] + int(np.argmin(part["label_low"][inside]))
            high = self.begins[group] + int(np.argmax(part["label_high"][inside]))
            of_low = int(part["side"][low]), int(part["row_low"][low])
            of_high = int(part["side"][high]), int(part["row_high"][high])
            found.append((min(of_low, of_high), max(of_low, of_high)))
        shared.conflicting = sorted(found)[:EXAMPLES]

    def list_to_drop(self, shared: Shared, side: int, used: NDArray[np.int64], folder: Path) -> None:
        """Append the digests of a side's rows that are in a side which is used later."""
        later = self.rows[:, used > used[side]].sum(axis=1) > 0
        wanted = self.begins[np.flatnonzero(later & (self.rows[:, side] > 0))]
        if len(wanted):
            path = shared.to_drop.setdefault(side, folder / f"drop-{side}.digests")
            with path.open("ab") as file:
                np.stack([self.part["key"][wanted], self.part["rest"][wanted]], axis=1).tofile(file)


def numbering_columns(compared: Compared, columns: Sequence[str], folder: Path) -> list[str]:
    """Those of the columns that number the rows of each side: while they are compared, no two rows are the same.

    Such a column has no value twice in any side, and its values are whole numbers, times, or texts without blanks.
    Measurements and sentences that all differ are what a comparison is about.
    """
    left = list(columns)
    for side in compared.sides:
        for _, values in compared.blocks(side, left) if left else ():
            left = [name for name, column in zip(left, values, strict=True) if _may_number(column)]
            break  # the first rows tell most columns
    return [name for name in left if not _has_repeats(record(compared, [name], [], folder))]


def shared_without(
    compared: Compared, columns: Sequence[str], label: Sequence[str], shared: Shared, folder: Path
) -> tuple[list[str], Shared] | None:
    """The columns that number the rows, and what is shared without them; None if that is no more than with them.

    Args:
        folder: an empty one.
    """
    numbering = numbering_columns(compared, columns, folder)
    rest = [name for name in columns if name not in numbering]
    if not numbering or not rest:
        return None
    without = find_shared(compared, record(compared, rest, label, folder), folder)
    more = any(counts[1] > shared.pairs[pair][1] for pair, counts in without.pairs.items())
    return (numbering, without) if more else None


def _may_number(values: pa.ChunkedArray) -> bool:
    kind = values.type
    if pa.types.is_floating(kind):  # whole numbers are stored so if some are missing
        fits = pc.all(pc.equal(pc.floor(values), values), min_count=0).as_py()
    elif is_text(kind):
        fits = not pc.any(pc.match_substring_regex(values, r"\s"), min_count=0).as_py()
    else:
        fits = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
    return bool(fits) and pc.count_distinct(values, mode="all").as_py() == len(values)


def copies(compared: Compared, side: OpenSide, columns: list[str], digests: Path | None) -> NDArray[np.bool_]:
    """Which rows of a side have one of these digests (two uint64 each, ascending): (rows,) bool."""
    found = np.zeros(side.num_rows, bool)
    if digests is None:
        return found
    listed = np.memmap(digests, np.uint64, mode="r").reshape(-1, 2)
    keys = np.ascontiguousarray(listed[:, 0])
    for first, values in compared.blocks(side, columns):
        rows = row_digests(values)
        low, high = np.searchsorted(keys, rows[:, 0], "left"), np.searchsorted(keys, rows[:, 0], "right")
        while len(at := np.flatnonzero(low < high)):
            # Usually one digest in the list begins with a row's first half.
            equal = listed[low[at], 1] == rows[at, 1]
            found[first + at[equal]] = True
            low[at] += 1
    return found


def rows_dropped(compared: Compared, masks: Masks) -> dict[str, int]:
    """How many rows masks mark, by split; UsageError if a split would have no rows left."""
    dropped = {}
    for side in compared.sides:
        mask = masks.get(side.number)
        if mask is None or not mask.any():
            continue
        if mask.all():
            raise UsageError(
                f"contract.contamination drops all rows of {side.side.split!r}: each is in another split, too.",
                remedy="Look at shards.split, or compare more columns (contract.contamination.columns).",
            )
        dropped[side.side.split] = int(mask.sum())
    return dropped


def write_without(
    writer: Writer, dataset: Dataset, compared: Compared, masks: Masks, request: Mapping[str, Any], folder: Path
) -> Ref:
    """Seal the dataset without the rows that masks mark, by side; nothing is dropped from a side without a mask.

    Args:
        request: `key` and `provenance` of the new dataset.
        folder: for shards until they are stored.
    """
    own = {one.side.split: one for one in compared.sides if one.side.own}
    splits: dict[str, list[ShardFile]] = {}
    for name, shards in dataset.splits.items():
        side = own.get(name)
        mask = None if side is None else masks.get(side.number)
        kept = shards if side is None or mask is None else _kept_shards(writer, dataset.format, side, mask, folder)
        splits[name] = kept
    return _sealed(writer, dataset, splits, compared, rows_dropped(compared, masks), request)


def _kept_shards(
    writer: Writer, format_name: str, side: OpenSide, mask: NDArray[np.bool_], folder: Path
) -> list[ShardFile]:
    """The shards of a split without the marked rows: those that lose none stay where they are."""
    kept: list[ShardFile] = []
    for number, shard in enumerate(side.side.dataset.splits[side.side.split]):
        leave = mask[side.first_rows[number] : side.first_rows[number + 1]]
        if not leave.any():
            kept.append(shard)
        elif not leave.all():
            rows = pa.concat_tables(side.shards.tables(number, side.shards.schema.names))
            path = folder / f"{side.side.split}-{number:05d}{formats.get(format_name).SUFFIX}"
            formats.write_shard(format_name, rows.filter(pa.array(~leave)).combine_chunks(), path)
            entry = writer.put(path.name, path)
            path.unlink()
            left = int((~leave).sum())
            kept.append(ShardFile(uri="", path=entry.path, rows=left, bytes=entry.bytes, blake3=entry.blake3))
    return kept


def _sealed(
    writer: Writer,
    dataset: Dataset,
    splits: dict[str, list[ShardFile]],
    compared: Compared,
    dropped: dict[str, int],
    request: Mapping[str, Any],
) -> Ref:
    schema = schemas.to_json(next(one for one in compared.sides if one.side.own).shards.schema)
    fields = {
        "schema_version": 1,
        "key": request["key"],
        "format": dataset.format,
        "splits": {name: [shard.to_json() for shard in shards] for name, shards in splits.items()},
        "columns": dataset.columns,
        "dropped_rows": {**dataset.dropped_rows, REASON: sum(dropped.values())},
    }
    beside = [writer.put(schemas.FILE, canonical(schema)), put_handoff(writer, fields)]
    new = [
        FileEntry(path=shard.path, bytes=shard.bytes, blake3=shard.blake3)
        for shards in splits.values()
        for shard in shards
        if not shard.uri
    ]
    shaped = {
        "format": dataset.format,
        "schema": schema,
        "splits": {name: sum(shard.rows for shard in shards) for name, shards in splits.items()},
        "without_copies_of": dataset.ref.id,
        "dropped": dropped,
    }
    return writer.seal("dataset", shaped, request["provenance"], [*new, *beside])
