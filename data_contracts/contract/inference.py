"""Drafts a suite from data: expectations that every row meets, with some margin for later rows. A person decides.

A column that looks like personal data (by its name, or by values like e-mail addresses) is proposed for
`data.sensitive`, and none of its values is written. The draft is a proposal only: the caller checks it on the same data
(uniqueness, above all, is drafted from a sample) and leaves out what does not hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.arrow_rows import first_misfit
from data_contracts.errors import UsageError
from data_contracts.handoffs import Expectation

# A column with at most so many values, each in VALUE_ROWS rows on average, is a category; fewer if they are numbers.
CATEGORIES, NUMBERS, VALUE_ROWS = 20, 10, 5
# The margin beyond the smallest and the largest value, as a share of their difference.
MARGIN = 0.1
SAMPLE = 10_000
_PERSONAL = re.compile(
    r"(?i)(^|[^a-z])(e?[-_ ]?mails?|(first|last|full|sur|given|family|user|maiden)?[-_ ]?names?|phones?|telephone|"
    r"mobile|fax|address(es)?|street|zip|postcode|post_?code|birth\w*|dob|ssn|social|passport|iban|bic|card|account|ip|salary|"
    r"gender|religion|ethnicity|patient|customer|person)([^a-z]|$)"
)
_LARGEST = 1.7e308
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_VALUES = re.compile(
    r"[^@\s]+@[^@\s]+\.[a-zA-Z]{2,}"  # an e-mail address
    r"|(?!\d{1,4}([./-])\d{1,2}\1\d{1,4}$)\+?\d[\d\s()/.-]{7,}\d"  # a phone or card number, not 31.01.2026
    r"|[A-Z]{2}\d{2}[A-Z0-9 ]{10,30}"  # an IBAN
    r"|\d{1,3}(\.\d{1,3}){3}"  # an IP address
)


@dataclass
class Column:
    """Observations about a column.

    Attributes:
        missing: rows without a value, or with NaN.
        low, high: the smallest and largest number, or length of a text.
        values: the different values; None if there are more than CATEGORIES, or if they are not looked at.
        finite: whether no number is infinite.
        sample: the first values.
    """

    name: str
    kind: pa.DataType
    rows: int = 0
    missing: int = 0
    low: Any = None
    high: Any = None
    finite: bool = True
    values: set[Any] | None = field(default_factory=set)
    sample: list[Any] = field(default_factory=list)

    def see(self, column: pa.Array) -> None:
        """Look at a batch's values; UsageError for a text that is not UTF-8."""
        if self.is_text:
            self._refuse_other_texts(column)
        self.rows += len(column)
        if pa.types.is_float16(self.kind):
            column = column.cast(pa.float32())  # Arrow has few functions for float16
        if pa.types.is_floating(self.kind):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        self.missing += column.null_count
        column = column.drop_null()
        if not len(column) or not (self.is_number or self.is_text or pa.types.is_boolean(self.kind)):
            self.values = None if len(column) else self.values
            return
        if not pa.types.is_boolean(self.kind):
            self._measure(pc.utf8_length(column) if self.is_text else column)
        if len(self.sample) < SAMPLE:
            self.sample += column.slice(0, SAMPLE - len(self.sample)).to_pylist()
        if self.values is not None:
            self.values |= set(pc.unique(column).to_pylist())
            self.values = self.values if len(self.values) <= CATEGORIES else None

    def _refuse_other_texts(self, column: pa.Array) -> None:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            row = first_misfit(column, lambda some: some.validate(full=True))
            raise UsageError(
                f"Column {self.name!r} has a text that is not UTF-8, in row {self.rows + row}.",
                remedy="Convert the data to UTF-8, or write the column as bytes.",
            ) from error

    def _measure(self, numbers: pa.Array) -> None:
        found = pc.min_max(numbers)
        low, high = found["min"].as_py(), found["max"].as_py()
        self.finite = self.finite and math.isfinite(low) and math.isfinite(high)
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    @property
    def is_number(self) -> bool:
        """Whether it holds whole or real numbers."""
        return pa.types.is_integer(self.kind) or pa.types.is_floating(self.kind)

    @property
    def is_text(self) -> bool:
        """Whether it holds texts."""
        return pa.types.is_string(self.kind) or pa.types.is_large_string(self.kind)

    @property
    def personal(self) -> str:
        """Why it looks like personal data; "" if it does not."""
        if _PERSONAL.search(_CAMEL.sub("_", self.name)):
            return "its name looks like personal data"
        texts = [one for one in self.sample if isinstance(one, str)]
        alike = sum(1 for one in texts if _VALUES.fullmatch(one.strip()))
        return "its values look like personal data" if texts and alike * 2 >= len(texts) else ""

    @property
    def is_category(self) -> bool:
        """Whether few values occur often."""
        if not self.values or pa.types.is_floating(self.kind):
            return False
        most = NUMBERS if self.is_number else CATEGORIES
        return len(self.values) <= most and len(self.values) * VALUE_ROWS <= self.rows - self.missing

    @property
    def may_be_unique(self) -> bool:
        """Whether no value occurs twice in the sample: worth a check on all rows."""
        some = len(self.sample) >= 2 and len(set(self.sample)) == len(self.sample)
        return some and self.missing == 0 and not pa.types.is_floating(self.kind)


@dataclass
class Draft:
    """A suite, the columns to call sensitive, and what the data leaves uncertain, by column ("": the table).

    Attributes:
        keys: columns that may name their rows.
        ranges: of each key, the expectations and the uncertainty in its place, if it turns out not to be one.
    """

    rows: int = 0
    expectations: list[Expectation] = field(default_factory=list)
    sensitive: dict[str, str] = field(default_factory=dict)
    unsure: list[tuple[str, str]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[list[Expectation], list[tuple[str, str]]]] = field(default_factory=dict)

    def expect(self, name: str, severity: str = "critical", **kwargs: Any) -> None:
        """Add an expectation."""
        self.expectations.append({"type": f"expect_{name}", "kwargs": kwargs, "severity": severity})


def look(batches: Iterable[pa.RecordBatch]) -> list[Column]:
    """What is in each column, in one pass."""
    columns: list[Column] = []
    for batch in batches:
        if not columns:
            columns = [Column(one.name, one.type) for one in batch.schema]
        for column, values in zip(columns, batch.columns, strict=True):
            column.see(values)
    return columns


def draft(columns: list[Column]) -> Draft:
    """The draft for these columns, which have rows."""
    made = Draft(rows=columns[0].rows)
    made.expect("table_columns_to_match_set", column_set=[one.name for one in columns], exact_match=True)
    made.expect("table_row_count_to_be_between", "warning", min_value=max(1, made.rows // 2))
    made.unsure.append(("", f"at least half of today's {made.rows:,} rows are expected, as a warning"))
    for column in columns:
        _of_nulls(made, column)
        if why := column.personal:
            made.sensitive[column.name] = why
            continue
        _of_values(made, column)
    return made


def _of_nulls(made: Draft, column: Column) -> None:
    share = column.missing / column.rows
    if share == 0:
        made.expect("column_values_to_not_be_null", column=column.name)
    elif share == 1:
        made.unsure.append((column.name, "it has no value in any row, so nothing is expected of it"))
    else:
        mostly = math.floor((1 - min(1, 2 * share)) * 100) / 100
        if mostly > 0:
            made.expect("column_values_to_not_be_null", "warning", column=column.name, mostly=mostly)
        allowed = f"twice as many are allowed (mostly: {mostly:g})" if mostly > 0 else "nothing is expected of that"
        made.unsure.append((column.name, f"{column.missing:,} of {column.rows:,} rows have no value; {allowed}"))


def _of_values(made: Draft, column: Column) -> None:
    name = column.name
    if column.may_be_unique and not column.is_category:
        made.expect("column_values_to_be_unique", column=name)
        made.keys.append(name)
        _expect_range(instead := Draft(), column)
        made.ranges[name] = instead.expectations, instead.unsure
    if column.is_category:
        assert column.values is not None
        values = sorted(column.values, key=lambda value: (str(type(value)), value))
        made.expect("column_values_to_be_in_set", column=name, value_set=values)
        if len(values) > 2:
            made.unsure.append((name, f"only the {len(values)} values seen are allowed; may there be others?"))
    elif name not in made.keys:
        _expect_range(made, column)
    if column.is_text and not column.is_category and column.low is not None:
        least, most = column.low // 2, 2 * column.high
        made.expect("column_value_lengths_to_be_between", "warning", column=name, min_value=least, max_value=most)


def _expect_range(made: Draft, column: Column) -> None:
    """Expect a range of a number; nothing of other columns."""
    if not column.is_number or column.low is None:
        return
    if not column.finite:
        made.unsure.append((column.name, "it has infinite values, so no range is expected"))
        return
    low, high = widened(column.low, column.high, whole=pa.types.is_integer(column.kind))
    made.expect("column_values_to_be_between", column=column.name, min_value=low, max_value=high)
    made.unsure.append((column.name, f"a tenth of its range is allowed beyond it: {low:g} to {high:g}"))


def widened(low: float, high: float, *, whole: bool) -> tuple[float, float]:
    """A range with a margin on both sides, in few digits; it does not cross 0 if the values do not."""
    # The difference of the largest numbers is infinite, and that of the smallest has no logarithm.
    room = max((high * MARGIN - low * MARGIN) or abs(low) * MARGIN or 1, 1e-300)
    least, most = max(low - room, -_LARGEST), min(high + room, _LARGEST)
    step = 10.0 ** math.floor(math.log10(room))
    least = max(math.floor(least / step) * step, -_LARGEST)
    most = min(math.ceil(most / step) * step, _LARGEST)
    if low >= 0:
        least = max(least, 0)
    if high <= 0:
        most = min(most, 0)
    if whole:
        return min(math.floor(least), int(low)), max(math.ceil(most), int(high))
    digits = max(0, -math.floor(math.log10(step)))
    # Rounding to the step's own digits must not leave the values outside.
    return min(round(least, digits), low), max(round(most, digits), high)
