"""Which rows go to train, val and test: by hash of a key, by time, or by a column that says so.

A row's split by key depends on its own key and the seed alone, so it never changes when data is added. Nothing here
moves rows; `assign` says for each row which split it belongs to.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from data_contracts.canonical import valid_name
from data_contracts.errors import UsageError
from data_contracts.findings import MASK
from data_contracts.spec import SplitSpec
from training.keys import UnusableKey, key_codes

REQUIRED = ("train", "test")
_USUAL = ("train", "val", "test")
_SECOND = 10**6
_LATEST_S = (2**63 - 1) // _SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Assignment:
    """Where each row goes.

    Attributes:
        names: the splits, in order.
        of_row: (rows,) int16, index into `names`, or -1 for a row that is left out.
        dropped: number of rows left out, by reason.
    """

    names: list[str]
    of_row: np.ndarray
    dropped: dict[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Rows of each split."""
        return {name: int((self.of_row == index).sum()) for index, name in enumerate(self.names)}


def columns_needed(spec: SplitSpec) -> list[str]:
    """The columns that `assign` looks at."""
    named = (*_keys(spec), spec.time, spec.column)
    return list(dict.fromkeys(name for name in named if name is not None))


def assign(
    rows: pa.Table, spec: SplitSpec, required: Collection[str] = REQUIRED, sensitive: Collection[str] = ()
) -> Assignment:
    """Assign every row to a split.

    Args:
        rows: all rows, with at least `columns_needed(spec)`.
        required: splits that must have rows.
        sensitive: columns whose values no message may show.

    Raises:
        UsageError: a column is missing or of no use, a key or time would stand on two sides, a required split is empty.
    """
    for name in columns_needed(spec):
        if name not in rows.column_names:
            have = ", ".join(rows.column_names)
            raise UsageError(f"{_setting(spec, name)}: the data has no column {name!r}; it has {have}.")
    if spec.time is not None:
        found = _by_time(rows.column(spec.time), spec, sensitive)
    elif spec.column is not None:
        found = _by_column(rows.column(spec.column), spec, sensitive)
    else:
        found = _by_key(rows, spec)
    if spec.key is not None and (spec.time is not None or spec.column is not None):
        _refuse_shared_keys(rows, spec, found, sensitive)
    refuse_empty(found.counts(), required, "shards.split")
    return found


def refuse_empty(counts: dict[str, int], required: Collection[str], who: str) -> None:
    """UsageError if `who` (a field of the spec) leaves a required split without rows."""
    for name in required:
        if not counts.get(name):
            left = ", ".join(f"{split} {number}" for split, number in counts.items()) or "no rows at all"
            raise UsageError(
                f"{who} leaves no rows for {name!r} ({left}).",
                remedy=f"Change {who} so that {name!r} gets some, or give more data.",
                details={"split": name, "rows": counts},
            )


def _by_key(rows: pa.Table, spec: SplitSpec) -> Assignment:
    shares = _shares(spec)
    codes, digests = _codes(rows, spec)
    # The first 8 bytes of the digest are a fraction of 2^64, compared in integers: no machine rounds differently.
    drawn = np.array([int.from_bytes(one[:8], "little") for one in digests], np.uint64)
    later = np.cumsum(list(shares.values()))[:-1]
    thresholds = np.array([min(round(share * 2**64), 2**64 - 1) for share in later.tolist()], np.uint64)
    of_key = np.searchsorted(thresholds, drawn, side="right").astype(np.int16)
    return Assignment(list(shares), of_key[codes])


def _by_time(column: pa.ChunkedArray, spec: SplitSpec, sensitive: Collection[str]) -> Assignment:
    times = _microseconds(column, spec)
    if spec.boundaries:
        names = ["train", *spec.boundaries]
        bounds = [_boundary(text) for text in spec.boundaries.values()]
    else:
        names = list(_shares(spec))
        bounds = _cut(np.sort(times), spec, masked=spec.time in sensitive)
    of_row = np.searchsorted(np.array(bounds, np.int64), times, side="right").astype(np.int16)
    if not spec.gap_s:
        return Assignment(names, of_row)
    gap = np.zeros(len(times), bool)
    for bound in bounds:
        gap |= (times >= bound - round(spec.gap_s * _SECOND)) & (times < bound)
    of_row[gap] = -1
    return Assignment(names, of_row, {"gap": int(gap.sum())})


def _cut(ordered: np.ndarray, spec: SplitSpec, masked: bool) -> list[int]:
    """The times at which the later splits begin, so that the splits have their fractions of the rows."""
    shares = _shares(spec)
    names = list(shares)
    bounds = []
    for before, name, share in zip(names, names[1:], np.cumsum(list(shares.values())).tolist(), strict=False):
        at = round(share * len(ordered))
        if at >= len(ordered):
            raise UsageError(
                f"shards.split.time leaves no rows for {name!r} of the {len(ordered)} there are.",
                remedy="Give more data, or change shards.split.fractions.",
            )
        if at and ordered[at - 1] == ordered[at]:
            when = (_EPOCH + timedelta(microseconds=int(ordered[at]))).isoformat()
            raise UsageError(
                f"shards.split.time: {MASK if masked else when} would stand in both {before!r} and {name!r}, because "
                f"{int((ordered == ordered[at]).sum())} rows have this time.",
                remedy=f"Say where {name!r} begins with shards.split.boundaries"
                + (f", such as {{{name}: {when}}}." if not masked else "."),
            )
        bounds.append(int(ordered[at]))
    return bounds


def _by_column(column: pa.ChunkedArray, spec: SplitSpec, sensitive: Collection[str]) -> Assignment:
    field_name = "shards.split.column"
    _refuse_nulls(column, f"{field_name}: rows without a value in {spec.column!r} belong to no split")
    values = _decoded(column).combine_chunks().dictionary_encode()
    names = [str(value) for value in values.dictionary.to_pylist()]
    for index, name in enumerate(names):
        try:
            valid_name(name)
        except ValueError as error:
            row = int(np.flatnonzero(values.indices.to_numpy() == index)[0])
            why = f"{error}" if spec.column not in sensitive else f"{MASK} cannot be a name"
            raise UsageError(f"{field_name}: row {row} names no split in {spec.column!r}: {why}.") from error
    # By name, not by first appearance, so that the order of the source files does not show.
    ordered = sorted(names, key=lambda name: (_USUAL.index(name) if name in _USUAL else len(_USUAL), name))
    place = np.array([ordered.index(name) for name in names], np.int16)
    return Assignment(ordered, place[values.indices.to_numpy()])


def _refuse_shared_keys(rows: pa.Table, spec: SplitSpec, found: Assignment, sensitive: Collection[str]) -> None:
    codes, _ = _codes(rows, spec)
    kept = found.of_row >= 0
    side = np.full(len(codes), -1, np.int16)
    side[codes[kept]] = found.of_row[kept]
    shared = np.flatnonzero(kept & (side[codes] != found.of_row))
    if not len(shared):
        return
    row = int(shared[0])
    here, there = found.names[found.of_row[row]], found.names[side[codes[row]]]
    shown = ", ".join(
        f"{name} = {MASK if name in sensitive else repr(rows.column(name)[row].as_py())}" for name in _keys(spec)
    )
    raise UsageError(
        f"shards.split.key: {shown} (row {row}) stands in both {here!r} and {there!r}; "
        f"keys like this: {len(np.unique(codes[shared]))}.",
        remedy="Split by key alone, or move the boundary so that no key is on two sides.",
        details={"row": row, "columns": _keys(spec)},
    )


def _codes(rows: pa.Table, spec: SplitSpec) -> tuple[np.ndarray, list[bytes]]:
    try:
        return key_codes([_decoded(rows.column(name)) for name in _keys(spec)], spec.seed)
    except UnusableKey as error:
        raise UsageError(f"shards.split.key: {_keys(spec)[error.column]!r} {error}.") from error


def _microseconds(column: pa.ChunkedArray, spec: SplitSpec) -> np.ndarray:
    """Microseconds since 1970 (UTC; times without a zone count as UTC; numbers are seconds), rounded down."""
    setting = f"shards.split.time: {spec.time!r}"
    column = _decoded(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = _parsed(column, setting)
    _refuse_nulls(column, f"{setting} has rows without a time")
    type_ = column.type
    if pa.types.is_date32(type_):
        return column.cast(pa.int32()).to_numpy().astype(np.int64) * 86_400 * _SECOND
    if pa.types.is_date64(type_):
        column, type_ = column.cast(pa.timestamp("ms")), pa.timestamp("ms")
    if pa.types.is_timestamp(type_):
        counts = column.cast(pa.int64()).to_numpy()
        if type_.unit == "ns":
            return counts // 1000
        return counts * {"s": _SECOND, "ms": 1000, "us": 1}[type_.unit]
    if pa.types.is_integer(type_):
        return _within(column.to_numpy(), setting).astype(np.int64) * _SECOND
    if pa.types.is_floating(type_):
        seconds = column.to_numpy().astype(np.float64)
        if not np.isfinite(seconds).all():
            raise UsageError(f"{setting} has rows whose time is not finite.")
        return np.floor(_within(seconds, setting) * _SECOND).astype(np.int64)
    raise UsageError(f"{setting} is {type_}, which is no time.", remedy="Name a column with times or dates.")


def _within(seconds: np.ndarray, setting: str) -> np.ndarray:
    if len(seconds) and (seconds.max() > _LATEST_S or seconds.min() < -_LATEST_S):
        raise UsageError(
            f"{setting} has numbers beyond {_LATEST_S} seconds; these look like micro- or nanoseconds.",
            remedy="Make them timestamps, or seconds, in the data.",
        )
    return seconds


def _parsed(column: pa.ChunkedArray, setting: str) -> pa.ChunkedArray:
    for type_ in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return column.cast(type_)
        except pa.ArrowInvalid:
            continue
    raise UsageError(f"{setting} holds text that is not an ISO 8601 time in every row.")


def _boundary(text: str) -> int:
    when = datetime.fromisoformat(text)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _shares(spec: SplitSpec) -> dict[str, float]:
    return {name: share for name, share in spec.fractions.items() if share > 0}


def _refuse_nulls(column: pa.ChunkedArray, what: str) -> None:
    if column.null_count:
        first = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise UsageError(
            f"{what}: {column.null_count}, the first is row {first}.",
            remedy="Fill or drop them in the data, and have the contract expect it.",
        )


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _keys(spec: SplitSpec) -> list[str]:
    return [spec.key] if isinstance(spec.key, str) else list(spec.key or [])


def _setting(spec: SplitSpec, column: str) -> str:
    if column in _keys(spec):
        return "shards.split.key"
    return "shards.split.time" if column == spec.time else "shards.split.column"
