"""The page of a search shows how it stands, at any time, and whatever a field is called."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tasks.charts.plots import Axis, parallel
from tasks.search.page import keep_page, search_page, sentence
from tasks.search.search import SearchResult, Trial
from tests.unit.tasks.search.test_study import SPACE, record

ADAM = {"train.lr": 0.01, "train.width": 16, "train.optimizer": "adam"}
SGD = {**ADAM, "train.lr": 0.0001, "train.optimizer": "sgd", "train.momentum": 0.5}


def trials() -> list[Trial]:
    return [
        Trial(0, SGD, "finished", 5.0, [6.0, 5.0], node_seconds=3600.0, usd=0.5, run_id="run-a"),
        Trial(1, ADAM, "pruned", None, [9.0], node_seconds=360.0),
        Trial(2, ADAM, "finished", 2.5, [4.0, 2.5], node_seconds=3600.0, run_id="run-c"),
        Trial(3, ADAM, "failed", sentence="<b>no such layer</b>"),
        Trial(4, SGD),
    ]


def test_it_has_the_trials_the_best_and_what_they_used() -> None:
    text = search_page(SearchResult(record(), trials()), {"train.lr": 0.9, "train.width": 0.1})
    assert "4 of at most 50 trials are over; the best is trial 2: 2.5." in text
    assert len(re.findall("<svg", text)) == 4
    assert "2.10" in text, "node-hours"
    assert "&lt;b&gt;no such layer&lt;/b&gt;" in text
    assert "<b>" not in text
    for words in ("run-a", "run-c", "0.5000 USD", "momentum", "trial 2", "90%"):
        assert words in text


@pytest.mark.parametrize("known", [[], trials()[1:2], trials()[4:], trials()[:1]], ids=len)
def test_it_can_be_made_at_any_time(known: list[Trial]) -> None:
    text = search_page(SearchResult(record("max"), known, over="Nothing is left."), {})
    assert "Nothing is left." in text


def test_the_best_is_the_largest_or_the_smallest() -> None:
    assert "trial 2" in sentence(SearchResult(record("min"), trials()))
    assert "trial 0" in sentence(SearchResult(record("max"), trials()))


def test_it_is_kept_where_only_its_owner_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))
    path = keep_page(SearchResult(record(), trials()), {})
    assert path == tmp_path / "pages" / "search-tiny.html"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_crosses_each_axis_at_its_value_and_leaves_out_what_it_has_not() -> None:
    axes = [Axis("a", [1.0, 100.0, 10.0], log=True), Axis("b", ["x", None, "y"]), Axis("c", [0.0, 1.0, None])]
    lines = re.findall(r'<path d="M([^"]+)"', parallel(axes, 1, "three lines"))
    points = [[tuple(map(float, point.split())) for point in line.split("L")] for line in lines]
    assert [[x for x, _ in line] for line in points] == [[75, 225, 375], [75, 225], [75, 375]]
    first, third, marked = points
    # In a logarithm, 10 is in the middle of 1 and 100; upwards is more.
    assert first[0][1] - third[0][1] == pytest.approx(third[0][1] - marked[0][1], abs=0.1)
    assert first[0][1] > marked[0][1]
    assert first[2][1] > marked[1][1]


def test_no_lines_are_no_picture() -> None:
    assert parallel([Axis("a", [])], None, "none") == ""
    assert set(SPACE) == set(record().spec.space)
