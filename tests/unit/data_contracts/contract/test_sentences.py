"""Each expectation of the catalogue has a sentence that names its columns and says every argument."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from data_contracts.contract import reports
from data_contracts.contract.reports import SENTENCES, sentence

CATALOGUE = json.loads(Path(reports.__file__).with_name("expectations.json").read_text())["expectations"]
VALUES: dict[str, Any] = {
    "column": "amount",
    "column_A": "from",
    "column_B": "to",
    "column_list": ["from", "to"],
    "column_set": ["from", "to"],
    "value_set": ["a", {"b": 1}],
    "value_pairs_set": [["a", "b"]],
    "min_value": 17,
    "max_value": 4711,
    "mostly": 0.975,
    "row_condition": "col('x') > 3",
    "ignore_row_if": "never",
    "strict_min": True,
    "strict_max": True,
    "strictly": True,
    "or_equal": True,
    "regex": r"^\d{4}$",
    "regex_list": [r"^\d{4}$"],
}
SAID = {
    "mostly": "97.5%",
    "ignore_row_if": "every row counts",
    "strict_min": "more than 17",
    "strict_max": "less than 4711",
    "strictly": "equal neighbours are not allowed",
    "or_equal": "equal values are allowed",
}


def test_the_catalogue_and_the_sentences_have_the_same_names() -> None:
    assert set(SENTENCES) == set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("optional", [False, True])
def test_every_argument_is_said(name: str, optional: bool) -> None:
    arguments = CATALOGUE[name]["required"] + (CATALOGUE[name]["optional"] if optional else [])
    kwargs = {one: VALUES.get(one, f"value of {one}") for one in arguments}
    words = sentence({"type": name, "kwargs": kwargs})
    for one, value in kwargs.items():
        if one == "condition_parser":
            continue
        listed = value if isinstance(value, list) else [value]
        for part in [SAID[one]] if one in SAID else listed:
            shown = part if isinstance(part, str) and one in SAID else reports._value(part).strip('"')
            assert shown in words, (one, words)
    assert words.endswith(".")
    assert not re.search(r"\{[a-zA-Z_]+\}", words)
    assert words[0] == "`" or words[0].isupper()


PLAIN = {
    "`a` is at least 0 and at most 9.5 in at least 90% of the rows.": {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "a", "min_value": 0, "max_value": 9.5, "mostly": 0.9},
    },
    "No value of `id` occurs twice, for at least 99.9% of the rows.": {
        "type": "expect_column_values_to_be_unique",
        "kwargs": {"column": "id", "mostly": 0.999},
    },
    '`a` has a value in every row, where "b == 1".': {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "a", "row_condition": "b == 1", "condition_parser": "pandas", "mostly": 1.0},
    },
    "The number of rows is exactly 3.": {
        "type": "expect_table_row_count_to_be_between",
        "kwargs": {"min_value": 3, "max_value": 3},
    },
    "The mean of `a` is more than the parameter low.": {
        "type": "expect_column_mean_to_be_between",
        "kwargs": {"column": "a", "min_value": {"$PARAMETER": "low"}, "strict_min": True},
    },
    "Column values to be prime on `a{b}` (of: 3).": {
        "type": "expect_column_values_to_be_prime",
        "kwargs": {"column": "a{b}", "of": 3},
    },
    # Severity and description come last.
    "There is a column `a` (a warning). [by law]": {
        "type": "expect_column_to_exist",
        "kwargs": {"column": "a"},
        "severity": "warning",
        "description": "by law",
    },
    "`checks.Even`, an expectation of your own, holds for `a` (base: 2).": {
        "type": "checks.Even",
        "class_path": "checks.Even",
        "kwargs": {"column": "a", "base": 2},
    },
}


@pytest.mark.parametrize("words", PLAIN)
def test_sentences(words: str) -> None:
    assert sentence(PLAIN[words]) == words
