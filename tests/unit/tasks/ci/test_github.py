"""GitHub's workflow commands: escaped, ten of a kind, the most important first."""

from __future__ import annotations

import pytest

from tasks.ci import Finding, github_outputs, workflow_commands


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (Finding("error", "gate failed", "9 %", "a.yaml", 7), "::error file=a.yaml,line=7,title=gate failed::9 %25"),
        (Finding("warning", "a,b:c%", "x"), "::warning title=a%2Cb%3Ac%25::x"),
        (Finding("notice", "t", "a\n::error::b\r\n", "f,line=1::g"),
         "::notice file=f%2Cline=1%3A%3Ag,line=1,title=t::a%0A::error::b%0D%0A"),
    ],
)  # fmt: skip
def test_a_finding_is_one_line_in_which_nothing_begins_another_command(finding: Finding, line: str) -> None:
    assert workflow_commands([finding]) == [line]


@pytest.mark.parametrize(("number", "shown"), [(0, 0), (1, 1), (10, 10), (11, 10), (500, 10)])
def test_ten_of_a_kind_are_shown_and_the_last_says_how_many_more(number: int, shown: int) -> None:
    errors = [Finding("error", "t", f"sentence {n}") for n in range(number)]
    lines = workflow_commands([*errors, Finding("warning", "t", "mild")])
    assert [line.split(" ")[0] for line in lines] == ["::error"] * shown + ["::warning"]
    if number > shown:
        assert lines[0].endswith("::sentence 0")
        assert lines[shown - 1].startswith(f"::error title={number - 9} more::")


def test_outputs_are_lines_that_no_value_can_continue() -> None:
    assert github_outputs({"run_id": "a", "version": ""}) == "run_id=a\nversion=\n"
    with pytest.raises(AssertionError, match="other outputs"):
        github_outputs({"a": "b\nverdict=promoted"})
