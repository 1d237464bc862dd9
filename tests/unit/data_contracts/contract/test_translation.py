"""Which expectations a scan answers, and why the others run on Great Expectations."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.contract import suites
from data_contracts.contract.translation import _RULES, reason
from tests.support.expectations import E, plan, run

SCHEMA = pa.schema(
    [("a", pa.int64()), ("big", pa.uint64()), ("f", pa.float32()), ("s", pa.string()), ("d", pa.date32()),
     ("kind", pa.dictionary(pa.int8(), pa.string())), ("price", pa.decimal128(9, 2)), ("raw", pa.binary()),
     ("nested", pa.list_(pa.int64())), ("zoned", pa.timestamp("us", "Europe/Berlin"))]
)  # fmt: skip
BETWEEN = {"column": "a", "min_value": 0}
ARGUMENT = "its argument {} has no exact translation"
VALUES = "its values have no exact translation for a column of {}"
CONDITION = {"row_condition": "a > a.mean()", "condition_parser": "pandas"}
CONDITION_LEFT = "its row_condition has no exact translation"
LEFT: list[tuple[dict[str, Any], str]] = [
    (E("column_values_to_match_strftime_format", column="s", strftime_format="%Y"), "it has no exact translation"),
    ({**E("x"), "class_path": "checks.X"}, "it is a class of your own"),
    (E("column_values_to_match_regex", column="s", regex=r"\b"), ARGUMENT.format("regex")),
    (E("column_values_to_be_between", **BETWEEN, **CONDITION), CONDITION_LEFT),
    (E("column_values_to_be_between", **BETWEEN, row_condition="a == 'x'"), CONDITION_LEFT),
    (E("table_row_count_to_equal", value=1, row_condition="a > 0"), "it has a row_condition"),
    (E("column_pair_values_to_be_equal", column_A="a", column_B="f"), "its columns are int64, float"),
    (E("compound_columns_to_be_unique", column_list=["a", "gone"]), "the data has no column gone"),
    (E("column_values_to_be_between", column="a"), "it has no bound"),
    (E("column_values_to_be_between", **BETWEEN, max_value=-1), "its min_value is greater than its max_value"),
    (E("column_values_to_be_between", column="d", min_value="2024-01-01"), ARGUMENT.format("min_value")),
    (E("column_values_to_be_between", column="a", min_value=True), ARGUMENT.format("min_value")),
    (E("column_values_to_be_between", column="a", min_value=2**53 + 1), ARGUMENT.format("min_value")),
    (E("column_values_to_be_between", **BETWEEN, mostly=2), ARGUMENT.format("mostly")),
    (E("table_row_count_to_be_between", min_value=0.5), "its bounds are not whole numbers"),
    (E("column_values_to_be_in_set", column="a", value_set=[]), ARGUMENT.format("value_set")),
    (E("column_values_to_be_in_set", column="a", value_set=[1, "1"]), VALUES.format("int64")),
    (E("column_values_to_be_in_set", column="a", value_set=[True]), VALUES.format("int64")),
    (E("column_values_to_be_in_set", column="s", value_set=["\ud800"]), VALUES.format("string")),
    (E("column_mean_to_be_between", column="f", min_value=0), "its column is float"),
    (E("column_values_to_be_unique", column="gone"), "the data has no column gone"),
    *((E("column_values_to_not_be_null", column=name), f"its column is {SCHEMA.field(name).type}")
      for name in ("big", "kind", "price", "raw", "nested", "zoned")),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "why"), LEFT, ids=lambda value: json.dumps(value)[:70])
def test_what_is_not_translated_says_why(asked: dict[str, Any], why: str) -> None:
    assert plan(asked, SCHEMA) == why
    assert reason(asked) in ("", why)


def test_every_argument_that_a_rule_knows_is_one_of_great_expectations() -> None:
    known = suites._catalogue()[0]
    for name, rule in _RULES.items():
        assert set(rule.arguments) <= {*known[name]["required"], *known[name]["optional"]}, name


def test_a_column_without_a_name_is_left_and_disturbs_no_other() -> None:
    table = pa.table({"": [1, 2], "a": [50, 60]})
    assert isinstance(plan(E("column_values_to_be_between", column="", min_value=0), table.schema), str)
    outcome = run(table, E("column_values_to_be_between", column="a", max_value=40))
    assert (outcome.accepted, outcome.rows) == (False, 2)
