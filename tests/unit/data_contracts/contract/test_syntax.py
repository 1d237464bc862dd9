"""What no data can make valid in a suite is refused with its line; what Great Expectations may read is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.contract.suites import load_suite
from data_contracts.errors import SpecError
from tests.support.expectations import E, one, run

PANDAS = {"condition_parser": "pandas"}
TABLE = pa.table({"t": ["7", "x", "y"], "n": [1, 2, 3]})


def _quantiles(*wanted: float) -> dict[str, Any]:
    return {"quantiles": list(wanted), "value_ranges": [[None, None]] * len(wanted)}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "regex": (
        E("column_values_to_match_regex", column="t", regex="("),
        r"suite.json:8: expectations.0.kwargs.regex: '\(' is not a regular expression: missing \), .* position 0\.$",
    ),
    "list": (
        E("column_values_to_not_match_regex_list", column="t", regex_list=["a", "["]),
        r"kwargs.regex_list: '\[' is not a regular expression: unterminated character set",
    ),
    "filled": (
        E("column_values_to_match_regex", column="t", regex={"$PARAMETER": "bad"}),
        r"kwargs.regex: '\*' is not a regular expression: nothing to repeat",
    ),
    "condition": (
        E("column_values_to_not_be_null", column="t", row_condition="n >", **PANDAS),
        r"suite.json:8: expectations.0.kwargs.row_condition: 'n >' is not a condition on rows: invalid syntax at",
    ),
    "column": (
        E("column_values_to_not_be_null", column=3),
        r"suite.json:7: expectations.0.kwargs.column: 3 is not the name of a column; write it in quotes\.$",
    ),
    "columns": (
        E("compound_columns_to_be_unique", column_list=["t", None]),
        r"kwargs.column_list: \['t', None\] is not a list of columns' names\.$",
    ),
    "assignment": (
        E("column_values_to_not_be_null", column="t", row_condition="n = 1", **PANDAS),
        r"kwargs.row_condition: .*: invalid syntax at '= 1'; docs/validate.md lists what is\.$",
    ),
    "program": (
        E(
            "column_values_to_not_be_null",
            column="t",
            row_condition="n == n and @pd.io.common.os.getpid() > 0",
            **PANDAS,
        ),
        r"suite.json:8: .*kwargs.row_condition: .* invalid syntax at '@pd.io.common.os.getpid\(\) > 0'; docs/validate",
    ),
    "program of a class": (
        {"class_path": "mine.Check", "kwargs": {"column": "t", "row_condition": "open('x') == 1"}},
        r"suite.json:8: expectations.0.kwargs.row_condition: .* \"open\('x'\)\" is not understood; docs/validate.md",
    ),
    "reference": (
        E("column_values_to_match_json_schema", column="t", json_schema={"items": {"$ref": "http://127.0.0.1:9/x"}}),
        r"kwargs.json_schema: its \$ref 'http://127.0.0.1:9/x' leads out of the schema; write the part under \$defs\.$",
    ),
    "base": (
        E(
            "column_values_to_match_json_schema",
            column="t",
            json_schema={"$ref": "#/x/y", "x": {"y": {"$id": "http://127.0.0.1:9/x", "$ref": "#/z"}}},
        ),
        r"kwargs.json_schema: a part of it has the \$id 'http://127.0.0.1:9/x'; leave that out\.$",
    ),
    "range": (
        E("column_values_to_be_between", column="n", min_value=2, max_value=1.5),
        r"suite.json:8: expectations.0.kwargs.min_value: 2 is greater than max_value, 1\.5\.$",
    ),
    "quantile": (
        E("column_quantile_values_to_be_between", column="n", quantile_ranges=_quantiles(0.5, 2)),
        r"kwargs.quantile_ranges: 2 is not a quantile; write a number from 0 to 1\.$",
    ),
    "unequal": (
        E(
            "column_quantile_values_to_be_between",
            column="n",
            quantile_ranges={"quantiles": [0.1, 0.9], "value_ranges": [[0, 9]]},
        ),
        r"kwargs.quantile_ranges: quantiles and value_ranges differ in number: 2 and 1\.$",
    ),
    "number as interpolation": (
        E("column_quantile_values_to_be_between", column="n", quantile_ranges=_quantiles(0.5), allow_relative_error=1),
        r"kwargs.allow_relative_error: 1 is not one of linear, lower, higher, midpoint, nearest\.$",
    ),
    "interpolation": (
        E(
            "column_quantile_values_to_be_between",
            column="n",
            quantile_ranges=_quantiles(0.5),
            allow_relative_error="cubic",
        ),
        r"kwargs.allow_relative_error: 'cubic' is not one of linear, lower, higher, midpoint, nearest\.$",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_data_can_make_valid_is_refused(case: str, tmp_path: Path) -> None:
    entry, sentence = WRONG[case]
    (tmp_path / "suite.json").write_text(json.dumps({"name": "s", "expectations": [entry]}, indent=1))
    with pytest.raises(SpecError, match=sentence):
        load_suite("suite.json", tmp_path, {"bad": "*"})


def test_a_column_that_a_parameter_will_name_is_not_refused() -> None:
    later = {"$PARAMETER": "key"}
    entries = [
        E("column_values_to_not_be_null", column=later),
        E("column_pair_values_to_be_equal", column_A=later, column_B="t"),
        E("compound_columns_to_be_unique", column_list=["t", later]),
        E("compound_columns_to_be_unique", column_list=later),
    ]
    suite = load_suite({"name": "s", "expectations": entries}, Path(), None)
    assert [one["kwargs"] for one in suite["expectations"]] == [one["kwargs"] for one in entries]


def test_bounds_that_no_value_keeps_but_the_engine_reads_are_not_refused() -> None:
    entries = [
        E("column_max_to_be_between", column="n", min_value=2, max_value=1),
        E("column_values_to_be_between", column="n", min_value=3, max_value=3),
        E("column_quantile_values_to_be_between", column="n", quantile_ranges=_quantiles(0, 1)),
        E("column_values_to_be_between", column="n", min_value={"$PARAMETER": "least"}, max_value=1),
    ]
    assert len(load_suite({"name": "s", "expectations": entries}, Path(), None)["expectations"]) == 4


def test_what_one_of_the_engines_reads_is_not_refused() -> None:
    conditions = ("`n` > 1", " n > 1", "n > 1 & not n > 2", "~(n == 1) | t.isnull()", "n > 1 # c", "1 < n <= 3")
    of_pandas = [E("column_values_to_be_null", column="n", row_condition=text, **PANDAS) for text in conditions]
    entries = [E("column_values_to_match_regex", column="t", regex=r"^\pL$"), *of_pandas]
    assert not any("could not be computed" in one.sentence for one in run(TABLE, *entries).failures)


def test_a_condition_that_cannot_be_computed_is_the_reason_and_not_the_words_of_a_column() -> None:
    entry = E("column_values_to_not_be_null", column="t", row_condition="nosuch > 1", **PANDAS)
    said = "expect_column_values_to_not_be_null on t: the data has no column "
    assert one(TABLE, entry).sentence == f"{said}nosuch in its row_condition (it has t, n)"
    hidden = one(TABLE, entry, sensitive=["n"]).sentence  # a word of a condition may be a value
    assert hidden.startswith(f"{said}of a name in its row_condition (it has 2 columns")
    entry = E("column_values_to_not_be_null", column="t", row_condition="n > 'nosuch'", **PANDAS)
    said = "it could not be computed on the rows of its row_condition n > 'nosuch' (t is string): Invalid comparison"
    assert said in one(TABLE, entry).sentence
    assert "nosuch" not in one(TABLE, entry, sensitive=["n"]).sentence
