"""The user's tokenizer is asked in the child; what is wrong with it or with a document is one sentence."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import TrainwrightError, UsageError, UserCodeError
from data_contracts.messages.children import Advanced
from data_contracts.messages.raw_data import ChunkOffsets, CutRequest
from data_contracts.pipeline_spec import PiecesSpec, SourceSpec
from infra.sources import resolve_sources
from infra.sources.documents import offsets_name, unpack
from tests.support.tiny import own_modules
from training.shard import cut_worker

CODE = """
import re

class Words:
    asked = []

    def __init__(self, pattern=r"\\S+"):
        self.pattern = pattern

    def starts(self, text):
        Words.asked.append(text)
        return (found.start() for found in re.finditer(self.pattern, text))

class Returns:
    def __init__(self, value):
        self.value = value

    def starts(self, text):
        return self.value

class Raises:
    def starts(self, text):
        raise KeyError("no vocabulary")

class RaisesLate:
    def starts(self, text):
        yield 0
        raise KeyError("no vocabulary")

class Lazy:
    def __iter__(self):
        raise KeyError("no vocabulary")

class RaisesWhenRead:
    def starts(self, text):
        return Lazy()

class RaisesMade:
    def __init__(self):
        len(1)

class Nothing: ...

def function(text): ...
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "tokenizers_of_a_test.py").write_text(CODE)
    (folder / "raises_on_import_of_a_test.py").write_text("1 / 0\n")
    with own_modules():
        yield folder


def request(project: Path, folder: Path, name: str, tokens: int = 2, **init_args: Any) -> CutRequest:
    tokenizer = {"class_path": name if "." in name else f"tokenizers_of_a_test.{name}", "init_args": init_args}
    pieces = PiecesSpec.model_validate({"tokens": tokens, "tokenizer": tokenizer})
    sources = [SourceSpec(uri="corpus/*", format="text", pieces=pieces)]
    files = resolve_sources(sources, root=folder, window=None, window_path=None, cache=folder / "cache")
    field = "data.source.0.pieces.tokenizer"
    return CutRequest(files=files, sources=sources, root=str(folder), pieces=pieces, field=field, project=str(project))


def write(folder: Path, **documents: bytes) -> None:
    (folder / "corpus").mkdir()
    for name, data in documents.items():
        (folder / "corpus" / name.replace("_", ".")).write_bytes(data)


def done(asked: CutRequest) -> ChunkOffsets:
    return cut_worker.main(asked, lambda report: None)


def test_documents_are_cut_and_equal_ones_once(project: Path, tmp_path: Path) -> None:
    write(tmp_path, a=b"one two three", b=b"one two three", c_gz=gzip.compress("é é é".encode()), d=b"")
    asked = request(project, tmp_path, "Words")
    offsets = done(asked)
    assert set(offsets.documents) == {offsets_name(file) for file in asked.files}
    assert len(offsets.documents) == 3
    found = [unpack(offsets.documents[offsets_name(file)], 100) for file in asked.files]
    assert [one.ends.tolist() for one in found] == [[8, 13], [8, 13], [6, 8], []]
    assert [one.tokens.tolist() for one in found] == [[2, 1], [2, 1], [2, 1], []]
    # An empty document is not asked for.
    assert sys.modules["tokenizers_of_a_test"].Words.asked == ["one two three", "é é é"]


def test_arguments_and_progress(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a=b"aXbXc")
    monkeypatch.setattr(cut_worker, "REPORT_S", 0)
    reports: list[Any] = []
    offsets = cut_worker.main(request(project, tmp_path, "Words", 1, pattern="[a-z]"), reports.append)
    assert unpack(next(iter(offsets.documents.values())), 3).ends.tolist() == [2, 4, 5]
    assert reports == [Advanced(done=1, long=True)]


FIELD = "data.source.0.pieces.tokenizer"
DOCUMENTS = {"not UTF-8": b"good \xff", "one long token": b"x" * 2**24 + b" y y"}
NAMED = f"{FIELD} \\(tokenizers_of_a_test"


@pytest.mark.parametrize(
    ("name", "init_args", "kind", "sentence"),
    [
        ("Missing", {}, UsageError, f"{FIELD}: tokenizers_of_a_test.Missing was not found: module"),
        ("no_such_module.Words", {}, UsageError, f"{FIELD}: no_such_module.Words was not found: there is no module"),
        ("raises_on_import_of_a_test.Words", {}, UserCodeError, f"{FIELD}: importing .* raised ZeroDivisionError"),
        ("function", {}, UsageError, f"{FIELD}: tokenizers_of_a_test.function is not a class"),
        ("Nothing", {}, UsageError, f"{FIELD}: tokenizers_of_a_test.Nothing has no method starts"),
        ("Words", {"other": 1}, UsageError, f"{FIELD}: .*.Words cannot be made with its init_args: .*'other'"),
        ("Returns", {}, UsageError, "tokenizers_of_a_test.Returns cannot be made with its init_args: .*'value'"),
        ("RaisesMade", {}, UserCodeError, rf"{NAMED}.RaisesMade\) raised TypeError: "),
        ("Raises", {}, UserCodeError, rf"{NAMED}.Raises\) raised KeyError: 'no vocabulary', on .*/corpus/a\."),
        ("RaisesLate", {}, UserCodeError, rf"{NAMED}.RaisesLate\) raised KeyError: 'no vocabulary', on .*/corpus/a\."),
        ("RaisesWhenRead", {}, UserCodeError, rf"{NAMED}.RaisesWhenRead\) raised KeyError: 'no vocabulary'"),
        ("Returns", {"value": None}, UserCodeError, rf"{NAMED}.Returns\): for .*/corpus/a, it returned a value of "),
        ("Returns", {"value": []}, UserCodeError, "it returned no token for a text that is not blank"),
        ("Returns", {"value": [0, 0.5]}, UserCodeError, "not a list of whole numbers"),
        ("Returns", {"value": [0, 99]}, UserCodeError, "a token starts at character 99, outside of the text of 11"),
        ("Returns", {"value": [3, 1]}, UserCodeError, "token 1 starts at character 1, before token 0 at 3"),
        ("Returns", {"value": [0, 0, 0, 0]}, UserCodeError, "more than 2 tokens start at character 0"),
        ("not UTF-8", {}, UsageError, r"corpus/a is not UTF-8 at byte 5\. Convert it"),
        (
            "one long token",
            {"tokens": 1},
            UsageError,
            r"corpus/a: 1 tokens are more than 16,777,216 characters\. Take fewer tokens",
        ),
    ],
)
def test_a_tokenizer_or_a_document_that_cannot_be_used(
    project: Path, tmp_path: Path, name: str, init_args: dict[str, Any], kind: type[TrainwrightError], sentence: str
) -> None:
    write(tmp_path, a=DOCUMENTS.get(name, b"hello world"))
    with pytest.raises(kind, match=sentence) as caught:
        done(request(project, tmp_path, "Words" if name in DOCUMENTS else name, **init_args))
    assert caught.value.exit_code == (2 if kind is UsageError else 8)
    if "KeyError" in sentence:
        assert 'tokenizers_of_a_test.py", line' in str(getattr(caught.value, "user_traceback", ""))
