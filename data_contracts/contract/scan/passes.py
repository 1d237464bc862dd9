"""Counts distinct values that do not fit into memory in several passes, each over the values with some hashes."""

from __future__ import annotations

from collections.abc import Callable

from data_contracts.contract.measures import Measure, MeasuredValues
from data_contracts.contract.scan.duck import Resources
from data_contracts.errors import OutOfMemory

# Memory that a distinct value may take: one pass over 3,000,000 texts of 12 characters failed in 24 MiB, four did not.
_VALUE_BYTES = 64
_MOST = 256
# Where the number of rows is not known; whether passes are needed shows only when memory runs out.
PASSES = 16


def passes_for(rows: int, resources: Resources) -> int:
    """In how many passes the distinct values of a column fit into memory, if all rows are different."""
    return min(max(rows * _VALUE_BYTES // resources.memory_bytes, 1), _MOST)


def in_passes(
    distinct: Measure, passes: int, measured: Callable[[list[Measure]], MeasuredValues | None]
) -> MeasuredValues | None:
    """A count of distinct values in so many passes, or in more if memory runs out.

    Args:
        measured: measures, or raises OutOfMemory; None if it cannot.
    """
    counted = 0
    try:
        for part in _divided(distinct, passes):
            if (found := measured([part])) is None:
                return None
            counted += found[part]
    except OutOfMemory:
        if passes >= _MOST:
            raise
        return in_passes(distinct, 4 * passes, measured)
    return {distinct: counted}


def _divided(distinct: Measure, passes: int) -> list[Measure]:
    if passes == 1:
        return [distinct]
    return [
        distinct._replace(rows=f"(SELECT {{c}} FROM {{rows}} WHERE hash({{c}}) % {passes} = {at})")
        for at in range(passes)
    ]
