"""`trainwright gc`: what it prints, what it deletes, and which store it may touch."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli import main
from infra.store import open_store
from tests.support.commands import json_of, output_of
from tests.support.histories import OLD_S, YOUNG_S, History


@pytest.fixture
def history(current_folder: Path, home: Path) -> History:
    history = History(open_store(".trainwright"))
    history.sealed("datasets", OLD_S)
    history.unsealed("datasets", OLD_S)
    history.sealed("datasets", YOUNG_S)
    history.ageing()
    return history


def test_a_dry_run_says_what_the_run_then_does(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    old, half, young = history.parts
    planned = json_of(capsys, "gc", "--dry-run", "--json")
    assert history.there() == {old, half, young}
    assert {one["uri"]: one["why"] for one in planned["things"]} == {
        old: "nothing names it, not used for 90 days",
        half: "never finished, untouched for 90 days",
    }
    assert planned["bytes"] == sum(one["bytes"] for one in planned["things"]) > 50
    lines = output_of(capsys, "gc").splitlines()
    assert [line.split()[0] for line in lines] == ["dataset", "dataset", "2"]
    assert "2 dataset deleted from" in lines[-1]
    assert "1 items stay" in lines[-1]
    assert history.there() == {young}


# arguments, how many of the three stay
@pytest.mark.parametrize(
    ("arguments", "stay"),
    [(["--keep-days", "100"], 2), (["--keep-days", "0", "--grace-hours", "0"], 0), (["--grace-hours", "9999"], 3)],
)
def test_ages_are_asked_for(arguments: list[str], stay: int, history: History) -> None:
    assert main(["gc", "--store", ".trainwright", *arguments]) == 0
    assert len(history.there()) == stay


def test_a_store_that_was_only_used_before_is_never_touched(
    home: Path, current_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "There is no store in this folder (.trainwright). Name one with --store." in output_of(capsys, "gc", code=2)
    assert (main(["gc", "--store", "elsewhere"]), main(["gc", "--store", ".", "--keep-days", "-1"])) == (2, 2)
