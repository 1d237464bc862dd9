"""Checks data against a suite: one scan decides what it can express exactly, Great Expectations decides the rest.

Great Expectations measures what the scan cannot express exactly (`translation`), and what the scan does not decide. It
is imported only for these.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa

from data_contracts.contract.expectation_scope import without_condition
from data_contracts.contract.findings import Outcome, outcome, rejected
from data_contracts.contract.great_expectations_engine import Check, load_great_expectations, on_whole, row_by_row
from data_contracts.contract.measures import Question
from data_contracts.contract.own_expectations import Classes
from data_contracts.contract.row_condition import ConditionError
from data_contracts.contract.rows import Data, Files, Read, no_files
from data_contracts.contract.scan.duck import Resources
from data_contracts.contract.suites import load_suite, suite_digest
from data_contracts.contract.syntax import ForeignReference, local_schema
from data_contracts.contract.translation.translation import every_translated
from data_contracts.contract.verdicts import Verdicts, decided
from data_contracts.errors import SpecError
from data_contracts.quoting import text_of

__all__ = ["Outcome", "Resources", "check", "load_suite", "suite_digest"]

Entries = dict[int, dict[str, Any]]


def check(
    suite: dict[str, Any],
    read: Read,
    *,
    fail_on: str,
    sensitive: Collection[str],
    resources: Resources | None,
    load: Callable[[], Classes] = load_great_expectations,
    files: Files = no_files,
) -> Outcome:
    """Run a suite over the data.

    Args:
        suite: what `load_suite` returned.
        read: gives the data's batches, the same rows in the same order each time; with names, only these columns.
        fail_on: the mildest severity that rejects: `critical`, `warning` or `info`.
        sensitive: columns whose values never appear in the outcome.
        resources: what the scan may use; None: Great Expectations decides everything.
        load: imports Great Expectations and gives the classes that the suite names; called only when an expectation
            needs it.
        files: opens the same rows for the scan to read by itself, if they are Parquet files.

    Raises:
        SpecError: Great Expectations refuses the value of an expectation's argument, or we do, because a library would
            carry it out as a program.
    """
    entries: Entries = dict(enumerate(suite["expectations"]))
    if not (count := len(entries)):
        return rejected(0, 0, "suite", f"the suite {suite['name']} has no expectations, so it vouches for nothing")
    for index, asked in entries.items():
        _refuse_programs(index, asked)
    schema = next((batch.schema for batch in read(None) if batch.num_rows), None)
    if schema is None:
        return rejected(0, count, "rows", "the data has no rows")

    def checks(some: Collection[int]) -> dict[int, Check]:
        classes = load() if some else {}
        return {index: Check(index, entries[index], schema, sensitive, classes) for index in some}

    plans = every_translated(entries, schema) if resources else {}
    questions = {index: plan for index, plan in plans.items() if isinstance(plan, Question)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GX warns about its own future, and pandas about values, once per block
        left = checks(entries.keys() - questions.keys())  # first, because this refuses bad arguments
        rows, decisions = None, Verdicts()
        if questions and resources:
            rows, decisions = _scanned(questions, entries, Data(schema, read, files), sensitive, resources)
        left |= checks(questions.keys() - decisions.keys())
        rows = _measured([left[index] for index in sorted(left)], rows, read, schema)
        decisions |= {index: one.failure(read) for index, one in left.items()}
    failures = {index: failure for index in sorted(decisions) if (failure := decisions[index])}
    return outcome(rows, count, failures, fail_on)


def _refuse_programs(index: int, asked: Mapping[str, Any]) -> None:
    """SpecError for a text that a library would carry out; a suite that comes from a store was not checked before."""
    kwargs = f"contract.suite: expectations.{index}.kwargs"
    try:
        without_condition(asked)
        local_schema(asked["kwargs"].get("json_schema"))
    except ConditionError as error:
        raise SpecError(f"{kwargs}.row_condition: {text_of(error)}; docs/validate.md lists what is.") from error
    except ForeignReference as error:
        raise SpecError(f"{kwargs}.json_schema: {text_of(error)}.") from error


def _scanned(
    questions: dict[int, Question], entries: Entries, data: Data, sensitive: Collection[str], resources: Resources
) -> tuple[int | None, Verdicts]:
    """As `decided`, without measuring again what earlier checks of the same files settle."""
    if resources.settle is None:
        return decided(questions, entries, data, sensitive, resources)
    rows, settled = resources.settle(questions, data.schema)
    verdicts: Verdicts = dict.fromkeys(settled)
    if rest := {index: question for index, question in questions.items() if index not in settled}:
        measured, found = decided(rest, entries, data, sensitive, resources)
        return (rows if settled else measured), verdicts | found
    return rows, verdicts


def _measured(checks: list[Check], rows: int | None, read: Read, schema: pa.Schema) -> int:
    """Let Great Expectations measure these; the number of rows, which may be known already."""
    runnable = [one for one in checks if not one.scope.absent]
    row_wise = [one for one in runnable if one.scope.row_wise]
    if rows is None or row_wise:
        rows = row_by_row(row_wise, read, schema)
    on_whole([one for one in runnable if not one.scope.row_wise], read, rows, schema)
    return rows
