"""A row condition chooses the rows that `DataFrame.query` would choose, and nothing that a suite says is run."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.contract.engine import check
from data_contracts.contract.frames import Layout, frame, rows_that_meet
from data_contracts.contract.suites import ConditionError, read_condition
from data_contracts.errors import SpecError
from tests.support.expectations import RESOURCES, E, reader, run

PROGRAMS: dict[str, Any] = {
    "a name of Python's": "n == n and @pd.io.common.os.system('touch {}') == 0",
    "an attribute": "n.__class__.__init__.__globals__ == 1",
    "a call of a column": "n.map('{}') == 1",
    "a call of a name": "open('{}', 'w') == 1",
    "a format": "f'{n}' == 1",
    "an item": "n[0] == 1",
    "a sum": "n + n == 2",
    "a power": "n == 9 ** 9 ** 9",
    "an assignment": "n = 1",
    "two expressions": "n > 1; n < 2",
    "a lambda": "(lambda: n)() == 1",
    "a method's argument": "n.isnull(@pd) == 1",
    "a comparison with nothing": "n == None",
    "a name in backticks": "`n` == 1 and `n`.map(1) == 1",
    "a flag alone": "n",
    "nothing": "n >",
    "a deep one": "not " * 100 + "n == 1",
    "a long one": "n == 1 or " * 300 + "n == 1",
    "a text handed on": {"type": "pass_through", "pass_through_filter": "@pd.io.common.os.system('touch {}') == 0"},
    "a kind that is not there": {"type": "python", "code": "1"},
    "a value that is none": {"type": "comparison", "column": {"name": "n"}, "operator": "==", "parameter": {"a": 1}},
    "a sign that is none": {"type": "comparison", "column": {"name": "n"}, "operator": "or", "parameter": 1},
    "a list": ["n == 1"],
}


@pytest.mark.parametrize("case", PROGRAMS)
@pytest.mark.parametrize("resources", [RESOURCES, None], ids=["scan", "pandas"])
def test_a_program_in_a_stored_suite_is_refused_and_not_run(case: str, resources: Any, tmp_path: Path) -> None:
    condition, made = PROGRAMS[case], tmp_path / "made"
    if isinstance(condition, str):
        condition = condition.replace("{}", str(made))
    entry = E("column_values_to_be_between", column="n", min_value=0, row_condition=condition)
    suite = {"name": "stored", "expectations": [entry]}  # no reader of suites has seen it
    with pytest.raises(SpecError, match=r"^contract.suite: expectations.0.kwargs.row_condition: .*docs/validate.md"):
        check(suite, reader(pa.table({"n": [1, 2]})), fail_on="critical", sensitive=[], resources=resources)
    assert not made.exists()


def test_a_column_s_name_is_not_a_program(tmp_path: Path) -> None:
    name, made = "n` == 1 and @pd.io.common.os.system('touch {}') == 0 and `n", tmp_path / "made"
    name = name.replace("{}", str(made))
    leaf = {"type": "comparison", "column": {"name": name}, "operator": "<", "parameter": 2}
    entry = E("column_values_to_be_between", column="n", max_value=1, row_condition=leaf)
    outcome = run(pa.table({"n": [1, 2], name: [1, 5]}), entry, resources=None)
    assert outcome.accepted
    assert not made.exists()


DAY = datetime.datetime(2024, 1, 1)
ROWS = pa.table(
    {
        "n": pa.array([1, 2, None, 4, -5, 6], pa.int64()),
        "whole": [1, 2, 3, 4, 5, 6],
        "real": [0.5, None, float("nan"), 2.0, -1.0, 6.0],
        "short": pa.array([0.1, 0.2, None, 2.0, 1.0, 6.0], pa.float32()),
        "text": ["a", "it's", None, "b`c", "", "é"],
        "flag": [True, False, None, True, False, True],
        "at": [DAY, None, DAY + datetime.timedelta(1), DAY, DAY, DAY],
        "day": [DAY.date(), None, datetime.date(2024, 2, 1), DAY.date(), DAY.date(), DAY.date()],
        "two words": [1, 2, 3, 4, 5, 6],
    }
)
SAME = [
    "n > 1", "n != 1", "not n > 1", "~(n > 1)", "n >= 2 & whole < 6", "n > 1 | real <= 0.5", "(n == 1) | (n == 4)",
    "1 < n <= 4", "-5 == n", "n == [1, 4]", "n != [1, 4]", "n in [1, 4]", "n not in (1, 4)", "n in [1, 2.0]",
    "real != 2.0", "not real == 2.0", "real in [2, 6]", "real not in [2, 6]", "short == 0.1", "short >= 0.2",
    "text == 'a'", "text != 'a'", "text == \"it's\"", "text == 'b`c'", "text in ['a', 'é']", "text not in ['a']",
    "text > 'a'", "not (text == 'a' or n == 4)", "flag == True", "flag != True", "not flag == False", "n < whole",
    "n == whole", "real < n or text == ''", "`two words` > 3", "n.isnull()", "~n.isnull()",
    "text.notnull() and n < 5", "flag.isna() or n.notna()", "n.isin([1, 6])", "at > '2024-01-01'", "at <= '2024'",
    "real == real", "real != real", "n > 1e3 or whole == 1 # why", "n == 1 or n == 2 and whole == 3",
    "not n == 1 and not whole == 2", "text == 'a & b | c'", "whole > True",
]  # fmt: skip


@pytest.mark.parametrize("nulls", ["masked", "nan"])
@pytest.mark.parametrize("text", SAME)
def test_the_rows_are_those_of_a_query_of_pandas(text: str, nulls: Any) -> None:
    rows = frame(ROWS, Layout(tuple(ROWS.column_names), nulls))
    assert list(rows_that_meet(read_condition(text), rows).index) == list(rows.query(text).index)


def test_a_time_equals_its_text_which_it_does_not_in_a_query_of_pandas() -> None:
    rows = frame(ROWS, Layout(tuple(ROWS.column_names), "nan"))
    for text, numbers in {"day == '2024-01-01'": [0, 3, 4, 5], "at != '2024-01-01 00:00'": [1, 2]}.items():
        assert list(rows_that_meet(read_condition(text), rows).index) == numbers
        assert list(rows.query(text).index) != numbers


@pytest.mark.parametrize("text", ["at > 'soon'", "at == 'soon'", "n > 'a'"])
def test_what_a_query_of_pandas_cannot_compute_is_not_computed(text: str) -> None:
    entry = E("column_values_to_not_be_null", column="whole", row_condition=text)
    (failure,) = run(ROWS, entry).failures
    assert f"it could not be computed on the rows of its row_condition {text}" in failure.sentence


def test_the_part_that_was_not_understood_is_named() -> None:
    for text, part in {
        "n > 1 and n.map(1) == 2": r"'n\.map\(1\)'",
        "n > 1 and @n": "'@n'",
        "n == 2 ** 3": r"'2 \*\* 3'",
    }.items():
        with pytest.raises(ConditionError, match=part):
            read_condition(text)
