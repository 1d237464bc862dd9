"""A page about a contract: each expectation with what was observed, rows by file, no value of a sensitive column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from data_contracts.contract.reports import results_of
from data_contracts.errors import ContractRejected
from data_contracts.handoffs import ContractReport, Failure
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages import artifacts
from tasks.stages.artifacts import data_section
from tasks.stages.validate import validate
from tests.support.expectations import E
from tests.support.tiny import write_project

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.warm]


SUITE = {
    "name": "s",
    "expectations": [
        E("column_values_to_be_between", column="a", min_value=-1, max_value=1),
        E("column_values_to_be_between", column="a", min_value=-100),
        E("column_mean_to_be_between", "warning", column="b", min_value=5),
        E("column_values_to_not_be_null", column="c"),
        E("column_values_to_be_between", column="id", min_value=0, max_value=987),
        E("column_values_to_be_in_set", column="label", value_set=[0, 1]),
        E("table_row_count_to_be_between", min_value=1),
    ],
}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    spec = write_project(tmp_path / "tiny", {"data": {"source": "r*.csv", "sensitive": ["id"]}})
    head, *rows = (spec.parent / "rows.csv").read_text().splitlines()
    rows[3] = rows[3].replace(rows[3].split(",")[1], "7.5", 1)
    (spec.parent / "r2.csv").write_text("\n".join([head, *rows[:5]]) + "\n")
    return spec


def rows_of(page: str) -> list[list[str]]:
    shown = MarkdownIt("commonmark").enable("table").render(page)
    cells = [row.split("<td>")[1:] for row in shown.split("<tr>")[1:]]
    return [[cell.partition("</td>")[0] for cell in row] for row in cells if row]


def test_expectations_observed_values_rows_and_drift(spec: Path) -> None:
    first = validate(open_run(read_spec(spec, [f"contract.suite={json.dumps(SUITE)}", "contract.fail_on=critical",
                                               "data.source=rows.csv"]), recorded=False))  # fmt: skip
    rows = spec.parent / "rows.csv"
    pd.read_csv(rows, float_precision="round_trip").assign(c=0.9).to_csv(rows, index=False)
    run = open_run(read_spec(spec, [f"contract.suite={json.dumps(SUITE)}", f"contract.drift.against={first.ref.uri}"]))
    with pytest.raises(ContractRejected) as rejected:
        validate(run)
    page = artifacts.stage_page(run, "validate", error=rejected.value)
    assert page.startswith("# validate: rejected")
    found = rows_of(page)
    results = {(row[0], row[1]): row[2:] for row in found[: len(SUITE["expectations"])]}
    assert [result[0] for result in results.values()][:2] == ["broken by 1 rows", "holds"]
    by_text = {name[0]: result for name, result in results.items()}
    [mean] = [result for name, result in by_text.items() if "mean" in name]
    assert mean[0] == "broken"
    assert float(mean[1]) < 1
    assert by_text["`c` has a value in every row"] == ["holds", "0 of 605 missing"]
    assert by_text["expect_column_values_to_be_between on id"] == ["holds", ""]
    assert by_text["`label` is one of 0, 1 in every row"] == ["holds", "2 different values"]
    assert by_text["The number of rows is at least 1"] == ["holds", "605 rows"]
    assert "987" not in page
    assert "row 3 of `r2.csv`: `7.5`" in page
    assert "![histogram](data:image/svg+xml;base64," in page
    shown = "\n".join(data_section(run))  # as the run's own page has it
    assert "## Data" in shown
    assert "row 3 of `r2.csv`: `7.5`" in shown


def test_a_page_that_cannot_be_made_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(artifacts, "own_report", Mock(side_effect=KeyError("s3cret")))
    assert artifacts.data_section(cast(Any, None)) == []
    assert "s3cret" not in caplog.text


def report_of(*failures: Failure) -> ContractReport:
    return ContractReport(key="k", accepted=False, rows=3, expectations=2, failures=list(failures), suite_digest="x")


def test_a_report_of_an_earlier_version_names_what_broke_by_its_columns() -> None:
    found = Failure(
        expectation="expect_column_values_to_be_between", column="a", severity="critical", rows=1, sentence="s"
    )
    results = results_of(SUITE, report_of(found), None, [])
    assert [one.verdict for one in results][:3] == ["1 of 2 on this column are broken"] * 2 + ["holds"]


def test_an_expectation_of_ones_own_is_found_whose_class_says_the_column() -> None:
    own = {"type": "m.ExpectAge", "class_path": "m.ExpectAge", "kwargs": {"limit": 987}, "severity": "critical"}
    found = Failure(expectation="m.ExpectAge", column="age", severity="critical", rows=2, sentence="s", index=1)
    suite = {"name": "s", "expectations": [own, own]}
    plain, shown = (results_of(suite, report_of(found), None, sensitive)[1] for sensitive in ([], ["pay"]))
    assert (plain.verdict, plain.masked) == ("broken by 2 rows", False)
    assert "987" in plain.text
    # Whether it reads the sensitive column, only its class knows.
    assert (shown.verdict, shown.masked, shown.text) == ("broken by 2 rows", True, "m.ExpectAge")
