"""A scan's verdicts: which expectations hold, and the finding where rows or a number certainly break one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from data_contracts.contract.expectation_scope import narrowest, scope_of
from data_contracts.contract.findings import Finding
from data_contracts.contract.measures import ROWS, Measure, Question
from data_contracts.contract.rows import Data
from data_contracts.contract.scan.duck import Resources
from data_contracts.contract.scan.scan import scanned
from data_contracts.contract.translation.several_columns import values_of
from data_contracts.handoffs import Failure

Entry = dict[str, Any]
Verdicts = dict[int, Failure | None]


def decided(
    questions: dict[int, Question],
    entries: dict[int, Entry],
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


def _finding(asked: Entry, schema: pa.Schema, sensitive: Collection[str]) -> tuple[Finding, list[str]]:
    """What words the failure of an expectation, and those of its columns that do not exist."""
    columns = scope_of(asked, schema).columns
    whole = [field.name for field in schema if pa.types.is_integer(field.type)]
    return Finding(asked, columns, sensitive, whole), [name for name in columns if schema.get_field_index(name) < 0]
