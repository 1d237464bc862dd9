"""Suites as people write them and as Great Expectations saves them: what is refused, and what decides the digest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.contract.suites import load_suite, parameters_of, suite_digest, with_line
from data_contracts.errors import SpecError
from tests.support.expectations import E, run
from tests.support.refusals import refusal

NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "a"}}
BETWEEN = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "min_value": 0}}


def saved(*expectations: dict[str, Any]) -> str:
    return json.dumps({"name": "s", "expectations": list(expectations)}, indent=1)


BAD = {
    "too deep": ("[" * 100_000, r"suite.json: contract.suite: the suite is nested too deeply"),
    "no file": (None, r"contract.suite: there is no file suite.json in .*write the suite there"),
    "no JSON": (
        '{"name": "s",\n "expectations": [}',
        r"suite.json:2: contract.suite: the suite is not JSON: Expecting value \(column 19\)\. Look at this line and "
        r"the one before: a comma, quote or bracket may be missing",
    ),
    "NaN": ('{"name": "s", "expectations": [NaN]}', r"suite.json:1: the suite holds NaN"),
    "a list": ("[]", r"suite.json:1: a suite is an object .* no list of expectations"),
    "no list": ('{"name": "s"}', r"no list of expectations"),
    "an entry that is a text": (saved("x"), r"suite.json:4: expectations.0: an expectation is an object"),  # type: ignore[arg-type]
    "before 1.0, unknown": (saved({"expectation_type": "x"}), r"expectations.0.type: Great Expectations has no x;"),
    "types of Spark": (
        saved({"type": "expect_column_values_to_be_of_type", "kwargs": {"column": "a", "type_": "IntegerType"}}),
        r"suite.json:8: expectations.0.kwargs.type_: IntegerType: no type of pandas, .*; use str, int64",
    ),
    "no type": (saved({"kwargs": {}}), r"expectations.0: the expectation has no type"),
    "a key of ours": (
        saved({**NOT_NULL, "severty": "info"}),
        r"expectations.0.severty: unknown key; did you mean severity",
    ),
    "severity": (
        saved({**NOT_NULL, "severity": "bad"}),
        r"severity: 'bad' is not a severity; use critical, warning or info",
    ),
    "arguments": (saved({**NOT_NULL, "kwargs": []}), r"expectations.0.kwargs: the arguments are an object"),
    "unknown": (
        saved(NOT_NULL, {"type": "expect_column_values_to_be_betwen", "kwargs": {}}),
        r"suite.json:11: expectations.1.type: .* has no expect_column_values_to_be_betwen; did you mean "
        r"expect_column_values_to_be_between\?",
    ),
    "argument": (
        saved({**BETWEEN, "kwargs": {"column": "a", "min": 0}}),
        r"suite.json:8: expectations.0.kwargs.min: .* has no argument min; did you mean min_value\?",
    ),
    "unknown, with nothing like it": (
        saved({"type": "zzz", "kwargs": {}}),
        r"suite.json:5: expectations.0.type: Great Expectations has no zzz; write an expectation of its gallery",
    ),
    "argument, with nothing like it": (
        saved({**NOT_NULL, "kwargs": {"column": "a", "zzz": 0}}),
        r"kwargs.zzz: .* has no argument zzz; it has column, .*mostly.*\.$",
    ),
    "a key, with nothing like it": (
        saved({**NOT_NULL, "zzz": 0}),
        r"unknown key; an expectation has type, class_path, kwargs, severity, description and meta\.$",
    ),
    "a class as type": (saved({"type": "checks.Even"}), r"has no checks.Even; name a class of your own as class_path"),
    "a class and a type": (
        saved({**NOT_NULL, "class_path": "checks.Even"}),
        r"expectations.0: an expectation has a type or a class_path, not both",
    ),
    "a class of no module": (
        saved({"class_path": "Even"}),
        r"expectations.0.class_path: 'Even' is not the path of a class; write it as package.module.Class\.$",
    ),
    "argument missing": (saved({**NOT_NULL, "kwargs": {}}), r"expectations.0.kwargs: .* needs the argument column"),
    "parameter": (
        saved({**BETWEEN, "kwargs": {"column": "a", "min_value": {"$PARAMETER": "low"}}}),
        r"kwargs.min_value: the suite parameter low has no value; give it one in contract.parameters\.$",
    ),
    "parameter, with a name like it": (
        saved({**BETWEEN, "kwargs": {"column": "a", "min_value": {"$PARAMETER": "unsued"}}}),
        r"the suite parameter unsued has no value; did you mean unused\?$",
    ),
    # YAML's nodes of some megabytes, which have the lines, take minutes to make.
    "too large for its lines to be looked for": (
        saved({"type": "zzz", "kwargs": {}, "meta": {"notes": "x" * 2**20}}),
        r"^suite\.json: expectations\.0\.type: Great Expectations has no zzz",
    ),
    "hundreds of changes": (
        saved(*({"type": "zzz", "kwargs": {}} for _ in range(300))),
        r"needs 300 changes(.*\n){101}  and 200 more$",
    ),
    "SQL": (
        saved({"type": "expect_column_values_to_match_like_pattern", "kwargs": {"column": "a", "like_pattern": "a%"}}),
        r"expectations.0.type: .* needs a SQL database",
    ),
    "no text": (
        b"\xff\xfe",
        r"contract.suite: suite.json in .* cannot be read as text: its byte 0 is not UTF-8; save it as UTF-8\.$",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_suite_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    text, sentence = BAD[case]
    if text is not None:
        (tmp_path / "suite.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError, match=sentence):
        load_suite("suite.json", tmp_path, {"unused": 1})


def test_a_path_that_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "orders.json").write_text(saved(NOT_NULL))
    assert refusal(SpecError, load_suite, "suites/oders.json", tmp_path) == (
        f"contract.suite: there is no file suites/oders.json in {tmp_path}; did you mean suites/orders.json?"
    )
    said = f"contract.suite: suites is a folder in {tmp_path}; name the suite's JSON file in it."
    assert refusal(SpecError, load_suite, "suites", tmp_path) == said


def test_an_inline_suite_is_named_by_its_field(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^contract.suite: expectations.0.kwargs.min: "):
        load_suite({"expectations": [{**BETWEEN, "kwargs": {"column": "a", "min": 1}}]}, tmp_path)


def test_what_is_refused_after_loading_has_the_files_line_too(tmp_path: Path) -> None:
    text = json.dumps({"expectations": [NOT_NULL, NOT_NULL]}, indent=1)
    (tmp_path / "s.json").write_text(text)
    line = 1 + text[: text.rindex('"column"')].count("\n")
    said = "contract.suite: expectations.1.kwargs.column: it is refused."
    assert with_line(said, "contract.suite", "s.json", tmp_path) == said.replace("contract.suite", f"s.json:{line}")
    unplaced = [(said, "features.suite", "s.json"), (said, "contract.suite", {}), (said, "contract.suite", "gone.json")]
    for message, field, suite in [*unplaced, ("contract.suite: expectations", "contract.suite", "s.json")]:
        assert with_line(message, field, suite, tmp_path) == message


def test_what_great_expectations_saves_is_read(tmp_path: Path) -> None:
    import great_expectations as gx
    import great_expectations.expectations as gxe

    context = gx.get_context(mode="ephemeral")

    def save(name: str) -> str:
        made = gx.ExpectationSuite(name=name, notes="n")
        made.add_expectation(gxe.ExpectColumnValuesToBeBetween(column="a", min_value=0, mostly=0.9, severity="warning"))
        made.add_expectation(gxe.ExpectColumnToExist(column="b", notes="why", meta={"owner": "us"}))
        (tmp_path / f"{name}.json").write_text(json.dumps(context.suites.add(made).to_json_dict()))
        return f"{name}.json"

    loaded = [load_suite(save(name), tmp_path) for name in ("one", "two")]
    assert loaded[0]["expectations"][0]["severity"] == "warning"
    assert "id" not in json.dumps(loaded[0])
    assert "great_expectations_version" not in json.dumps(loaded[0])
    assert suite_digest(loaded[0]) == suite_digest(loaded[1])


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"id": "x"}, True),
        ({"meta": {"owner": "us"}}, True),
        ({"description": "as agreed"}, True),
        ({"severity": "critical"}, True),
        ({"severity": "warning"}, False),
        ({"kwargs": {"column": "b"}}, False),
        ({"kwargs": {"column": "a", "mostly": 0.5}}, False),
        ({"kwargs": {"column": "a", "result_format": "COMPLETE"}}, True),
        ({"type": "expect_column_values_to_be_null"}, False),
    ],
)
def test_the_digest_covers_what_decides(change: dict[str, Any], same: bool, tmp_path: Path) -> None:
    plain = suite_digest(load_suite({"name": "s", "expectations": [NOT_NULL]}, tmp_path))
    other = suite_digest(load_suite({"name": "other", "id": "1", "expectations": [{**NOT_NULL, **change}]}, tmp_path))
    assert (plain == other) is same


def test_a_parameter_of_the_suite_is_replaced_by_its_value() -> None:
    """So a value that is used is part of the suite's digest, and so of the reuse key; no other is."""
    kwargs = {"column": "a", "value_set": [1, {"$PARAMETER": "two"}], "mostly": {"$PARAMETER": "share"}}
    kind = "expect_column_values_to_be_in_set"
    suite = {"name": "s", "expectations": [{"type": kind, "kwargs": kwargs}]}
    loaded = load_suite(suite, Path(), {"two": 2, "share": 0.5, "unused": 1})
    assert loaded["expectations"][0]["kwargs"] == {"column": "a", "value_set": [1, 2], "mostly": 0.5}
    assert suite_digest(loaded) == suite_digest(load_suite(suite, Path(), {"two": 2, "share": 0.5}))
    assert suite_digest(loaded) != suite_digest(load_suite(suite, Path(), {"two": 3, "share": 0.5}))


# As `great_expectations suite new` of 0.15 to 0.18 saved it, for the runtimes of that time.
OLD: dict[str, Any] = {
    "data_asset_type": None, "ge_cloud_id": None, "expectation_suite_name": "orders.warning",
    "meta": {"great_expectations_version": "0.18.22", "citations": [{"comment": "made by a profiler"}]},
    "evaluation_parameters": {},
    "expectations": [
        {"expectation_type": "expect_column_values_to_not_be_null", "ge_cloud_id": None, "meta": {},
         "kwargs": {"column": "a", "catch_exceptions": True, "result_format": "BASIC", "include_config": True}},
        {"expectation_type": "expect_column_values_to_be_between", "meta": {"notes": "from the profiler"},
         "kwargs": {"column": "a", "min_value": {"$PARAMETER": "low", "$PARAMETER.low": 3}, "auto": False,
                    "parse_strings_as_datetimes": False, "allow_cross_type_comparisons": None,
                    "output_strftime_format": None, "mostly": 0.9,
                    "row_condition": "b==\"x\"", "condition_parser": "pandas"}},
        {"expectation_type": "expect_column_values_to_be_in_type_list", "meta": {},
         "kwargs": {"column": "a", "type_list": ["INTEGER", "integer", "BIGINT", "int64", "IntegerType", "LongType"]}},
    ],
}  # fmt: skip


def test_a_suite_of_great_expectations_0_means_what_its_new_form_means(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps(OLD, indent=1))
    between = {"column": "a", "min_value": 5, "mostly": 0.9, "row_condition": 'b=="x"', "condition_parser": "pandas"}
    new = {"name": "orders.warning", "expectations": [
        NOT_NULL,
        {"type": "expect_column_values_to_be_between", "kwargs": between},
        {"type": "expect_column_values_to_be_in_type_list", "kwargs": OLD["expectations"][2]["kwargs"]},
    ]}  # fmt: skip
    loaded = load_suite("old.json", tmp_path, {"low": 5})
    assert loaded["name"] == "orders.warning"
    assert suite_digest(loaded) == suite_digest(load_suite(new, tmp_path))
    assert parameters_of("old.json", tmp_path) == {"low"}


def test_all_changes_that_a_suite_needs_are_listed_at_once(tmp_path: Path) -> None:
    entries = [
        (
            "expect_column_values_to_be_between",
            {"column": "t", "min_value": "2026", "parse_strings_as_datetimes": True},
        ),
        ("expect_column_chisquare_test_p_value_to_be_greater_than", {"column": "a", "partition_object": {}, "p": 0.05}),
        ("expect_multicolumn_values_to_be_unique", {"column_list": ["a", "b"]}),
        ("expect_column_pair_cramers_phi_value_to_be_less_than", {"column_A": "a", "column_B": "b"}),
        ("expect_column_values_to_be_in_type_list", {"column": "a", "type_list": ["StringType", "VARCHAR(20)"]}),
        ("expect_column_values_to_not_be_null", {"column": "a"}),
        ("expect_column_mean_to_be_between", {"column": "a", "min_value": {"$PARAMETER": "low", "$PARAMETER.low": 3}}),
        ("expect_column_values_to_not_be_null", {"column": "a", "row_condition": "a.str.len() > 3"}),
    ]
    old = {**OLD, "expectations": [{"expectation_type": name, "kwargs": kwargs} for name, kwargs in entries]}
    (tmp_path / "old.json").write_text(json.dumps(old, indent=1))
    first, *lines = refusal(SpecError, load_suite, "old.json", tmp_path).split("\n  ")
    assert first == "old.json: the suite needs 7 changes:"
    wanted = [
        r"0.kwargs.parse_strings_as_datetimes: .* any more: texts are not read as times; leave it out, and store",
        r"1.type: .* any more; use expect_column_kl_divergence_to_be_less_than, or contract.drift",
        r"2.type: .* any more; use expect_select_column_values_to_be_unique_within_record",
        r"3.type: .* any more; write a class of your own",
        r"4.kwargs.type_list: StringType, VARCHAR\(20\): no type of pandas",
        r"6.kwargs.min_value: the suite parameter low has no value; give it one in contract.parameters",
        r"7.kwargs.row_condition: 'a.str.len\(\) > 3' is not a condition on rows",
    ]
    for line, sentence in zip(lines, wanted, strict=True):
        assert re.search(rf"^old.json:\d+: expectations.{sentence}", line), line
    numbers = [int(line.split(":")[1]) for line in lines]
    assert numbers == sorted(set(numbers))


# Names of types in suites of pandas 1 and 2, and the columns that have one of them.
TYPES = {
    **{name: {"text", "category"} for name in ("object", "str", "string", "category")},
    **{name: {"whole"} for name in ("int64", "Int64")},
    **{name: {"float"} for name in ("float64", "Float64")},
    **{name: {"flag"} for name in ("bool", "boolean")},
    **{name: {"time"} for name in ("datetime64[ns]", "datetime64")},
}


def test_types_by_the_names_of_older_pandas() -> None:
    columns = {
        "text": ["a"], "category": pa.array(["a"]).dictionary_encode(), "whole": [1], "float": [1.5], "flag": [True],
        "time": pa.array([0], pa.timestamp("us")),
    }  # fmt: skip
    asked = [(name, column) for name in TYPES for column in columns]
    entries = [E("column_values_to_be_of_type", column=column, type_=name) for name, column in asked]
    failed = {asked[failure.index] for failure in run(pa.table(columns), *entries, resources=None).failures}
    assert {(name, column) for name, column in asked if (name, column) not in failed} == {
        (name, column) for name, having in TYPES.items() for column in having
    }
