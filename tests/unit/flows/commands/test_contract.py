"""`contract`: what infer writes holds for its data and replaces nothing; explain and diff read what others wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from data_contracts.contract.inference import Draft
from data_contracts.contract.suites import load_suite
from flows import cli
from flows.commands.contract import _section
from tasks.run.run import open_run
from tasks.stages.validate import validate
from tests.support.tiny import write_project, write_rows

pytestmark = pytest.mark.usefixtures("home")


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    code = cli.main(["contract", *map(str, arguments), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.main(["contract", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_what_infer_writes_is_a_contract_that_its_data_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    # An id that is unique in the sample of the draft, and not in all rows; and e-mail addresses.
    many = [f"{line},{i if i < 11_000 else 7},p{i}@example.org" for i, line in enumerate(lines[1:] * 20)]
    (tmp_path / "rows.csv").write_text("\n".join([f"{lines[0]},nearly,contact", *many]) + "\n")
    found = command(capsys, "infer", "rows.csv", "--out", "made")
    section = yaml.safe_load((tmp_path / "made/contract.yaml").read_text())
    assert section == {
        "data": {"source": "../rows.csv", "sensitive": ["contact"]},
        "contract": {"suite": "suite.json"},
    }
    suite = load_suite("suite.json", tmp_path / "made")
    expectations = [(one["type"], one["kwargs"].get("column")) for one in suite["expectations"]]
    kept = {(name.removeprefix("expect_column_values_to_"), column) for name, column in expectations}
    assert ("be_between", "a") in kept
    assert ("be_in_set", "label") in kept
    assert ("be_unique", "nearly") not in kept
    assert "example.org" not in json.dumps(found) + (tmp_path / "made/contract.yaml").read_text()
    write_project(tmp_path / "line", {**section, "data": {**section["data"], "source": "../rows.csv"}})
    (tmp_path / "line/suite.json").write_text((tmp_path / "made/suite.json").read_text())
    run = open_run(tmp_path / "line/pipeline.yaml", recorded=False)
    done = validate.done(run)
    assert done.handoff.accepted
    assert done.handoff.failures == []
    assert "made/suite.json exists already." in refused(capsys, "infer", "rows.csv", "--out", "made")
    (tmp_path / "made/suite.json").unlink()
    assert "made/contract.yaml exists already." in refused(capsys, "infer", "rows.csv", "--out", "made")
    assert not (tmp_path / "made/suite.json").exists()


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\n\n"])
def test_no_name_of_a_column_is_read_as_yaml(end: str) -> None:
    name = f"x{end}evaluate: {{}} # \U0001f600"
    made = Draft(rows=3, sensitive={f"email{name}": "its name looks like personal data"}, keys=[name, "id"])
    made.unsure.append((name, "it has infinite values"))
    section = _section(made, f"a{end}b: c.csv", f"a{end}b: c.csv")
    assert yaml.safe_load(section) == {
        "data": {"source": f"a{end}b: c.csv", "sensitive": [f"email{name}"]},
        "contract": {"suite": "suite.json"},
    }
    assert len(section.splitlines()) == 9


def test_explain_reads_a_suite_and_a_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_project(tmp_path)
    of_suite = command(capsys, "explain", tmp_path / "suite.json")
    assert [one["sentence"] for one in of_suite["expectations"]] == [
        "`a` is at least -1 and at most 1 in every row.",
        "`label` is one of 0, 1 in every row.",
        "`b` has a value in every row.",
    ]
    assert command(capsys, "explain", spec) == of_suite
    assert cli.main(["contract", "explain", str(spec)]) == 0
    head = "tiny: 3 expectations; the mildest severity that rejects is critical\n- `a` is"
    assert capsys.readouterr().out.startswith(head)


def test_diff_reads_files_addresses_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_project(tmp_path)
    good = validate.done(open_run(spec, recorded=False)).handoff
    (tmp_path / "good.json").write_text(json.dumps(good.to_json()))
    rows = (tmp_path / "rows.csv").read_text().splitlines()
    (tmp_path / "rows.csv").write_text("\n".join([*rows, "9000,7,0,0,1", "9001,8,0,0,1"]) + "\n")
    run = open_run(spec)
    bad = validate.done(run).handoff
    assert not bad.accepted
    store = tmp_path / ".trainwright"
    for later in (bad.ref.uri, run.run_id):
        found = command(capsys, "diff", tmp_path / "good.json", later, "--store", store)
        assert found["rows"] == [600, 602]
        assert found["accepted"] == [True, False]
        [change] = found["changes"]
        assert (change["kind"], change["column"], change["before"], change["after"]) == ("broken", "a", None, 2)
    assert cli.main(["contract", "diff", bad.ref.uri, good.ref.uri, "--store", str(store)]) == 0
    printed = capsys.readouterr().out
    healed = "- healed: expect_column_values_to_be_between on a"
    assert printed.startswith(f"602 rows, rejected -> 600 rows, accepted\n{healed}")


WRONG = {
    "infer takes one source, got 2 names": ("infer", "a.csv", "b.csv"),
    "diff takes two reports, got 1 names": ("diff", "a.json"),
    "--out has no effect": ("explain", "suite.json", "--out", "x"),
    "no file nothing.json": ("explain", "nothing.json"),
    "There is no report nothing": ("diff", "nothing", "nothing"),
    "is not a contract report": ("diff", "suite.json", "suite.json"),
    "must not be empty": ("infer", " "),
    "empty.csv": ("infer", "empty.csv"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_cannot_be_done_is_one_sentence(
    sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    (tmp_path / "empty.csv").write_text("a,b\n")
    said = refused(capsys, *WRONG[sentence])
    assert sentence in said
    assert "Traceback" not in said
