"""The profile as it is sealed: exact counts in nested bins, so that two profiles are compared on the same bins.

Everything in it is content: the same rows in the same files give the same bytes, whatever the number of threads, the
sizes of batches or the order of the files.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from data_contracts.handoffs import HandOff, Record

Kind = Literal["number", "time", "text", "flag", "bytes", "other", "sensitive"]
# An exact sum of float64 values: mantissa × 2^exponent.
Dyadic = tuple[int, int]


class Bins(Record):
    """Counts of float64 values in nested bins.

    Bit patterns of float64 values, with those of negative values inverted, are integers in the values' order. A bin is
    such an integer without its lowest `shift` bits. With shift 0, each bin is one value.

    Attributes:
        keys: of the bins that have values, ascending.
    """

    shift: int = Field(ge=0, le=63)
    keys: list[int]
    counts: list[int]

    @model_validator(mode="after")
    def _one_count_for_each(self) -> Bins:
        if len(self.keys) != len(self.counts) or min(self.counts, default=1) < 1:
            raise ValueError("each bin has a count of at least 1")
        return self


class Moments(Record):
    """Sums of values and of their squares, exact to the rounding of each block (data_contracts/profile/sketches.py)."""

    count: int
    total: Dyadic
    squares: Dyadic


class Sample(Record):
    """Values and their counts: all of them, or those with the least hashes.

    Attributes:
        exact: whether these are all values.
        hashes: one per value, ascending.
        labels: the values; a long text is shortened and has its hash at the end. Empty for numbers.
        counts: rows of each value. Empty for numbers.
    """

    exact: bool
    hashes: list[int]
    labels: list[str] = Field(default_factory=list)
    counts: list[int] = Field(default_factory=list)


class ColumnProfile(Record):
    """The profile of one column. Of a sensitive column it has the counts of rows and nulls only.

    Attributes:
        type: its Arrow type.
        rows: rows, nulls included.
        nulls: missing values; NaN is one.
        distinct: number of different values; an estimate unless `distinct_exact`.
        infinite: infinite values, which bins and quantiles know and the other figures leave out.
        minimum, maximum: of numbers and flags as numbers, of times in microseconds since 1970, of texts their lengths.
        mean, stdev: of the same; `stdev` divides by the number of values.
        quantiles: of the same, each within the width of its bin.
        bins: of the same.
        sample: of texts, numbers and flags.
    """

    name: str
    type: str
    kind: Kind
    rows: int
    nulls: int
    infinite: int = 0
    distinct: int | None = None
    distinct_exact: bool = True
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    stdev: float | None = None
    quantiles: dict[str, float] = Field(default_factory=dict)
    moments: Moments | None = None
    bins: Bins | None = None
    sample: Sample | None = None

    @property
    def values(self) -> int:
        """Values that are not missing."""
        return self.rows - self.nulls


class Profile(HandOff):
    """The profile of a run's raw data."""

    rows: int
    columns: list[ColumnProfile] = Field(default_factory=list)

    def column(self, name: str) -> ColumnProfile | None:
        """The profile of a column; None if there is no such column."""
        return next((one for one in self.columns if one.name == name), None)
