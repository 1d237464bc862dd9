"""`format: text`: the pieces of documents, joined, are their bytes; what is not text is refused with its place."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest
from pydantic import ValidationError

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import PiecesSpec
from infra.sources import documents as texts
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw

AWKWARD = "\ufeffone\r\ntwo\n\n\x00é\u2028€𝄞𝄞\rx".encode()
DOCUMENTS = {
    "awkward": AWKWARD, "empty": b"", "newline": b"\n", "no newline": b"a\nb", "short": "é".encode(),
    "long": "😀".encode() * 999 + b"x" * 999,
}  # fmt: skip


def corpus(raw: Raw, documents: dict[str, bytes], **pieces: int) -> dict[str, Any]:
    write_files(raw.root, {f"corpus/{name}.txt": data for name, data in documents.items()})
    return {"uri": "corpus/*.txt", "format": "text", "pieces": pieces}


def joined(table: pa.Table) -> dict[str, bytes]:
    """Each document, from its pieces in the order of their offsets; their numbers are checked."""
    found: dict[str, bytes] = {}
    seen: dict[str, int] = {}
    for row in table.to_pylist():
        name = row["document"].removesuffix(".txt")
        before = found.get(name, b"")
        assert (row["offset"], row["position"]) == (len(before), seen.get(name, 0))
        found[name], seen[name] = before + row["text"].encode(), row["position"] + 1
    assert all(row["pieces"] == seen[row["document"].removesuffix(".txt")] for row in table.to_pylist())
    return found


@pytest.mark.parametrize("block", [4, 7, 64, 1 << 22])
@pytest.mark.parametrize("pieces", [{"bytes": 4}, {"bytes": 5}, {"bytes": 100}, {"lines": 1}, {"lines": 2}])
def test_the_pieces_of_a_document_are_its_bytes(
    raw: Raw, pieces: dict[str, int], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_BLOCK", block)  # a document is read in one piece, or in many
    monkeypatch.setattr(texts, "_COUNTS", {})
    table = raw.read(corpus(raw, DOCUMENTS, **pieces))
    assert table.schema.names == ["document", "position", "pieces", "offset", "length", "text"]
    assert joined(table) == {name: data for name, data in DOCUMENTS.items() if data}
    for row in table.to_pylist():
        [(unit, most)] = pieces.items()
        data = row["text"].encode()
        size = len(data) if unit == "bytes" else data.count(b"\n") + (not data.endswith(b"\n"))
        assert row["length"] == size <= most
        last = row["position"] == row["pieces"] - 1
        assert last or size > most - (4 if unit == "bytes" else 1)


def test_compressed_documents_a_pattern_and_some_columns(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        raw.write(f"corpus/{'en' if number else 'de'}/{number}.txt.gz", gzip.compress(b"line\n" * (number + 1)))
    source = {"uri": "corpus/**/*.gz", "format": "text", "pieces": {"lines": 1}, "pattern": "{language}/{n}.txt.gz"}
    table = raw.read(source, columns=["language", "document", "pieces"])
    assert table.to_pydict() == {
        "language": ["de", "en", "en", "en", "en", "en"],
        "document": ["de/0.txt.gz", *["en/1.txt.gz"] * 2, *["en/2.txt.gz"] * 3],
        "pieces": [1, 2, 2, 3, 3, 3],
    }
    assert raw.read(source, columns=[]).num_rows == 6
    with pytest.raises(UsageError, match=r"none that always exists \(document, position, pieces"):
        raw.read({**source, "pattern": "{text}.gz"})


@pytest.mark.parametrize("block", [8, 1 << 22])
@pytest.mark.parametrize(
    ("data", "at"), [(b"0123456789\xff and on", 10), ("é".encode("latin-1"), 0), (b"0123456789" + "€".encode()[:2], 10),
                     (b"a" + b"\x80" * 9, 1)]
)  # fmt: skip
def test_what_is_not_utf8_is_told_with_file_and_byte(
    raw: Raw, data: bytes, at: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_BLOCK", block)
    for pieces in ({"bytes": 4}, {"lines": 1}):
        with pytest.raises(UsageError, match=rf"bad\.txt is not UTF-8 at byte {at}\."):
            raw.read(corpus(raw, {"a": b"good", "bad": data}, **pieces))


def test_lines_without_ends_are_refused_and_bytes_take_them(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 64)
    monkeypatch.setattr(texts, "_MOST_BYTES", 100)
    documents = {"a": b"ok\n" + b"x" * 300 + b"\n"}
    with pytest.raises(UsageError, match=r"a\.txt: 1 lines from byte 3 on are larger than 0 MiB"):
        raw.read(corpus(raw, documents, lines=1))
    monkeypatch.setattr(texts, "_BLOCK", 1 << 22)
    with pytest.raises(UsageError, match="lines from byte 3 on"):
        raw.read(corpus(raw, documents, lines=1))
    assert joined(raw.read(corpus(raw, documents, bytes=7))) == documents


class Endless:
    """A document of one line that never ends."""

    def __init__(self) -> None:
        self.left = 10

    def read(self, size: int) -> bytes:
        self.left -= 1
        assert self.left, "the whole document would be read"
        return b"x" * size


def test_a_line_that_does_not_end_is_refused_before_it_is_read_whole() -> None:
    file = SourceFile(uri="a.txt", bytes=0, blake3="", format="text", columns={"document": "a.txt"})
    pieces, endless = PiecesSpec(lines=1), cast(BinaryIO, Endless())
    with pytest.raises(UsageError, match=r"a\.txt: 1 lines from byte 0 on are larger than 8 MiB"):
        list(texts._cut_stream(endless, texts._cut_of(pieces, file), file, pieces))


def test_pieces_by_bytes_may_be_larger_than_pieces_of_lines(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 1000)
    monkeypatch.setattr(texts, "_MOST_BYTES", 2000)
    table = raw.read(corpus(raw, {"a": b"x" * 10_000}, bytes=4096))
    assert table["length"].to_pylist() == [4096, 4096, 1808]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ({"format": "text"}, "format: text needs it"),
        ({"pieces": {"bytes": 8}}, "pieces: is for format: text"),
        ({"format": "text", "pieces": {}}, "give one of bytes, lines and tokens"),
        ({"format": "text", "pieces": {"bytes": 8, "lines": 1}}, "give one of bytes, lines and tokens"),
        ({"format": "text", "pieces": {"bytes": 3}}, "greater than or equal to 4"),
    ],
)
def test_pieces_that_cannot_be(raw: Raw, source: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        raw.resolve({"uri": "a.txt", **source})


MEASURE = """
import resource, sys
from pathlib import Path
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.files import file_digest
from infra.sources import read_batches
path = Path(sys.argv[1])
file = SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=file_digest(path), format="text",
                  columns={"document": "a"})
source = SourceSpec.model_validate({"uri": str(path), "format": "text", "pieces": {"bytes": 4096}})
next(read_batches([file], [source], root=path.parent))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(batch.num_rows for batch in read_batches([file], [source], root=path.parent))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_line_of_any_length_is_read_in_bounded_memory(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        for _ in range(96):
            file.write(b"x" * 2**20)
    done = subprocess.run([sys.executable, "-c", MEASURE, path], cwd=repository, capture_output=True, check=True)
    rows, grown_kb = map(int, done.stdout.split())
    assert rows == 96 * 2**20 // 4096
    assert grown_kb < 32 * 1024
