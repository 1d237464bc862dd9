"""A value of the data is shown as text: no terminal, CI host or page obeys it, and it looks like no line of ours."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.support.tiny import SUITE, trainwright, write_project, write_rows

pytestmark = pytest.mark.warm

VALUE = "x\n::set-output name=a::planted\n##[set-output name=a]planted \x1b[31m\x1b]0;planted\x07\u202e"
COLUMN = "city\nplanted"


def project(folder: Path) -> Path:
    """The tiny project with a column whose name and values speak, some of which the suite does not expect."""
    warned = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": COLUMN, "value_set": ["plain", VALUE[::-1]]},
        "severity": "warning",
    }
    spec = write_project(folder)
    (folder / "suite.json").write_text(json.dumps({**SUITE, "expectations": [*SUITE["expectations"], warned]}))
    write_rows(folder / "rows.csv")
    with (folder / "rows.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [[*head, COLUMN], *([*row, VALUE if at % 3 else "plain"] for at, row in enumerate(rows))]
        )
    return spec


@pytest.mark.usefixtures("home")
def test_no_value_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = project(tmp_path / "tiny")
    monkeypatch.chdir(spec.parent)
    commands = {
        ("plan", "pipeline.yaml"): 0,
        ("validate", "pipeline.yaml"): 0,
        ("validate", "pipeline.yaml", "--set", "contract.fail_on=warning"): 3,
        ("contract", "explain", "suite.json"): 0,
        ("contract", "infer", "rows.csv"): 0,
    }
    for command, exit_code in commands.items():
        done = trainwright(*command)
        assert done.returncode == exit_code, done.stderr
        shown = done.stdout + done.stderr
        assert not {"\x1b", "\x07", "\u202e"}.intersection(shown), shown
        assert "##[" not in shown, shown
        # A line of the value's own would begin with one of these.
        assert not [line for line in shown.splitlines() if line.lstrip().startswith(("::", "planted"))], shown
    assert "planted" in shown
