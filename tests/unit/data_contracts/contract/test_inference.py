"""A draft holds for the rows that it was drafted from, and no value of a column that looks personal is in it."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_contracts.contract.inference import draft, look, widened

NAMES = {
    "email": True, "customerName": True, "user_name": True, "Phone": True, "e_mail": True, "birthday": True,
    "amount": False, "filename_length": False, "renamed": False, "shipment": False, "tip": False, "nameless": False,
}  # fmt: skip


def drafted(columns, batch_rows: int = 7):
    return draft(look(pa.table(columns).to_batches(max_chunksize=batch_rows)))


def expected(made, column: str) -> dict[str, dict]:
    of = [one for one in made.expectations if one["kwargs"].get("column") == column]
    return {one["type"].removeprefix("expect_column_"): one["kwargs"] for one in of}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_look_personal(name: str) -> None:
    made = drafted({name: [f"secret{i % 3}" for i in range(40)]})
    assert (name in made.sensitive) == NAMES[name]
    assert ("secret" in json.dumps(made.expectations)) != NAMES[name]


@pytest.mark.parametrize("value", ["a{}@b.org", "+49 30 12345{}", "DE0012345678901{}", "10.0.0.{}"])
def test_values_that_look_personal(value: str) -> None:
    made = drafted({"x": [value.format(i % 3) for i in range(40)]})
    assert list(made.sensitive) == ["x"]
    assert set(expected(made, "x")) == {"values_to_not_be_null"}
    assert value[:4] not in json.dumps([made.expectations, made.unsure])


@pytest.mark.parametrize("value", ["25.09.202{}", "9/25/202{}", "2024-01-0{}"])
def test_days_that_are_texts_do_not_look_personal(value: str) -> None:
    assert not drafted({"x": [value.format(i % 3) for i in range(40)]}).sensitive


@pytest.fixture(scope="module")
def made():
    """The draft of a table with a column of each kind."""
    rows = 200
    return drafted(
        {
            "id": list(range(rows)),
            "kind": [("a", "b", None)[i % 3] for i in range(rows)],
            "size": [i % 50 for i in range(rows)],
            "real": [float(i % 17) + 0.5 for i in range(rows - 1)] + [math.nan],
            "wild": [float(i) for i in range(rows - 1)] + [math.inf],
            "text": [f"word {i % 60} " * (i % 3 + 1) for i in range(rows)],
            "gone": pa.nulls(rows, pa.int64()),
            "flag": [i % 2 == 0 for i in range(rows)],
            "half": pa.array(np.array([math.nan, *range(rows - 1)], np.float16)),
        }
    )


# column, expectation; some of its arguments
EXPECTED = [
    ("half", "values_to_be_between", {"column": "half", "min_value": 0, "max_value": 220}),
    ("kind", "values_to_be_in_set", {"value_set": ["a", "b"]}),
    ("kind", "values_to_not_be_null", {"mostly": 0.34}),
    ("size", "values_to_be_between", {"column": "size", "min_value": 0, "max_value": 54}),
    ("real", "values_to_be_between", {"min_value": 0}),
    ("real", "values_to_not_be_null", {"mostly": 0.99}),
    ("text", "value_lengths_to_be_between", {"max_value": 48}),
    ("flag", "values_to_be_in_set", {"value_set": [False, True]}),
]


@pytest.mark.parametrize(("column", "name", "arguments"), EXPECTED)
def test_what_is_expected_of_each_kind_of_column(column: str, name: str, arguments: dict, made) -> None:
    assert arguments.items() <= expected(made, column)[name].items()


def test_what_is_expected_where_no_value_says_more(made) -> None:
    assert made.keys == ["id"]
    assert set(expected(made, "id")) == {"values_to_not_be_null", "values_to_be_unique"}
    assert set(expected(made, "wild")) == {"values_to_not_be_null"}
    assert expected(made, "gone") == {}
    assert {column for column, _ in made.unsure} == {"", "kind", "size", "real", "wild", "gone", "half"}


@given(st.floats(-1.6e308, 1.6e308), st.floats(-1.6e308, 1.6e308), st.booleans())
@example(0.0, 5e-323, False)
@example(-1.5e308, 1.5e308, False)
def test_a_widened_range_holds_and_keeps_its_side_of_zero(a: float, b: float, whole: bool) -> None:
    low, high = sorted((a, b))
    low, high = (math.floor(low), math.ceil(high)) if whole else (low, high)
    least, most = widened(low, high, whole=whole)
    assert least <= low <= high <= most
    assert least >= 0 or low < 0
    assert most <= 0 or high > 0
