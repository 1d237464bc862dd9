"""A pattern that Python would search for without end is decided by RE2, or ends with a sentence that names it."""

from __future__ import annotations

import signal
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.contract import great_expectations_engine
from data_contracts.contract.engine import broken_rows
from data_contracts.errors import SpecError
from tests.support.expectations import E, reader, run

LONG = "a" * 60 + "!"
# The last row has what lets pandas, too, leave RE2 for Python.
ROWS = pa.table({"t": [LONG, "a", "aé\n"], "j": [f'"{LONG}"', '"a"', '"é"']})
ENDLESS: dict[str, tuple[dict[str, Any], str]] = {
    "a reference": (E("column_values_to_match_regex", column="t", regex=r"^(a|a)*\1$"), r"regex: '^(a|a)*\\1$' was"),
    "look-around": (E("column_values_to_not_match_regex", column="t", regex="^(?=(a+)+$)"), "regex: '^(?=(a+)+$)' was"),
    "nested nothing": (E("column_values_to_match_regex", column="t", regex=r"^((a*)*)*$"), "regex: '^((a*)*)*$' was"),
    "a list": (
        E("column_values_to_match_regex_list", column="t", regex_list=["b", "^(a|a?)+$"]),
        "regex_list: ['b', '^(a|a?)+$'] was",
    ),
    "a schema": (
        E("column_values_to_match_json_schema", column="j", json_schema={"pattern": "^(a|a)*$"}),
        "json_schema: {'pattern': '^(a|a)*$'} was",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDLESS)
def test_a_pattern_without_end_is_a_mistake_in_the_suite(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(great_expectations_engine, "PATTERN_S", 0.3)
    # The first has an end, and time for it on any machine.
    monkeypatch.setattr(
        great_expectations_engine.Check,
        "within_time",
        lambda check, rows, real=great_expectations_engine.Check.within_time: real(
            check, rows if check._index else 10**6
        ),
    )
    handler, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    entry, said = ENDLESS[case]
    with pytest.raises(SpecError) as caught:
        run(ROWS, E("column_values_to_match_regex", column="t", regex="(?=a)"), entry)
    assert caught.value.message == (
        f"contract.suite: expectations.1.kwargs.{said} not found or excluded in 3 rows in 0 s."
    )
    assert signal.getsignal(signal.SIGALRM) is handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (left > 0)


def test_finding_every_row_that_breaks_a_pattern_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(great_expectations_engine, "PATTERN_S", 0.3)
    entry = E("column_values_to_match_regex", column="t", regex=r"^(\w|\w)*$")
    with pytest.raises(SpecError, match="expectations.0.kwargs.regex"):
        broken_rows({0: entry}, reader(ROWS), 3, ROWS.schema, [])


@pytest.mark.parametrize("regex", [r"^(\w+\s?)*$", "^(a+)+$", r"^(a|a|\d)*$", r"([a-z]+)*\Z"])
def test_re2_decides_what_python_would_search_for_without_end(regex: str) -> None:
    entry = E("column_values_to_match_regex", column="t", regex=regex)
    outcome = run(ROWS, entry, load=lambda: pytest.fail("Great Expectations was imported"))
    assert len(outcome.failures) <= 1


def test_a_pattern_that_ends_is_searched_for_as_ever() -> None:
    entries = [
        E("column_values_to_match_regex", column="t", regex=regex) for regex in (r"(?=a)", r"(?<!a)a", "(?i)A.?$")
    ]
    assert run(ROWS, *entries).accepted
    (failure,) = run(ROWS, E("column_values_to_match_regex", column="t", regex=r"^a(?!a)")).failures
    assert failure.row_numbers == [0]
