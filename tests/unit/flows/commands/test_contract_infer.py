"""`contract infer`: what it writes holds for its data, replaces nothing, and no name is read as YAML."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from data_contracts.contract.inference import Draft
from data_contracts.contract.suites import load_suite
from data_contracts.messages.raw_data import DRAFT
from flows.commands import data
from flows.commands.data import _section
from infra import child
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages.validate import validate
from tests.support.commands import output_of
from tests.support.tiny import write_project, write_rows

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("home", "current_folder")]


def infer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    return output_of(capsys, "contract", "infer", *words, code=code)


def test_what_infer_writes_is_a_contract_that_its_data_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    # An id that is unique in the sample of the draft, and not in all rows; and e-mail addresses.
    many = [f"{line},{i if i < 11_000 else 7},p{i}@example.org" for i, line in enumerate(lines[1:] * 20)]
    (tmp_path / "rows.csv").write_text("\n".join([f"{lines[0]},nearly,contact", *many]) + "\n")
    found = json.loads(infer(capsys, "rows.csv", "--out", "made", "--json"))
    section = yaml.safe_load((tmp_path / "made/contract.yaml").read_text())
    assert section == {
        "data": {"source": "../rows.csv", "sensitive": ["contact"]},
        "contract": {"suite": "suite.json"},
    }
    suite = load_suite("suite.json", tmp_path / "made")
    expectations = [(one["type"], one["kwargs"].get("column")) for one in suite["expectations"]]
    kept = {(name.removeprefix("expect_column_values_to_"), column) for name, column in expectations}
    # `nearly` only seemed to name its rows.
    assert {("be_between", "a"), ("be_in_set", "label"), ("be_between", "nearly"), ("be_between", "id")} <= kept
    assert not {("be_unique", "nearly"), ("be_unique", "id")} & kept
    assert "example.org" not in json.dumps(found) + (tmp_path / "made/contract.yaml").read_text()
    write_project(tmp_path / "line", {**section, "data": {**section["data"], "source": "../rows.csv"}})
    (tmp_path / "line/suite.json").write_text((tmp_path / "made/suite.json").read_text())
    done = validate.find_or_make(open_run(read_spec(tmp_path / "line/pipeline.yaml"), recorded=False))
    assert (done.handoff.accepted, done.handoff.failures) == (True, [])
    assert "made/suite.json exists already." in infer(capsys, "rows.csv", "--out", "made", code=2)
    (tmp_path / "made/suite.json").unlink()
    assert "made/contract.yaml exists already." in infer(capsys, "rows.csv", "--out", "made", code=2)
    assert not (tmp_path / "made/suite.json").exists()


def test_a_word_among_numbers_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("n,t\n1,a\n2,b\nsoon,c\n")
    notes = [note for column, note in json.loads(infer(capsys, "rows.csv", "--json"))["unsure"] if column in ("n", "t")]
    assert notes == ["it is text because of row 2 of rows.csv; the values before it are of another kind"]


def test_no_name_of_a_file_is_read_as_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows\nshards: {transform: other.build}\n#.csv").write_text("n,t\n1,a\n2,b\nsoon,c\n")
    infer(capsys, "*.csv", "--out", "made")
    section = yaml.safe_load((tmp_path / "made/contract.yaml").read_text())
    assert section == {"data": {"source": "../*.csv"}, "contract": {"suite": "suite.json"}}


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


def test_a_text_that_is_not_utf8_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offsets, text = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"x\xe9")
    pq.write_table(pa.table({"b": pa.Array.from_buffers(pa.string(), 2, [None, offsets, text])}), "bad.parquet")
    assert "Column 'b' has a text that is not UTF-8, in row 1. Convert" in infer(capsys, "bad.parquet", code=2)
    (tmp_path / "bad.jsonl").write_bytes(b'{"a": 1, "b": "x"}\n{"a": 1, "b": "caf\xe9"}\n')
    assert "bad.jsonl: line 2 is not UTF-8 at byte 19" in infer(capsys, "bad.jsonl", code=2)


@pytest.mark.warm(False)
def test_a_file_that_fills_the_memory_ends_the_child_that_drafts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wide.csv").write_text(",".join(f"c{at}" for at in range(20_000)) + "\n" + "1," * 19_999 + "1\n")
    monkeypatch.setattr(child, "machine_bytes", lambda: 2**28)
    children: list[object] = []

    def run(kind: object, *arguments: object, **more: object) -> object:
        children.append(kind)
        return child.run_child(kind, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(data, "run_child", run)
    assert "wide.csv ended at row 0: It took more than" in infer(capsys, str(tmp_path / "wide.csv"), code=8)
    assert children == [DRAFT], "the file was read before"
