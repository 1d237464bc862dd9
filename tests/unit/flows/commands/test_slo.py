"""`slo` and `status --html`: as tables, JSON and a page; `--check` fails for a missed objective, not for no data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from markupsafe import escape

from flows.cli import main
from infra.store import Store
from tasks.slo import SHIPPED
from tests.unit.tasks.pages.test_day_page import add


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    printed = capsys.readouterr()
    return printed.err if code == 2 else printed.out


@pytest.fixture
def objectives(tmp_path: Path) -> Path:
    path = tmp_path / "slo.yaml"
    path.write_text("version: 1\nobjectives:\n  mine: {measure: success, target: 0.6}\n")
    return path


def test_objectives_as_a_table_and_json(store: Store, objectives: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("slo", store.uri, "--objectives", str(objectives))
    assert "no data" in said(capsys, *words, "--check")
    add(store, 3, "promoted")
    add(store, 2, "rejected", "contract_rejected")
    add(store, 1, "failed", "user_code")
    (row,) = (line for line in said(capsys, *words, "--check").splitlines() if line.startswith("mine"))
    assert row.split()[1:] == ["met", "60.0%", "100.0%", "2", "of", "2", "100%", "0.0"]
    assert "leaves out: 1 failed in the user's code or spec" in said(capsys, *words)
    for hours in (4, 5):
        add(store, hours, "failed", "node_lost")
    assert "missed" in said(capsys, *words)
    value = json.loads(said(capsys, *words, "--json", "--check", code=4))
    (one,) = value["stores"][0]["objectives"]
    assert (one["objective"], one["good"], one["total"], one["state"]) == ("mine", 2, 4, "missed")
    assert value["missed"] == [f"mine in {store.uri}"]
    assert "slo.yaml" in said(capsys, "slo", store.uri, "--objectives", str(objectives) + "x", code=2)


def test_shipped_targets_are_called_so(store: Store, objectives: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(store, 1, "promoted")
    assert SHIPPED in said(capsys, "slo", store.uri)
    assert SHIPPED not in said(capsys, "slo", store.uri, "--objectives", str(objectives))
    for words, shown in ((), True), (("--objectives", str(objectives)), False):
        page = objectives.with_name(f"{shown}.html")
        said(capsys, "status", "--store", store.uri, "--html", str(page), *words)
        assert (str(escape(SHIPPED)) in page.read_text()) == shown


def test_the_page_replaces_a_page_of_a_day_and_no_other_file(
    store: Store, objectives: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store, 1, "failed", "node_lost")
    out = tmp_path / "day.html"
    words = ("status", "--store", store.uri, "--objectives", str(objectives), "--html")
    value = json.loads(said(capsys, *words, str(out), "--json"))
    assert (value["page"], [one["kind"] for one in value["needs"]]) == (str(out), ["failed"])
    first = out.read_text()
    assert "mine" in first
    assert f"{out} shows the day: 1 thing needs a person. 1 failed." in said(capsys, *words, str(out), "--since", "2h")
    assert out.read_text().startswith(first[:200])
    out.write_text("mine alone")
    assert "is not a page of a day" in said(capsys, *words, str(out), code=2)
    assert out.read_text() == "mine alone"
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "elsewhere.html")
    new = str(tmp_path / "b.html")
    for arguments, sentence in (
        ((*words, str(link)), "is not a page of a day"),
        ((*words, str(tmp_path / "no" / "day.html")), "cannot be written"),
        ((*words, new, "--since", "2999-01-01"), "lies in the future"),
        ((*words, new, "--since", "2026-01-01..2026-01-02"), "a page of a day ends now"),
        (("status", "--since", "2h"), "--since has no effect"),
    ):
        assert sentence in said(capsys, *arguments, code=2)


def test_the_flow_writes_the_page_of_this_user(store: Store, home: Path) -> None:
    from flows.day_page import day_page

    add(store, 1, "promoted")
    state = day_page.fn(store.uri)
    assert state.is_completed(), state.message
    page = Path(str(state.message).partition(" shows ")[0])
    assert "Nothing needs a person" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
