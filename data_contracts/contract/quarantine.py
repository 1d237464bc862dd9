"""Sets aside the rows that break a contract, and judges the rows that are left.

An expectation about rows is judged on all rows. If it fails and would reject the data, all rows that break it are set
aside; if it holds, its `mostly` included, it sets none aside. Every other expectation is judged on the rows that are
left. Rows are set aside only once: if an expectation still fails without the rows that broke it, the data is rejected.

Great Expectations finds every row that breaks an expectation in a pass of its own over the columns it reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from data_contracts.arrow_rows import Numbers, Read, number_before, without_rows
from data_contracts.contract.findings import Judged, Outcome, is_grave, outcome
from data_contracts.contract.great_expectations_engine import Check, Classes, on_whole, row_by_row
from data_contracts.contract.suites import ABOUT_ROWS
from data_contracts.handoffs import Expectation, Failure, Quarantine, Suite


def check_and_set_aside(
    suite: Suite,
    read: Read,
    judge: Callable[[Suite, Read], Outcome],
    *,
    max_share: float,
    fail_on: str,
    sensitive: Collection[str],
    load: Callable[[], Classes],
) -> Judged:
    """Run a suite over the data, and set rows aside if this avoids a rejection.

    Args:
        judge: runs a suite over data; `data_contracts.contract.engine.check` with the same arguments as here.
        max_share: the largest share of the rows that may be set aside.
        load: imports Great Expectations and gives the classes that the suite names; called only when rows are set
            aside.
    """
    first = judge(suite, read)
    failed = dict(zip(first.indices, first.failures, strict=False))
    named = {index: one for index, one in sorted(failed.items()) if is_grave(one, fail_on) and one.row_numbers}
    if not named:
        return Judged(first)
    most = Fraction(str(max_share)) * first.rows
    if (worst := max(named.values(), key=lambda one: one.rows)).rows > most:
        return _refused(first, worst.rows, _what(worst), max_share)
    classes = load()
    schema = next(batch.schema for batch in read(None) if batch.num_rows)
    asked = {index: suite["expectations"][index] for index in named}
    found = broken_rows(asked, read, first.rows, schema, sensitive, classes)
    # If the rows are not exactly those of the finding, leaving them out does not help: the data is rejected as usual.
    exact = {index: rows for index, rows in found.items() if len(rows) == named[index].rows}
    if not exact:
        return Judged(first)
    aside = np.unique(np.concatenate(list(exact.values())))
    if len(aside) > most:
        return _refused(first, len(aside), "expectations", max_share)
    if len(aside) == first.rows:
        return Judged(first, Quarantine(rows=0, refused="Without the rows that break expectations, no row is left."))
    last = _on_the_rest(suite, read, judge, failed, exact, aside)
    broken = [named[index] for index in exact]
    whole = outcome(first.rows, first.expectations, last, fail_on)
    if not whole.accepted:
        left = f"{first.rows - len(aside):,} rows that are left without {len(aside):,} that broke other expectations"
        return Judged(whole, Quarantine(rows=0, broken=broken, refused=f"This is about the {left}."))
    labels = [(_what(named[index]), rows) for index, rows in exact.items()]
    return Judged(whole, Quarantine(rows=len(aside), broken=broken), aside, labels)


def _on_the_rest(
    suite: Suite,
    read: Read,
    judge: Callable[[Suite, Read], Outcome],
    failed: dict[int, Failure],
    exact: dict[int, Numbers],
    aside: Numbers,
) -> dict[int, Failure]:
    """What fails at the end: aggregates on the remaining rows, and findings on all rows that stay."""
    entries = suite["expectations"]
    again = [index for index, one in enumerate(entries) if index in exact or not one["type"].startswith(ABOUT_ROWS)]

    def rest(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in read(columns):
            left = without_rows(batch, first, aside)
            first += batch.num_rows
            if left.num_rows:
                yield left

    second = judge({**suite, "expectations": [entries[index] for index in again]}, rest)
    found = {again[at]: one for at, one in zip(second.indices, second.failures, strict=True)}
    found = {index: _still(one, aside) if index in exact else one for index, one in found.items()}
    return {**{index: one for index, one in failed.items() if index not in again}, **found}


def _still(failure: Failure, aside: Numbers) -> Failure:
    """The failure of an expectation that compares rows with one another, with the numbers that its rows have."""
    sentence = f"{_what(failure)}: {failure.rows:,} of the rows that are left break it, because they are compared anew"
    numbers = [number_before(number, aside) for number in failure.row_numbers]
    return failure.model_copy(update={"row_numbers": numbers, "sentence": sentence})


def _refused(first: Outcome, rows: int, what: str, max_share: float) -> Judged:
    share = f"{rows:,} of {first.rows:,} rows ({rows / first.rows:.3%})"
    sentence = f"Quarantine: {share} break {what}, more than max_share {max_share:g} allows."
    return Judged(first, Quarantine(rows=0, refused=sentence))


def _what(failure: Failure) -> str:
    return f"{failure.expectation}{f' on {failure.column}' if failure.column else ''}"


_EVERY = {"result_format": {"result_format": "COMPLETE", "partial_unexpected_count": 0}}


def broken_rows(
    entries: Mapping[int, Expectation],
    read: Read,
    rows: int,
    schema: pa.Schema,
    sensitive: Collection[str],
    classes: Classes = MappingProxyType({}),
) -> dict[int, Numbers]:
    """The sorted numbers of all rows that break each expectation, by its index in the suite.

    An expectation that Great Expectations does not measure row by row is left out.

    Args:
        entries: entries of the suite by their index; each names rows that break it.
        rows: the number of rows.
        classes: those that the entries name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in the check: GX and pandas warn once for each block
        checks = [_Rows(index, asked, schema, sensitive, classes) for index, asked in entries.items()]
        row_by_row([one for one in checks if one.scope.row_wise], read, schema)
        on_whole([one for one in checks if not one.scope.row_wise], read, rows, schema)
    found = zip(entries, checks, strict=True)
    return {index: np.unique(np.concatenate(one.numbers)) for index, one in found if one.numbers and not one.error}


class _Rows(Check):
    """An expectation for which only the rows that break it are measured, but all of them.

    Attributes:
        numbers: the rows' numbers, a piece for each block.
    """

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.numbers: list[Numbers] = []

    def needs(self, engine: Any, runtime: Mapping[str, object] = _EVERY) -> dict[str, Any]:
        """The list of row numbers; nothing for an expectation that has none."""
        found = super().needs(engine, runtime)
        return {name: metric for name, metric in found.items() if name.endswith(".unexpected_index_list")}

    def merge(self, measured: dict[Any, Any]) -> None:
        """Add the rows of another block."""
        self.numbers.extend(np.asarray(listed, np.int64) for listed in measured.values())

    def judge(self, engine: Any, metrics: dict[Any, Any]) -> None:
        """Do nothing: the verdict is known."""
