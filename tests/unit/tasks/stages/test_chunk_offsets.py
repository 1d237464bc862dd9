"""A tokenizer cuts documents once for all stages: what the store has is not cut again; the rows are the documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import CorruptError, SpecError, UsageError
from data_contracts.messages.raw_data import CUT
from infra.store import Store
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import contract_check, shard, validate
from tests.support.damage import overwrite
from tests.support.files import write_files
from tests.support.raced import Memory
from tests.support.runs import make_run
from tests.support.shard_rows import rows_in
from tests.support.tiny import write_project

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.warm]

CODE = '''
import json, re

class Words:
    """A token is a word of the vocabulary's pattern."""

    def __init__(self, vocabulary):
        self.pattern = json.load(open(vocabulary))["pattern"]

    def starts(self, text):
        return [found.start() for found in re.finditer(self.pattern, text)]
'''
DOCUMENTS = {
    "long.txt": "\ufeffone two\r\nthree é 😀 six " * 40,
    "short.txt": "a b",
    "empty.txt": "",
    "same.txt": "a b",
}
SPLIT = {"by": "position", "fractions": {"train": 0.6, "test": 0.4}, "gap": 1}


class Project:
    """The tiny project with a corpus instead of rows; counts the documents that were cut."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.cut = folder, []
        write_project(folder)
        write_files(folder, {"words.py": CODE, "vocabulary.json": json.dumps({"pattern": r"\S+"})})
        write_files(folder / "corpus", DOCUMENTS)
        length = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "length", "max_value": 4}}
        (folder / "suite.json").write_text(json.dumps({"name": "corpus", "expectations": [length]}))
        real = contract_check.run_here

        def run_here(run: Run, child: Any, request: Any, **options: Any) -> Any:
            if child is CUT:
                self.cut.append([file.columns["document"] for file in request.files])
            return real(run, child, request, **options)

        monkeypatch.setattr(contract_check, "run_here", run_here)

    def spec(self, tokens: int = 4, tokenizer: Any = None, **shards: Any) -> Path:
        called = tokenizer or {"class_path": "words.Words", "init_args": {"vocabulary": "vocabulary.json"}}
        source = {"uri": "corpus/*.txt", "format": "text", "pieces": {"tokens": tokens, "tokenizer": called}}
        return write_project(self.folder, {"data": {"source": source}, "shards": {"split": SPLIT, **shards}})

    def run(self, **changes: Any) -> Run:
        suite = (self.folder / "suite.json").read_text()
        spec = self.spec(**changes)
        (self.folder / "suite.json").write_text(suite)  # write_project writes that of the tiny rows
        return open_run(read_spec(spec), recorded=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path / "tiny", monkeypatch)


def test_contract_and_shards_see_the_same_pieces(project: Project) -> None:
    run = project.run()
    report = validate.make_report(run, validate.contract_key(run)).handoff
    assert report.accepted
    dataset = shard._make(run, report)
    # Two documents of equal bytes are one cut; and both stages read by it.
    assert project.cut == [["empty.txt", "long.txt", "same.txt", "short.txt"]]
    assert dataset.documents == {"all": 3, "undivided": 2}
    assert dataset.dropped_rows["gap"] == 1
    found = rows_in(run.store, dataset)
    assert report.rows == len(found) + 1
    for row in found:
        text = DOCUMENTS[row["document"]].encode()
        assert text[row["offset"] :].startswith(row["text"].encode())
        assert (
            row["length"] == len(row["text"].split()) == (4 if row["position"] + 1 < row["pieces"] else row["length"])
        )
    assert shard.find_dataset(project.run()) == dataset


def test_new_documents_are_cut_alone_and_damage_is_told_and_cut_again(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    first = project.run()
    files = contract_check.cut_files(first, first.resolved.files, first.spec.data.source)
    (project.folder / "corpus" / "new.txt").write_text("x y z")
    again = project.run()
    more = contract_check.cut_files(again, again.resolved.files, again.spec.data.source)
    assert project.cut[1:] == [["new.txt"]]
    assert [file.chunk_offsets for file in more if file.columns["document"] != "new.txt"] == [
        file.chunk_offsets for file in files
    ]
    # The newest directory has the cuts of all documents.
    assert contract_check.cut_files(again, again.resolved.files, again.spec.data.source) == more
    assert len(project.cut) == 2
    for path in sorted((project.folder / ".trainwright" / "contracts").glob(f"*/{contract_check.OFFSETS_FILE}")):
        overwrite(path, b"{}")
    assert contract_check.cut_files(again, again.resolved.files, again.spec.data.source) == more
    assert len(project.cut) == 3
    assert "Documents are cut again, because where they were cut before cannot be read" in caplog.text


def test_cuts_that_one_file_cannot_hold_are_kept_in_several(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_check, "MOST_FILE_BYTES", 50)
    run = project.run()
    files = contract_check.cut_files(run, run.resolved.files, run.spec.data.source)
    kept = sorted(
        path.name for path in (project.folder / ".trainwright" / "contracts").glob(f"*/*{contract_check.OFFSETS_FILE}")
    )
    assert kept == ["1-cuts.json", "2-cuts.json", "cuts.json"]
    assert contract_check.cut_files(run, run.resolved.files, run.spec.data.source) == files
    assert len(project.cut) == 1


@pytest.mark.parametrize("error", [FileNotFoundError(), CorruptError("damaged"), UsageError("not permitted")])
def test_what_cannot_be_read_is_as_if_it_were_not_there(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(Memory(), {})
    monkeypatch.setattr(store, "attempts", lambda area, key: [0, 1])
    monkeypatch.setattr(store, "claim", lambda uri: True)
    monkeypatch.setattr(store, "manifest", Mock(side_effect=error))
    assert contract_check._known(make_run(store), "key", ["document"]) == {}


def test_other_rows_are_not_cut(project: Project) -> None:
    run = open_run(read_spec(write_project(project.folder)), recorded=False)
    assert contract_check.cut_files(run, run.resolved.files, run.spec.data.source) == run.resolved.files
    assert not list(run.store.attempts(contract_check.AREA, "none"))
    assert project.cut == []


def test_a_class_that_is_not_there_is_refused_with_its_line(project: Project) -> None:
    field = "data.source.0.pieces.tokenizer.class_path"
    with pytest.raises(SpecError, match=rf"pipeline.yaml:\d+.*: {field}: .*words.Word"):
        read_spec(project.spec(tokenizer="words.Word")).check(None)
    with pytest.raises(SpecError, match=f"--set: {field}"):
        read_spec(project.spec(), ["data.source.pieces.tokenizer=words.Word"]).check(None)
