"""A page of Data Docs loads nothing from anywhere, runs nothing, and shows nothing of a sensitive column."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import pytest

from data_contracts.contract.great_expectations_engine import data_docs
from data_contracts.contract.reports import results_of
from data_contracts.handoffs import ContractReport, Failure, RowPlace

FORGED = "<script>alert(1)</script><img src=https://evil.example/x.png> $a {{ 7*7 }}"
SUITE = {
    "name": FORGED,
    "expectations": [
        {"type": f"expect_{name}", "kwargs": kwargs, "severity": severity}
        for name, kwargs, severity in (
            ("column_values_to_be_in_set", {"column": "a", "value_set": [FORGED, 1]}, "critical"),
            ("column_values_to_be_between", {"column": "secret", "min_value": 98765, "max_value": 98766}, "critical"),
            ("column_values_to_match_regex", {"column": "secret", "regex": "98765"}, "critical"),
            ("column_quantile_values_to_be_between",
             {"column": "secret", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[98765, 98766]]}}, "info"),
            ("column_mean_to_be_between", {"column": "b", "min_value": 5}, "warning"),
            ("table_row_count_to_be_between", {"min_value": 1}, "critical"),
        )
    ],
}  # fmt: skip


def failure(at: int, **fields: object) -> Failure:
    entry = SUITE["expectations"][at]
    known = {"expectation": entry["type"], "column": entry["kwargs"].get("column"), "severity": entry["severity"]}
    return Failure.model_validate({"rows": 0, "sentence": "s", **known, **fields})


def test_what_a_page_holds_and_what_it_does_not() -> None:
    rows = {"rows": 2, "row_numbers": [3], "values": [FORGED], "places": [RowPlace(file="d/x.csv", row=3)]}
    masked = {"rows": 1, "row_numbers": [4], "values": ["•••"]}
    found = [failure(0, **rows), failure(1, **masked), failure(4, observed="0.25")]
    report = ContractReport(key="k", accepted=False, rows=600, expectations=6, failures=found, suite_digest="x")
    page = data_docs(
        results_of(SUITE, report, None, ["secret"]), report, SUITE["name"], "run-1", "2026-11-23T00:00:00Z"
    )
    assert re.findall(r"<(?:script|link|img|iframe|object)\b", page, re.IGNORECASE) == []
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "{{ 7*7 }} (row 3 of d/x.csv)" in page
    assert re.findall(r"""href=["'](?!#)[^"']*""", page) == []
    assert "98765" not in page
    assert "•••" in page
    assert "0.25" in page
    assert page.count("its arguments are not shown, because a column is sensitive") == 3


def shown(
    kwargs: dict[str, object], found: Failure | None = None, sensitive: Sequence[str] = (), **entry: object
) -> str:
    """The text of the page of one expectation."""
    failures = [] if found is None else [found]
    return page_of([{"severity": "critical", "kwargs": kwargs, **entry}], failures, sensitive)


def page_of(entries: list[dict[str, Any]], failures: list[Failure], sensitive: Sequence[str]) -> str:
    """The text of the page of a suite's expectations."""
    suite = {"name": "s", "expectations": entries}
    report = ContractReport(
        key="k", accepted=not failures, rows=600, expectations=1, failures=failures, suite_digest="x"
    )
    page = data_docs(results_of(suite, report, None, sensitive), report, "s", "run-1", "2026-11-23T00:00:00Z")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


@pytest.mark.parametrize(
    ("of", "expected", "absent"),
    [(10, "20% of 10 total rows", "of 600"), (0, "2 rows broke it", "%")],  # 0: a report of an earlier version
)
def test_a_share_is_of_the_rows_that_were_asked(of: int, expected: str, absent: str) -> None:
    kind = "expect_column_values_to_be_in_set"
    found = Failure(
        expectation=kind, column="a", severity="critical", rows=2, of=of, row_numbers=[3], values=["b"], sentence="s"
    )
    page = shown({"column": "a", "value_set": ["x"], "row_condition": 'col("c")==1'}, found, type=kind)
    assert expected in page
    assert "b (row 3)" in page
    assert absent not in page.partition("Observed Value")[2]


@pytest.mark.parametrize(("mostly", "said"), [({}, True), ({"mostly": 0.9}, False)])
def test_no_share_is_claimed_of_one_that_holds_for_most(mostly: dict[str, object], said: bool) -> None:
    page = shown({"column": "a", "value_set": ["x"], **mostly}, type="expect_column_values_to_be_in_set")
    assert ("0% unexpected" in page) is said


@pytest.mark.parametrize("kwargs", [{"column": "a", "odd": [1]}, {"odd": 3}])
def test_an_expectation_of_ones_own_is_shown_without_its_class(kwargs: dict[str, object]) -> None:
    path = "not_to_be_imported.Even"
    found = Failure(
        expectation=path, column=kwargs.get("column"), severity="critical", rows=1, of=8, values=["v"], sentence="s"
    )
    assert f"`{path}`, an expectation of your own, holds" in shown(kwargs, type=path, class_path=path)
    page = shown(kwargs, found, type=path, class_path=path)
    assert "1 unexpected values found. 12.5% of 8 total rows" in page
    assert "not_to_be_imported" not in sys.modules


LEAF = {"type": "comparison", "column": {"name": "c"}, "operator": "==", "parameter": "v98765"}
ARGUMENTS: dict[str, object] = {
    "column_list": ["a", "b"], "column_set": ["a", "b"], "column_A": "a", "column_B": "b", "column": "a",
    "value_set": ["v98765", 1], "value_pairs_set": [["v98765", "y"]], "regex": "v98765", "regex_list": ["v98765"],
    "match_on": "all", "min_value": "2026-01-01", "max_value": "2027-01-01", "mostly": 0.5, "row_condition": LEAF,
    "condition_parser": "great_expectations", "ignore_row_if": "both_values_are_missing", "type_": "v98765",
    "type_list": ["v98765"], "json_schema": {"const": "v98765"}, "strftime_format": "%Yv98765", "value": 98765,
    "sum_total": 98765, "threshold": 98765, "double_sided": True, "column_index": 1, "exact_match": True,
    "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[98765, 98766]]}, "method": "iqr", "multiplier": 1.5,
}  # fmt: skip
CATALOGUE = json.loads((files("data_contracts.contract") / "expectations.json").read_text())["expectations"]


@pytest.mark.parametrize("of_numbers", [False, True])
@pytest.mark.parametrize("sensitive", [[], ["a", "c"]])
def test_each_kind_of_expectation_has_its_line(sensitive: list[str], of_numbers: bool) -> None:
    entries, failures = [], []
    for kind, names in CATALOGUE.items():
        given = {name: ARGUMENTS[name] for name in (*names["required"], *names["optional"]) if name in ARGUMENTS}
        if sensitive and given.keys().isdisjoint(("column", "column_A", "column_list", "row_condition")):
            continue
        if of_numbers or "column_values" not in kind:
            given |= {name: 98765 for name in ("min_value", "max_value") if name in given}
        if "ignore_row_if" in given and "column_list" in given:
            given["ignore_row_if"] = "all_values_are_missing"
        found = {"rows": 0, "observed": f"seen {kind}.", "sentence": "s", "index": len(entries)}
        failures.append(Failure(expectation=kind, column=given.get("column"), severity="critical", **found))
        entries.append({"type": kind, "kwargs": given, "severity": "critical"})
    assert len(entries) > 30
    for broken in (failures, []):
        page = page_of(entries, broken, sensitive)
        assert all(f"{one.observed}" in page for one in broken)
        assert page.count("its arguments are not shown") == (len(entries) if sensitive else 0)
        assert ("98765" in page) is not bool(sensitive)
