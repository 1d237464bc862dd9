"""`report` and `diff`: a page in a file of one's own, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from infra.store import layout, open_store
from tasks.pages.html import HEAD
from tests.support.commands import output_of
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


def page_of(home: Path, run_id: str) -> Path:
    return home / "pages" / f"{run_id}.html"


def test_the_page_is_one_of_this_users(command: Any, store: Path, home: Path) -> None:
    page = page_of(home, PROMOTED)
    assert command("report", PROMOTED) == {
        "run_id": PROMOTED, "verdict": "promoted", "page": str(page),
    }  # fmt: skip
    assert b"<h1>Promoted</h1>" in page.read_bytes()
    assert page.stat().st_mode & 0o777 == 0o600
    assert command("report", CANCELLED)["page"] == str(page_of(home, CANCELLED))
    assert not list(store.rglob("*.html"))


def test_what_others_wrote_in_the_place_of_a_page_is_not_shown(command: Any, store: Path, home: Path) -> None:
    command("report", PROMOTED)
    ours = page_of(home, PROMOTED).read_bytes()
    # It begins as a page of ours, so no script of it would run; the browser would be led elsewhere all the same.
    forged = f'{HEAD}<meta http-equiv="refresh" content="0; url=https://example.org"></head></html>'
    (store / "runs" / PROMOTED / "report.html").write_text(forged)
    assert Path(command("report", PROMOTED)["page"]).read_bytes() == ours


def test_out_writes_the_same_page_to_a_new_file(command: Any, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert command("report", FIRST, "--out", out)["page"] == str(out)
    command("report", FIRST)
    assert out.read_bytes() == page_of(home, FIRST).read_bytes()
    error = command("report", FIRST, "--out", out, code=2)["error"]
    assert error["message"] == f"{out} exists already."
    error = command("report", FIRST, "--out", tmp_path / "no" / "page.html", code=2)["error"]
    assert error["message"] == f"{tmp_path}/no/page.html cannot be written: No such file or directory."
    error = command("report", FIRST, "--out", "/proc/page.html", code=2)["error"]
    assert error["message"].startswith("/proc/page.html cannot be written: ")


def test_a_run_that_has_not_ended_has_a_page(command: Any, store: Path, home: Path) -> None:
    (store / "runs" / RECOVERED / "report.json").unlink()
    answer = command("report", RECOVERED)
    assert (answer["verdict"], answer["page"]) == ("unfinished", str(page_of(home, RECOVERED)))
    assert command("report", RECOVERED)["page"] == answer["page"], "written anew"


def test_an_unknown_run_is_refused(command: Any) -> None:
    assert command("report", "nothing", code=2)["error"]["message"].startswith("There is no run nothing in ")
    assert command("report", "tiny", code=2)["error"]["message"] == "tiny is a model, not a run."


def test_diff_prints_and_writes_a_page(command: Any, tmp_path: Path) -> None:
    out = tmp_path / "diff.html"
    answer = command("diff", "tiny@1", "tiny:2", "--out", out)
    assert ([row["name"] for row in answer["spec"]], answer["page"]) == (["train.seed"], str(out))
    assert "<h1>tiny@1 → tiny:2</h1>" in out.read_text()
    assert command("diff", "tiny@1", "tiny:2", "--out", out, code=2)["error"]["message"] == f"{out} exists already."
    assert os.stat(out).st_size < 100_000


def test_diff_names_each_part_on_a_terminal(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = output_of(capsys, "diff", "tiny@1", "tiny@2", "--store", str(store))
    assert said.startswith("tiny@1 and tiny@2 differ in spec, metrics, weights.\n\nspec\n")
    assert "\naccuracy  0.9661  1      better\n" in said


def test_a_planted_run_without_a_spec_is_named_and_stops_no_other_command(command: Any, store: Path) -> None:
    stored, planted = open_store(str(store)), "29991231-000000-aaaaaa"
    for path in (layout.resolved, layout.report):
        value = stored.read_json(path(PROMOTED)) | {"run_id": planted}
        if "spec" in value:
            value["spec"] |= {"name": "../no", "mirrors": {"mlflow": 5}}
        stored.create_json(path(planted), value)
    assert command("report", planted, code=6)["error"]["message"] == (
        f"The inputs of the run {planted} hold a spec that cannot be read."
    )
    assert [run["run_id"] for run in command("status")["stores"][0]["runs"]][-1] == planted
    assert command("mirror")["left"] == []
