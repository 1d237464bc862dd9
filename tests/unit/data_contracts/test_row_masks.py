"""Rows that meet a condition, by hand and beside DuckDB; missing values are in no slice."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.arrow_rows import UnfitColumn, rows_that_meet
from data_contracts.expressions import read_condition
from tests.support.refusals import refusal

COLUMNS: dict[str, pa.Array] = {
    "n": pa.array([1, 2, None, 4, 0], pa.int32()),
    "big": pa.array([2**63 + 5, 2, 3, None, 0], pa.uint64()),
    "exact": pa.array([2**53, 2**53 + 1, 0, 0, 0]),
    "x": pa.array([0.5, float("nan"), None, -1.0, 0.0]),
    "half": pa.array([0.5, 1.0, 2.0, 3.0, 4.0], pa.float16()),
    "money": pa.array([Decimal("1.50"), Decimal("2.00"), None, Decimal("-3.25"), Decimal("0.00")]),
    "t": pa.array(["DE", "AT", None, "", "de"]),
    "f": pa.array([True, False, None, True, False]),
    "day": pa.array([date(2026, 1, one) for one in range(1, 6)]),
    "at": pa.array([datetime(2026, 1, one, 12, tzinfo=UTC) for one in range(1, 6)]),
    "local": pa.array([datetime(2026, 1, one, 12) for one in range(1, 6)], pa.timestamp("ms")),
    "clock": pa.array([time(one) for one in range(5)], pa.time64("us")),
    "list": pa.array([[1]] * 5),
    "none": pa.nulls(5),
}


def rows(text: str, columns: dict[str, pa.Array] = COLUMNS) -> list[int]:
    condition = read_condition(text)
    found = rows_that_meet(condition, {name: columns[name] for name in condition.columns})
    assert found.dtype == bool
    return np.flatnonzero(found).tolist()


@pytest.mark.parametrize(
    ("text", "meeting"),
    [
        ("n > 1", [1, 3]),
        ("not n > 1", [0, 4]),  # neither true nor false of a missing value
        ("n != 1", [1, 3, 4]),
        ("n in [1, 4]", [0, 3]),
        ("n not in [1, 4]", [1, 4]),
        ("n is None", [2]),
        ("n is not None", [0, 1, 3, 4]),
        ("x is None", [1, 2]),  # NaN is missing, too
        ("x != 0", [0, 3]),
        ("1 <= n < 4", [0, 1]),
        ("n > 1 or t == 'DE'", [0, 1, 3]),
        ("n / n == 1", [0, 1, 3]),  # 0 / 0 is missing
        ("1 / n > 100", [4]),
        ("-n < -1.5", [1, 3]),
        ("n > -1", [0, 1, 3, 4]),
        ("big > -1", [0, 1, 2, 4]),
        ("exact > 9007199254740992", [1]),
        ("half >= 2", [2, 3, 4]),
        ("money < 0", [3]),
        ("money == 1.5", [0]),
        ("t == 'DE'", [0]),
        ("t > 'Z'", [4]),
        ("t in ['', 'AT']", [1, 3]),
        ("f", [0, 3]),
        ("not f", [1, 4]),
        ("f == False", [1, 4]),
        ("day >= '2026-01-04'", [3, 4]),
        ("'2026-01-02' > day", [0]),
        ("day in ['2026-01-02', '2026-01-05']", [1, 4]),
        ("at < '2026-01-02T14:00+02:00'", [0]),
        ("local < '2026-01-02T12:00'", [0]),
        ("clock >= '03:00'", [3, 4]),
        ("none == 1 or n == 2", [1]),
        ("none is None", [0, 1, 2, 3, 4]),
        ("list is not None", [0, 1, 2, 3, 4]),
    ],
)
def test_which_rows_meet(text: str, meeting: list[int]) -> None:
    assert rows(text) == meeting


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("n == 'x'", "compares numbers with texts in 'n' and \"'x'\""),
        ("t > 1", "compares texts with numbers"),
        ("f == 1", "compares true or false with numbers"),
        ("n", "takes column 'n' as true or false, and it holds int32"),
        ("list == 1", "names column 'list', which holds list<item: int64>"),
        ("t + 1 > 2", "calculates with 't', which holds string"),
        ("day > 'soon'", "compares a column of date32[day] with 'soon'; write an ISO date or time"),
        ("day > '2026-01-01T10:00'", "write an ISO date"),
        ("at > '2026-01-01'", "write an ISO date or time with a time zone"),
        ("day > t", "compares a column of times with a column of texts"),
    ],
)
def test_a_column_that_does_not_fit(text: str, sentence: str) -> None:
    assert sentence in refusal(UnfitColumn, rows, text)


def test_no_rows() -> None:
    assert rows("n > 1 and t == 'x'", {name: one.slice(0, 0) for name, one in COLUMNS.items()}) == []


NUMBER = st.recursive(
    st.sampled_from(["i", "d", "1", "-2", "0.5"]),
    lambda inside: st.tuples(inside, st.sampled_from("+-*"), inside).map(lambda one: f"({' '.join(one)})"),
    max_leaves=4,
)
SIMPLE = st.one_of(
    st.tuples(NUMBER, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBER).map(" ".join),
    st.tuples(st.just("s"), st.sampled_from(["==", "!=", "<", ">="]), st.sampled_from(["'a'", "'b'", "''"])).map(
        " ".join
    ),
    st.sampled_from(["i in (1, -2)", "s not in ('a', 'b')", "i is None", "s is not None", "b", "b == True"]),
)
CONDITION = st.recursive(
    SIMPLE,
    lambda inside: st.one_of(
        inside.map(lambda one: f"not ({one})"),
        st.tuples(inside, st.sampled_from([" and ", " or "]), inside).map(lambda one: f"({''.join(one)})"),
    ),
    max_leaves=5,
).filter(lambda text: any(name in text for name in "idsb"))
ROW: Any = st.tuples(
    st.none() | st.integers(-3, 3), st.none() | st.sampled_from([-1.5, 0.0, 0.5, 2.0]),
    st.none() | st.sampled_from(["", "a", "b", "c"]), st.none() | st.booleans(),
)  # fmt: skip


CONNECTION = duckdb.connect()


@settings(max_examples=60, deadline=None)
@given(text=CONDITION, data=st.lists(ROW, min_size=1, max_size=8))
def test_as_duckdb(text: str, data: list[tuple[Any, ...]]) -> None:
    types = {"i": pa.int64(), "d": pa.float64(), "s": pa.string(), "b": pa.bool_()}
    columns = {name: pa.array(one, types[name]) for name, one in zip(types, zip(*data, strict=True), strict=True)}
    try:
        condition = read_condition(text)
    except ValueError as error:
        assert "names no column" in str(error)  # noqa: PT017
        return
    found = rows_that_meet(condition, {name: columns[name] for name in condition.columns})
    sql = text.replace("==", "=").replace("!=", "<>").replace("None", "NULL")
    CONNECTION.register("rows", pa.table(columns))
    expected = CONNECTION.execute(f"SELECT coalesce({sql}, false) FROM rows").fetchall()
    assert found.tolist() == [one for (one,) in expected], text
