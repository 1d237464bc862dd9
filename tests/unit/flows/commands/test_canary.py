"""`canary` shows where a canary stands and takes it back; `status`, `history`, `show` and `gc` know of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from infra.store import open_store
from tests.support.commands import output_of
from tests.support.standing_canary import CanaryPlace


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CanaryPlace:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINWRIGHT_ACTOR", "ann")
    monkeypatch.chdir(tmp_path)
    return CanaryPlace(monkeypatch, open_store(str(tmp_path / ".trainwright")))


def test_it_shows_version_window_rows_and_what_would_decide(
    place: CanaryPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    place.promoted(1, canary=False)
    assert output_of(capsys, "canary", "tiny") == "tiny has no canary.\n"
    place.promoted(2)
    place.night(0, 40)
    lines = output_of(capsys, "canary", "tiny").splitlines()
    assert lines[0] == "tiny@canary is version 2, beside tiny@champion, version 1"
    assert [line.split(None, 1) for line in lines[1:6]] == [
        ["since", "2026-11-22 10:00 UTC"],
        ["until", "2026-12-06 10:00 UTC"],
        ["against", "tiny@champion, version 1"],
        ["asked", "a: a gain above 0, with confidence 0.95, on 100 rows or more"],
        ["rows", "40 fresh rows, of 1 run"],
    ]
    assert lines[6].startswith("  gain      +0.")
    assert lines[7] == "  decides   60 more rows, before anything is decided"
    told = json.loads(output_of(capsys, "canary", "tiny", "--json"))["canary"]
    assert (told["version"], told["challenges"], told["champion"], told["stands"]) == (2, "tiny@champion", 1, True)
    assert (told["standing"]["rows"], told["standing"]["verdict"]) == (40, "open")
    assert "2 (beside tiny@champion, 40 fresh rows, of 1 run, until 2026-12-06" in output_of(capsys, "status")
    assert "tiny@canary is version 2" in output_of(capsys, "show", "tiny@canary")


def test_a_person_takes_it_back(place: CanaryPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.stands()
    place.night(0, 40)
    for words in (["--withdraw"], ["--reason", "slow"]):
        assert "--withdraw and --reason go together" in output_of(capsys, "canary", "tiny", *words, code=2)
    assert "--reason: 0 characters" in output_of(capsys, "canary", "tiny", "--withdraw", "--reason", "", code=2)
    sentence = output_of(capsys, "canary", "tiny", "--withdraw", "--reason", "slow")
    assert sentence == 'tiny@canary, version 2, was withdrawn: ann took it back: "slow"\n'
    page = output_of(capsys, "history", "tiny@canary").splitlines()
    assert page[0] == "tiny@canary names nothing any more: 2 entries"
    assert "– → 2 " in page[3]
    assert "→" not in page[4]
    assert "on hold: " in page[-1]
    assert "canary" not in output_of(capsys, "status")
    assert "tiny has no canary; version 2 was the last." in output_of(capsys, "show", "tiny@canary", code=2)
    assert "tiny has no canary" in output_of(capsys, "canary", "tiny", "--withdraw", "--reason", "again", code=2)
    assert "tiny@champion is not a canary" in output_of(capsys, "canary", "tiny@champion", code=2)


def test_history_tells_what_the_rows_showed(place: CanaryPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.stands()
    place.night(0, 400)
    page = output_of(capsys, "history", "tiny@champion")
    assert "version 2 as canary" in page
    assert "400 fresh rows, of 1 run\n" in page
    told = json.loads(output_of(capsys, "history", "tiny", "--json"))["aliases"]
    assert [one["kind"] for one in told["canary"]["moves"]] == ["canary", "ended"]
    assert told["champion"]["moves"][-1]["canary"]["outcome"] == "promoted"


def test_gc_keeps_the_tallies_of_a_canary_that_stands(
    place: CanaryPlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = place.stands()
    place.night(0, 40)
    folder = tmp_path / ".trainwright" / f"canaries/tiny/{canary.k}"
    for path in (tmp_path / ".trainwright").rglob("*"):
        os.utime(path, (time.time() - 10**8,) * 2)
    output_of(capsys, "gc")
    assert (folder / "nights/1/0.json").exists()
    output_of(capsys, "canary", "tiny", "--withdraw", "--reason", "slow")
    os.utime(folder / "end.json", (time.time() - 10**8,) * 2)
    output_of(capsys, "gc")
    assert not folder.exists()
    assert "names nothing any more" in output_of(capsys, "history", "tiny@canary")
