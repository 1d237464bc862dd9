"""Converts times of rows to microseconds, and finds the times at which a split by time begins, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts import arrow_rows
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from data_contracts.quoting import MASK, type_shown

SECOND = 10**6
_LATEST_S = (2**63 - 1) // SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIGN = np.uint64(1 << 63)
_PIECE = 2**20

Select = Callable[[int], tuple[int, int, int]]


def selector(files: Sequence[Path]) -> Select:
    """A function from a rank to the time at that rank, how many times are less, and how many are equal.

    Args:
        files: raw int64, read four times for each rank, a piece at a time (a radix selection).
    """

    def pieces() -> Iterator[NDArray[np.int64]]:
        for path in files:
            with path.open("rb") as file:
                while len(piece := np.fromfile(file, np.int64, _PIECE)):
                    yield piece

    return lambda rank: select(pieces, rank)


def select(pieces: Callable[[], Iterable[NDArray[np.int64]]], rank: int) -> tuple[int, int, int]:
    """The result for one rank, as in `selector`; `pieces` yields all times, (n,) a piece, on each call."""
    found, less, same = 0, 0, 0
    for shift in (48, 32, 16, 0):
        counts = np.zeros(2**16, np.int64)
        for piece in pieces():
            ordered = piece.view(np.uint64) ^ _SIGN
            if shift < 48:
                ordered = ordered[ordered >> np.uint64(shift + 16) == np.uint64(found)]
            digits = (ordered >> np.uint64(shift)) & np.uint64(0xFFFF)
            counts += np.bincount(digits.astype(np.int64), minlength=2**16)
        ends = np.cumsum(counts)
        digit = int(np.searchsorted(ends, rank - less, "right"))
        less, same = less + int(ends[digit] - counts[digit]), int(counts[digit])
        found = found << 16 | digit
    return found - 2**63, less, same


def cut(select: Select, num_rows: int, spec: SplitSpec, sensitive: Collection[str] = ()) -> list[int]:
    """The times at which the later splits begin, so that the splits have their fractions of the rows.

    Args:
        select: gives the time at a rank, how many times are less, and how many are equal.
    """
    share_of = shares(spec)
    names = list(share_of)
    bounds = []
    for before, name, share in zip(names, names[1:], np.cumsum(list(share_of.values())).tolist(), strict=False):
        at = round(share * num_rows)
        if at >= num_rows:
            raise UsageError(
                f"shards.split.time leaves no rows for {name!r}; there are {num_rows} rows in all.",
                remedy="Give more data, or change shards.split.fractions.",
            )
        time, less, same = select(at)
        if at > less:
            when = "" if spec.time in sensitive else _iso(time)
            shown = MASK if spec.time in sensitive else when or "a time outside of the years 1 to 9999"
            raise UsageError(
                f"shards.split.time: {shown} would be in both {before!r} and {name!r}, because "
                f"{same} rows have this time.",
                remedy=f"Set where {name!r} begins with shards.split.boundaries"
                + (f", such as {{{name}: {when}}}." if when else "."),
            )
        bounds.append(time)
    return bounds


def _iso(time: int) -> str:
    """A time in microseconds since 1970 in ISO format; "" if Python's years do not reach it."""
    try:
        return (_EPOCH + timedelta(microseconds=time)).isoformat()
    except OverflowError:
        return ""


def shares(spec: SplitSpec) -> dict[str, float]:
    """The splits that have a share, with their shares."""
    return {name: share for name, share in spec.fractions.items() if share > 0}


def microseconds(column: pa.ChunkedArray, spec: SplitSpec) -> NDArray[np.int64]:
    """Microseconds since 1970 (UTC; times without a zone count as UTC; numbers are seconds), (n,), rounded down."""
    type_ = column.type
    if pa.types.is_null(type_):
        return np.zeros(0, np.int64)  # all values are null and were left out
    if arrow_rows.is_time(type_):
        return arrow_rows.microseconds(column).to_numpy()
    if pa.types.is_integer(type_):
        return _within(column.cast(pa.int64()).to_numpy(), spec) * SECOND
    if pa.types.is_floating(type_):
        seconds = column.to_numpy().astype(np.float64)
        if not np.isfinite(seconds).all():
            raise UsageError(
                f"shards.split.time: {spec.time!r} has rows whose time is not finite.",
                remedy="Correct or drop these rows in the data.",
            )
        return np.floor(_within(seconds, spec) * SECOND).astype(np.int64)
    raise UsageError(
        f"shards.split.time: {spec.time!r} is {type_shown(type_)}, which is not a time.",
        remedy="Name a column with times or dates.",
    )


def _within(seconds: NDArray[Any], spec: SplitSpec) -> NDArray[Any]:
    if len(seconds) and (seconds.max() > _LATEST_S or seconds.min() < -_LATEST_S):
        raise UsageError(
            f"shards.split.time: {spec.time!r} has numbers beyond {_LATEST_S} seconds; they look like micro- or "
            "nanoseconds.",
            remedy="Make them timestamps, or seconds, in the data.",
        )
    return seconds


def parsed(column: pa.ChunkedArray, spec: SplitSpec) -> tuple[pa.ChunkedArray, bool]:
    """Texts as times, and whether they have a time zone; refused unless all of them or none of them have a zone."""
    for type_ in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return column.cast(type_), type_.tz is not None
        except pa.ArrowInvalid:
            continue
    raise no_times(spec)


def no_times(spec: SplitSpec) -> UsageError:
    """The error for texts of which at least one is not a time, or has a zone where others have none."""
    return UsageError(
        f"shards.split.time: {spec.time!r} holds text that is not an ISO 8601 time in every row.",
        remedy="Write every time as ISO 8601, all with a time zone or none, or make them timestamps in the data.",
    )


def is_text(type_: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return pa.types.is_string(type_) or pa.types.is_large_string(type_)


def boundary(text: str) -> int:
    """An ISO time in microseconds since 1970 (UTC)."""
    when = datetime.fromisoformat(text)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
