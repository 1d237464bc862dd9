"""Checks data against a suite: one scan decides what it can express exactly, Great Expectations decides the rest.

Great Expectations measures what the scan cannot express exactly (`translation`), and what the scan does not decide. It
is imported only for these. The scan decides which expectations hold, and which are certainly broken by rows or a
number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa

from data_contracts.arrow_rows import Data, Files, Read, no_files
from data_contracts.contract.findings import Finding, Outcome, outcome, rejected
from data_contracts.contract.frames import narrowest, scope_of, without_condition
from data_contracts.contract.great_expectations_engine import (
    Check,
    Classes,
    load_great_expectations,
    on_whole,
    row_by_row,
)
from data_contracts.contract.questions import ROWS, Measure, Question, values_of
from data_contracts.contract.scan import Resources, scanned
from data_contracts.contract.suites import ConditionError, ForeignReference, local_schema
from data_contracts.contract.translation import every_translated
from data_contracts.errors import SpecError
from data_contracts.handoffs import Expectation, Failure, Suite
from data_contracts.quoting import text_of

Verdicts = dict[int, Failure | None]


def check(
    suite: Suite,
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
    entries: dict[int, Expectation] = dict(enumerate(suite["expectations"]))
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


def _refuse_programs(index: int, asked: Expectation) -> None:
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
    questions: dict[int, Question],
    entries: dict[int, Expectation],
    data: Data,
    sensitive: Collection[str],
    resources: Resources,
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


def decided(
    questions: dict[int, Question],
    entries: dict[int, Expectation],
    data: Data,
    sensitive: Collection[str],
    resources: Resources,
) -> tuple[int | None, Verdicts]:
    """The number of rows, and by expectation its failure, or None if it holds; those that are undecided are absent.

    None and {} if the scan failed.
    """
    values = _values([ROWS, *(one for question in questions.values() for one in question.measures)], data, resources)
    if values is None:
        return None, {}
    answers = {index: [values[one] for one in question.measures] for index, question in questions.items()}
    broken = {index: one for index, one in questions.items() if not one.holds(*answers[index])}
    verdicts: Verdicts = dict.fromkeys(questions.keys() - broken.keys())
    more = [one for question in broken.values() if question.broken for one in question.broken.examples]
    shown = _values(more, data, resources) if more else {}
    for index, question in broken.items():
        finding, lacking = _finding(entries[index], data.schema, sensitive)
        failure = None
        if lacking:
            failure = finding.missing(lacking[0], data.schema.names)
        elif question.broken is not None and shown is not None:
            failure, enough = _of_rows(finding, question, answers[index], shown)
            if enough:
                verdicts[index] = None
        elif question.observed is not None and (value := question.observed(*answers[index])) is not None:
            failure = finding.observed(value or None)
        if failure is not None:
            verdicts[index] = failure
    return values[ROWS], verdicts


def _values(measures: list[Measure], data: Data, resources: Resources) -> dict[Measure, Any] | None:
    columns = sorted({name for one in measures for name in one.columns})
    if columns:
        return scanned(measures, data, columns, resources)
    # Without a column there is nothing to scan, but to count the rows of the narrowest one.
    return {ROWS: sum(batch.num_rows for batch in data.read([narrowest(data.schema)]))}


def _of_rows(
    finding: Finding, question: Question, answers: list[Any], shown: dict[Measure, Any]
) -> tuple[Failure | None, bool]:
    """The failure, if rows certainly break the expectation; and whether few enough do."""
    assert question.broken is not None
    more = [shown[one] for one in question.broken.examples]
    counts = question.broken.counts(*answers) if question.broken.counts else (answers[0], more[0])
    if counts is None:
        return None, False
    of, count = counts
    if question.broken.enough is not None and question.broken.enough(of, count):
        return None, True
    first = more[-1]
    numbers = first["n"]
    values = first["c"] if "c" in first else values_of(first, finding.columns)
    return finding.broken(count, of, numbers, values or [None] * len(numbers)), False


def _finding(asked: Expectation, schema: pa.Schema, sensitive: Collection[str]) -> tuple[Finding, list[str]]:
    """What words the failure of an expectation, and those of its columns that do not exist."""
    columns = scope_of(asked, schema).columns
    whole = [field.name for field in schema if pa.types.is_integer(field.type)]
    return Finding(asked, columns, sensitive, whole), [name for name in columns if schema.get_field_index(name) < 0]
