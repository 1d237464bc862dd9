"""Expectations of a user's own run on their column or on all of the data; what is wrong with them is one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError, UserCodeError
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import ContractOutcome, ContractRequest
from data_contracts.pipeline_spec import QuarantineSpec, SourceSpec
from infra.sources import resolve_sources
from tests.support.tiny import own_modules
from training.user.contract_worker import main

CODE = '''
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import (
    BatchExpectation, ColumnAggregateExpectation, ColumnMapExpectation, render_suite_parameter_string)
from great_expectations.expectations.metrics import ColumnMapMetricProvider, column_condition_partial
from great_expectations.expectations.core import ExpectColumnValuesToBeBetween as Between


class EvenIds(ColumnMapMetricProvider):
    condition_metric_name = "checks_of_a_test.even"
    condition_value_keys = ("base",)

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column, base, **kwargs):
        return column % base == 0


class ExpectEvenIds(ColumnMapExpectation):
    map_metric = "checks_of_a_test.even"
    success_keys = ("base", "mostly")
    base: int = 2


class ExpectColumnValuesToBeBetween(Between):
    """It has the name of an expectation of the catalogue."""


class ExpectHundreds(Between):
    column: str = "id"
    min_value: int = 100
    max_value: int = 200


class ExpectFewRows(BatchExpectation):
    metric_dependencies = ("table.row_count",)

    def _validate(self, metrics, runtime_configuration=None, execution_engine=None):
        return {"success": metrics["table.row_count"] < 3, "result": {"observed_value": 4711}}


class ExpectBelowWorst(BatchExpectation):
    """It names one column and reads another."""
    metric_dependencies = ("table.columns",)
    column: str

    def _validate(self, metrics, runtime_configuration=None, execution_engine=None):
        return {"success": False, "result": {"observed_value": execution_engine.get_domain_records({})["name"].max()}}


class ExpectWrong(ExpectFewRows):
    def get_validation_dependencies(self, *args, **kwargs):
        return {}["no such thing"]


class Other: ...
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "checks_of_a_test.py").write_text(CODE)
    (folder / "rows.csv").write_text("id,name\n1,a\n2,b\n,c\n4,d\n5,e\n")
    with own_modules():
        yield folder


def asked(project: Path, *entries: dict[str, Any], **more: Any) -> ContractOutcome:
    sources = [SourceSpec(uri="rows.csv")]
    files: list[SourceFile] = resolve_sources(
        sources, root=project, window=None, cache=project / "digests", rehash=False, window_path=None
    )
    listed = [
        {"kwargs": {}, "severity": "critical", **one, **({"type": one["class_path"]} if "class_path" in one else {})}
        for one in entries
    ]
    request = ContractRequest(
        suite={"name": "s", "expectations": listed},
        files=files,
        sources=sources,
        root=str(project),
        window=None,
        window_column=None,
        fail_on="critical",
        **{"sensitive": [], "profile": False, "project": str(project), **more},
    )
    return main(request, lambda _: None)


def own(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"class_path": f"checks_of_a_test.{name}", "kwargs": kwargs}


def test_rows_that_break_an_expectation_of_the_users_own_are_named(project: Path) -> None:
    between = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "min_value": 1}}
    found = asked(project, own("ExpectEvenIds", column="id"), own("ExpectHundreds"), between)
    even, hundred = found.failures
    assert (even.expectation, even.column, even.rows, even.row_numbers) == (
        "checks_of_a_test.ExpectEvenIds",
        "id",
        2,
        [0, 4],
    )
    assert even.sentence == "checks_of_a_test.ExpectEvenIds on id: 2 of 4 rows (rows 0, 4) broke it"
    # Its class says the column and the bounds; one of its module does not replace the catalogue's of the same name.
    assert (hundred.column, hundred.rows) == ("id", 4)
    assert asked(
        project, own("ExpectEvenIds", column="id", base=1), own("ExpectEvenIds", column="id", mostly=0.5)
    ).accepted
    assert "has no column od" in asked(project, own("ExpectEvenIds", column="od")).failures[0].sentence


def test_rows_that_break_one_are_set_aside(project: Path, tmp_path: Path) -> None:
    more = {"quarantine": QuarantineSpec(max_share=0.5), "folder": str(tmp_path)}
    found = asked(project, own("ExpectEvenIds", column="id"), **more)
    assert found.accepted
    assert found.quarantine.rows == 2


def test_what_is_about_the_data_sees_all_of_it_and_says_nothing_beside_sensitive_columns(project: Path) -> None:
    (plain,) = asked(project, own("ExpectFewRows")).failures
    assert plain.observed == "4711"
    (masked,) = asked(project, own("ExpectFewRows"), sensitive=["name"]).failures
    assert masked.sentence == "checks_of_a_test.ExpectFewRows: what was observed broke it"


def test_what_reads_a_sensitive_column_shows_nothing_whichever_column_it_names(project: Path) -> None:
    (plain,) = asked(project, own("ExpectBelowWorst", column="id")).failures
    assert plain.observed == "e"
    chosen = own("ExpectEvenIds", column="id", row_condition="name > 'd'", condition_parser="pandas")
    alone = own("ExpectEvenIds", column="id")
    found = asked(project, own("ExpectBelowWorst", column="id"), chosen, alone, sensitive=["name"]).failures
    assert [(one.observed, one.values, one.index) for one in found] == [
        ("", [], 0), ("", ["•••"], 1), ("", ["1", "5"], 2),
    ]  # fmt: skip
    assert found[0].sentence == "checks_of_a_test.ExpectBelowWorst on id: what was observed broke it"


REFUSED = {
    "not an expectation": (own("Other"), "checks_of_a_test.Other is not an Expectation."),
    "a function": ({"class_path": "os.getcwd"}, "os.getcwd is not an Expectation."),
    "no such class": (own("Even"), "checks_of_a_test.Even was not found: module checks_of_a_test has no Even."),
    "no such module": ({"class_path": "nowhere.A"}, "nowhere.A was not found: there is no module nowhere."),
    "an abstract class": (
        {"class_path": "great_expectations.expectations.expectation.ColumnMapExpectation"},
        "great_expectations.expectations.expectation.ColumnMapExpectation is abstract",
    ),
    "a name of the catalogue": (
        own("ExpectColumnValuesToBeBetween", column="id", min_value=1),
        "checks_of_a_test.ExpectColumnValuesToBeBetween has the name of another expectation; give it a name",
    ),
    "another argument": (
        own("ExpectEvenIds", column="id", bas=3),
        "contract.suite: expectations.0.kwargs.bas: checks_of_a_test.ExpectEvenIds refuses the value: extra fields not "
        "permitted.",
    ),
    "an argument too few": (own("ExpectEvenIds"), "kwargs.column: checks_of_a_test.ExpectEvenIds refuses the value"),
}


@pytest.mark.parametrize(("entry", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_an_expectation_is_refused_in_one_sentence(entry: Any, sentence: Any, project: Path) -> None:
    with pytest.raises(SpecError) as error:
        asked(project, entry)
    assert sentence in error.value.message
    assert error.value.message.startswith("contract.suite: expectations.0.")
    assert error.value.exit_code == 2


def test_what_the_users_code_raises_is_theirs(project: Path) -> None:
    with pytest.raises(UserCodeError, match="contract.suite raised KeyError"):
        asked(project, own("ExpectWrong"))


def test_where_one_raises_on_rows_these_are_named(project: Path) -> None:
    [failure] = asked(project, own("ExpectEvenIds", column="name")).failures
    assert "it could not be computed (name is string): on rows 0 to 4 of the data: " in failure.sentence
