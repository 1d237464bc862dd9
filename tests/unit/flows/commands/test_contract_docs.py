"""`contract docs`: the page of a run's report opens in a browser without a network, also on a telephone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_contracts.errors import ContractRejected
from flows import cli
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages.validate import validate
from tests.support.browser import chromium
from tests.support.tiny import write_project

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.apt("chromium")
def test_the_page_of_a_rejected_run_opens_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_project(tmp_path / "tiny")
    with (spec.parent / "rows.csv").open("a") as rows:
        rows.write("9000,7,0,0,1\n")
    run = open_run(read_spec(spec))
    with pytest.raises(ContractRejected):
        validate(run)
    out = tmp_path / "docs"
    wanted = ["contract", "docs", run.run_id, "--store", str(spec.parent / ".trainwright")]
    assert cli.main([*wanted, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(out / "index.html"), "accepted": False}
    with chromium(tmp_path / "profile") as browser:
        browser.open(out / "index.html", width=390)
        assert browser.requested == [(out / "index.html").as_uri()]
        assert browser.run("document.scrollingElement.scrollWidth") == 390, "a telephone's page scrolls sideways"
        page = browser.run("document.body.innerText")
    assert "is at least -1 and at most 1 in every row" in page
    assert "(row 600 of rows.csv)" in page
    assert cli.main([*wanted, "--out", str(out)]) == 2
    assert "index.html exists already." in capsys.readouterr().err
    assert cli.main(wanted) == 2
    assert "contract docs needs a folder to write to. Name it: --out DIR." in capsys.readouterr().err
    plain = open_run(read_spec(spec, ["contract.fail_on=info"]))
    assert cli.main(["contract", "docs", plain.run_id, *wanted[3:], "--out", str(tmp_path / "none")]) == 2
    assert "has no contract report. Name a run that got as far as validate." in capsys.readouterr().err
