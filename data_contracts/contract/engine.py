"""Checks data against a suite: one scan shows which expectations hold, and Great Expectations decides the others.

Great Expectations measures what the scan cannot express exactly (data_contracts/contract/translation.py), and again
what the scan does not find to hold: so each finding has its words. It is imported only for these.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa

from data_contracts.contract.duck import Resources
from data_contracts.contract.findings import Outcome, outcome, rejected
from data_contracts.contract.great_expectations_engine import Check, load_great_expectations, on_whole, row_by_row
from data_contracts.contract.questions import ROWS, Question
from data_contracts.contract.rows import Data, Files, Read, no_files
from data_contracts.contract.scan import scanned
from data_contracts.contract.suites import load_suite, suite_digest
from data_contracts.contract.translation import translated

__all__ = ["Outcome", "Resources", "check", "load_suite", "suite_digest"]

Entries = dict[int, dict[str, Any]]


def check(
    suite: dict[str, Any],
    read: Read,
    *,
    fail_on: str,
    sensitive: Collection[str],
    resources: Resources | None,
    load: Callable[[], None] = load_great_expectations,
    files: Files = no_files,
) -> Outcome:
    """Run a suite over the data.

    Args:
        suite: what `load_suite` returned.
        read: gives the data's batches, the same rows in the same order each time; with names, only these columns.
        fail_on: the mildest severity that rejects: `critical`, `warning` or `info`.
        sensitive: columns whose values never appear in the outcome.
        resources: what the scan may use; None: Great Expectations decides everything.
        load: imports Great Expectations; called only when an expectation needs it.
        files: opens the same rows for the scan to read by itself, if they are Parquet files.

    Raises:
        SpecError: Great Expectations refuses the value of an expectation's argument.
    """
    entries: Entries = dict(enumerate(suite["expectations"]))
    count = len(entries)
    if not count:
        return rejected(0, 0, "suite", f"the suite {suite['name']} has no expectations, so it vouches for nothing")
    schema = next((batch.schema for batch in read(None) if batch.num_rows), None)
    if schema is None:
        return rejected(0, count, "rows", "the data has no rows")

    def checks(some: Collection[int]) -> dict[int, Check]:
        if some:
            load()
        return {index: Check(index, entries[index], schema, sensitive) for index in some}

    plans = {index: translated(asked, schema) for index, asked in entries.items()} if resources else {}
    questions = {index: plan for index, plan in plans.items() if isinstance(plan, Question)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GX warns about its own future, and pandas about values, once per block
        left = checks(entries.keys() - questions.keys())  # first, because this refuses bad arguments
        rows, held = (
            _scan(questions, Data(schema, read, files), resources) if questions and resources else (None, set())
        )
        left |= checks(questions.keys() - held)
        rows = _measured([left[index] for index in sorted(left)], rows, read, schema)
        failures = {index: failure for index in sorted(left) if (failure := left[index].failure(read))}
    return outcome(rows, count, failures, fail_on)


def _measured(checks: list[Check], rows: int | None, read: Read, schema: pa.Schema) -> int:
    """Let Great Expectations measure these; the number of rows, which may be known already."""
    runnable = [one for one in checks if not one.scope.absent]
    row_wise = [one for one in runnable if one.scope.row_wise]
    if rows is None or row_wise:
        rows = row_by_row(row_wise, read, schema)
    on_whole([one for one in runnable if not one.scope.row_wise], read, rows, schema)
    return rows


def _scan(questions: dict[int, Question], data: Data, resources: Resources) -> tuple[int | None, set[int]]:
    """The number of rows, and the expectations that certainly hold; None and nothing if the scan failed."""
    measures = [ROWS, *(measure for question in questions.values() for measure in question.measures)]
    columns = sorted({one.column for one in measures if one.column is not None})
    # Without a column there is nothing to scan, but to count the rows of the narrowest one.
    read, schema = data.read, data.schema
    values = scanned(measures, data, columns, resources) if columns else {ROWS: row_by_row([], read, schema)}
    if values is None:
        return None, set()
    answers = {index: [values[one] for one in question.measures] for index, question in questions.items()}
    return values[ROWS], {index for index, question in questions.items() if question.holds(*answers[index])}
