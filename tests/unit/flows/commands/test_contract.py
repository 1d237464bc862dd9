"""`contract`: explain reads what others wrote, and what cannot be done is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import output_of
from tests.support.tiny import SPEC, write_project

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("home")]


def explained(capsys: pytest.CaptureFixture[str], path: Path) -> Any:
    return json.loads(output_of(capsys, "contract", "explain", str(path), "--json"))


def test_explain_reads_a_suite_and_a_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_project(tmp_path)
    of_suite = explained(capsys, tmp_path / "suite.json")
    assert [one["sentence"] for one in of_suite["expectations"]] == [
        "`a` is at least -1 and at most 1 in every row.",
        "`label` is one of 0, 1 in every row.",
        "`b` has a value in every row.",
    ]
    assert explained(capsys, spec) == of_suite
    head = "tiny: 3 expectations; the mildest severity that rejects is critical\n- `a` is"
    assert output_of(capsys, "contract", "explain", str(spec)).startswith(head)


def test_explain_leaves_a_parameter_as_it_is_and_reads_all_suites_of_a_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    least = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "a", "min_value": {"$PARAMETER": "low"}},
    }
    suite = {"name": "p", "expectations": [least]}
    rare = {"name": "rare", "expectations": [{**least, "kwargs": {"column": "b", "max_value": {"$PARAMETER": "high"}}}]}
    evaluate = {
        **SPEC["evaluate"],
        "sets": {"hard": {"source": "rows.csv", "contract": {"suite": rare}}, "same": {"source": "rows.csv"}},
    }
    contract = {"suite": "p.json", "parameters": {"low": 0, "high": 9}, "features": {"suite": suite, "fail_on": "info"}}
    spec = write_project(tmp_path, {"contract": contract, "evaluate": evaluate})
    (tmp_path / "p.json").write_text(json.dumps(suite))
    of_suite = explained(capsys, tmp_path / "p.json")
    assert of_suite["expectations"][0]["sentence"] == "`a` is at least the parameter low in every row."
    found = explained(capsys, spec)
    assert found["expectations"][0]["sentence"] == "`a` is at least 0 in every row."
    assert {one["field"]: one["expectations"][0]["sentence"] for one in found["others"]} == {
        "contract.features.suite": "`a` is at least 0 in every row.",
        "evaluate.sets.hard.contract.suite": "`b` is at most 9 in every row.",
    }
    printed = output_of(capsys, "contract", "explain", str(spec))
    assert "contract.features.suite: p: 1 expectation; the mildest severity that rejects is info\n- `a`" in printed
    assert printed.endswith("The rows of evaluate.sets.same must meet the suite of contract, too.\n")


WRONG = {
    "infer takes one name, got 2": ("infer", "a.csv", "b.csv"),
    "--out has no effect": ("explain", "suite.json", "--out", "x"),
    "no file nothing.json": ("explain", "nothing.json"),
    "must not be empty": ("infer", " "),
    "empty.csv": ("infer", "empty.csv"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_cannot_be_done_is_one_sentence(
    sentence: str, current_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(current_folder)
    (current_folder / "empty.csv").write_text("a,b\n")
    said = output_of(capsys, "contract", *WRONG[sentence], code=2)
    assert sentence in said
    assert "Traceback" not in said
