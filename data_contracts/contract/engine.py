"""Checks data against a suite: one scan decides what it can express exactly, Great Expectations decides the rest.

Great Expectations measures what the scan cannot express exactly (`translation`), and what the scan does not decide. It
is imported only for these. The scan decides which expectations hold, and which are certainly broken by rows or a
number.

Rows that break a contract can be set aside, and the rows that are left judged. An expectation about rows is judged on
all rows. If it fails and would reject the data, all rows that break it are set aside; if it holds, its `mostly`
included, it sets none aside. Every other expectation is judged on the rows that are left. Rows are set aside only once:
if an expectation still fails without the rows that broke it, the data is rejected. Great Expectations finds every row
that breaks an expectation in a pass of its own over the columns it reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from data_contracts.arrow_rows import Data, Files, Numbers, Read, no_files, number_before, without_rows
from data_contracts.contract.findings import Finding, Judged, Outcome, is_grave, outcome, rejected
from data_contracts.contract.frames import narrowest, scope_of, without_condition
from data_contracts.contract.great_expectations_engine import (
    Check,
    Classes,
    load_great_expectations,
    on_whole,
    row_by_row,
)
from data_contracts.contract.questions import ROWS, Measure, ScanQuestion, values_of
from data_contracts.contract.scan import Resources, scanned
from data_contracts.contract.suites import ABOUT_ROWS, ConditionError, ForeignReference, local_schema
from data_contracts.contract.translation import translated
from data_contracts.errors import SpecError
from data_contracts.handoffs import Expectation, Failure, Quarantine, Suite
from data_contracts.quoting import text_of

Verdicts = dict[int, Failure | None]
_EVERY = {"result_format": {"result_format": "COMPLETE", "partial_unexpected_count": 0}}


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

    plans = translated(entries, schema) if resources else {}
    questions = {index: plan for index, plan in plans.items() if isinstance(plan, ScanQuestion)}
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


def _refuse_programs(index: int, entry: Expectation) -> None:
    """SpecError for a text that a library would carry out; a suite that comes from a store was not checked before."""
    kwargs = f"contract.suite: expectations.{index}.kwargs"
    try:
        without_condition(entry)
        local_schema(entry["kwargs"].get("json_schema"))
    except ConditionError as error:
        raise SpecError(f"{kwargs}.row_condition: {text_of(error)}; docs/validate.md lists what is.") from error
    except ForeignReference as error:
        raise SpecError(f"{kwargs}.json_schema: {text_of(error)}.") from error


def _scanned(
    questions: dict[int, ScanQuestion],
    entries: dict[int, Expectation],
    data: Data,
    sensitive: Collection[str],
    resources: Resources,
) -> tuple[int | None, Verdicts]:
    """As `decided`, without measuring again what earlier checks of the same files answer."""
    if resources.answer is None:
        return decided(questions, entries, data, sensitive, resources)
    rows, settled = resources.answer(questions, data.schema)
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
    questions: dict[int, ScanQuestion],
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
    finding: Finding, question: ScanQuestion, answers: list[Any], shown: dict[Measure, Any]
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


def _finding(entry: Expectation, schema: pa.Schema, sensitive: Collection[str]) -> tuple[Finding, list[str]]:
    """What words the failure of an expectation, and those of its columns that do not exist."""
    columns = scope_of(entry, schema).columns
    return Finding(entry, columns, sensitive, schema), [name for name in columns if schema.get_field_index(name) < 0]


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
        judge: runs a suite over data; `check` with the same arguments as here.
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
