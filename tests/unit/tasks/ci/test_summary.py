"""The summary: verdict first, escaped, and never larger than the host accepts."""

from __future__ import annotations

import re

import pytest

from tasks.ci import cut, summary
from tests.support.ci_reports import HOSTILE, case, promoted, report


def test_the_page_of_a_run_has_the_verdict_first_and_what_failed_first() -> None:
    page = summary(report(case(status="passed", name="loss: max 1"), case()), ["The remote run is of another commit."])
    lines = page.splitlines()
    assert lines[0] == "## ❌ tiny: not promoted"
    assert "> The remote run is of another commit." in lines
    assert [line for line in lines if "min 0.9" in line or "max 1" in line] == [
        "| ❌ | accuracy: min 0.9 | it is 0.5 |",
        "| ✅ | loss: max 1 | it is 0.5 |",
    ]
    assert "| Cost | 0.5000 USD = 8 node-seconds × 225 USD/h (gpu, price of 2026-11-01) |" in lines
    assert "Model" not in page
    assert "| Model | `tiny@champion` version 2 |" in summary(promoted()).splitlines()


@pytest.mark.parametrize("where", ["name", "sentence", "note", "run"])
def test_no_text_becomes_markup(where: str) -> None:
    made = report(sentence=HOSTILE) if where == "run" else report(case(**({where: HOSTILE} if where != "note" else {})))
    page = summary(made, [HOSTILE] if where == "note" else [])
    page.encode()
    assert not re.search(r"\x1b|\u202e", page)
    assert not re.search(r"(?<!\\)<img|(?<!\\)\]\(", re.sub("`[^`\n]*`", "code", page))
    assert [line for line in page.splitlines() if line.startswith("::")] == []


@pytest.mark.parametrize(("most", "kept"), [(1000, 1000), (999, None), (120, None), (40, 0), (0, 0), (-5, 0)])
def test_a_page_is_cut_at_a_line_and_says_so(most: int, kept: int | None) -> None:
    page = ("ä" * 49 + "a\n") * 9 + "b" * 100
    assert len(page.encode()) == 1000
    made = cut(page, most)
    assert len(made.encode()) <= max(most, 0)
    if kept is not None:
        assert len(made.encode()) == kept
        return
    whole, _, said = made.partition("\n\n**")
    assert "is cut here" in said
    assert set(filter(None, whole.split("\n"))) <= {"ä" * 49 + "a"}
