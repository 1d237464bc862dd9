"""`report` and `diff`: a page in the store, in a file of one's own, in a browser; and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from infra.store import Store
from tests.support.reported import CANCELLED, FIRST, PROMOTED, RECOVERED, reported_store

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(tmp_path: Path, repository: Path) -> Path:
    return reported_store(repository / "tests/golden/store-v1", tmp_path)


@pytest.fixture
def command(store: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
        ended = cli.main([*map(str, arguments), "--store", str(store), "--json"])
        said = capsys.readouterr()
        assert ended == code, said.err
        answer: dict[str, Any] = json.loads(said.out)
        return answer

    return run


def test_the_page_of_an_earlier_run_is_made_and_kept(command: Any, store: Path) -> None:
    answer = command("report", PROMOTED)
    page = store / "runs" / PROMOTED / "report.html"
    assert answer == {"run_id": PROMOTED, "verdict": "promoted", "page": str(page), "opened": False}
    made = page.read_bytes()
    assert b"<h1>Promoted</h1>" in made
    assert command("report", PROMOTED) == answer
    assert page.read_bytes() == made
    assert command("report", CANCELLED)["page"] == str(store / "runs" / CANCELLED / "pages/0.html")


def test_out_writes_the_same_page_to_a_new_file(command: Any, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert command("report", FIRST, "--out", out)["page"] == str(out)
    assert out.read_bytes() == (store / "runs" / FIRST / "report.html").read_bytes()
    error = command("report", FIRST, "--out", out, code=2)["error"]
    assert error["message"] == f"{out} exists already."
    error = command("report", FIRST, "--out", tmp_path / "no" / "page.html", code=2)["error"]
    assert error["message"] == f"{tmp_path}/no/page.html cannot be written: No such file or directory."
    error = command("report", FIRST, "--out", "/proc/page.html", code=2)["error"]
    assert error["message"].startswith("/proc/page.html cannot be written: ")


def test_a_run_that_has_not_ended_has_a_page_that_is_not_kept(command: Any, store: Path, home: Path) -> None:
    (store / "runs" / RECOVERED / "report.json").unlink()
    answer = command("report", RECOVERED)
    assert (answer["verdict"], answer["page"]) == ("unfinished", str(home / "pages" / f"{RECOVERED}.html"))
    assert command("report", RECOVERED)["page"] == answer["page"], "written anew"
    assert not list((store / "runs" / RECOVERED).rglob("*.html"))


def test_a_store_that_may_not_be_written_gives_a_page_elsewhere(
    command: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_once = Store.create_once

    def refuse(self: Store, path: str, value: Any) -> bool:
        if path.endswith(".html"):
            raise PermissionError(13, "Permission denied")
        return create_once(self, path, value)

    monkeypatch.setattr(Store, "create_once", refuse)
    assert command("report", PROMOTED)["page"] == str(home / "pages" / f"{PROMOTED}.html")


def test_open_starts_a_browser_or_says_that_there_is_none(
    command: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    monkeypatch.setattr("webbrowser._tryorder", None)
    monkeypatch.setattr("webbrowser._browsers", {})
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    assert command("report", PROMOTED, "--open")["opened"] is True
    assert seen.read_text().strip() == (store / "runs" / PROMOTED / "report.html").as_uri()
    monkeypatch.setattr("webbrowser._tryorder", [])
    error = command("report", PROMOTED, "--open", code=2)["error"]
    assert error["message"].startswith("There is no browser here to open ")


def test_an_unknown_run_is_refused(command: Any) -> None:
    assert command("report", "nothing", code=2)["error"]["message"].startswith("There is no run nothing in ")
    assert command("report", "tiny", code=2)["error"]["message"] == "tiny is a model, not a run."


def test_diff_prints_and_writes_a_page(command: Any, tmp_path: Path) -> None:
    out = tmp_path / "diff.html"
    answer = command("diff", "tiny@1", "tiny:2", "--out", out)
    assert [row["name"] for row in answer["spec"]] == ["train.seed"]
    assert answer["page"] == str(out)
    assert "<h1>tiny@1 → tiny:2</h1>" in out.read_text()
    error = command("diff", "tiny@1", "tiny:2", "--out", out, code=2)["error"]
    assert error["message"] == f"{out} exists already."
    assert os.stat(out).st_size < 100_000


def test_diff_names_each_part_on_a_terminal(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "tiny@1", "tiny@2", "--store", str(store)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("tiny@1 and tiny@2 differ in spec, metrics, weights.\n\nspec\n")
    assert "\naccuracy  0.9661  1      better\n" in said
