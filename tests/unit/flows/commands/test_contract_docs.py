"""`contract docs`: the page of a run's report opens in a browser without a network, also on a telephone."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import ContractRejected
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages.validate import validate
from tests.support.browser import chromium
from tests.support.commands import json_of, output_of
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
    assert json_of(capsys, *wanted, "--out", str(out), "--json") == {"page": str(out / "index.html"), "accepted": False}
    with chromium(tmp_path / "profile") as browser:
        browser.open(out / "index.html", width=390)
        assert browser.requested == [(out / "index.html").as_uri()]
        assert browser.run("document.scrollingElement.scrollWidth") == 390, "a telephone's page scrolls sideways"
        page = browser.run("document.body.innerText")
    assert "is at least -1 and at most 1 in every row" in page
    assert "(row 600 of rows.csv)" in page
    assert "index.html exists already." in output_of(capsys, *wanted, "--out", str(out), code=2)
    assert "contract docs needs a folder to write to. Name it: --out DIR." in output_of(capsys, *wanted, code=2)
    plain = open_run(read_spec(spec, ["contract.fail_on=info"]))
    assert "has no contract report. Name a run that got as far as validate." in output_of(
        capsys, "contract", "docs", plain.run_id, *wanted[3:], "--out", str(tmp_path / "none"), code=2
    )
