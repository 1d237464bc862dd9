"""Documents are read as a tokenizer cut them; a cut that is not theirs is damage, and a changed document is named."""

from __future__ import annotations

import base64
import bz2
import gzip
import tracemalloc
import zlib
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.errors import CorruptError
from data_contracts.handoffs import SourceFile
from infra.sources import documents
from infra.sources.documents import MOST_PIECE_BYTES, Unfit, offsets_name, offsets_of, pack, unpack
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw
from training.shard.cut_worker import MOST

SOURCE = {"uri": "corpus/*", "format": "text", "pieces": {"tokens": 2, "tokenizer": "any.Class"}}


def cut(raw: Raw, offsets: dict[str, str | None]) -> list[SourceFile]:
    files = raw.resolve(SOURCE)
    return [file.model_copy(update={"chunk_offsets": offsets[file.columns["document"]]}) for file in files]


@pytest.mark.parametrize("block", [3, 4, 1 << 22])
def test_documents_are_cut_where_the_tokenizer_cut_them(raw: Raw, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK", block)
    write_files(raw.root, {"corpus/a": "one é two", "corpus/b.gz": gzip.compress(b"three"), "corpus/empty": ""})
    files = cut(raw, {"a": pack([6, 4], [2, 1]), "b.gz": pack([5], [1]), "empty": pack([], [])})
    table = raw.read(SOURCE, files=files)
    assert table.to_pydict() == {
        "document": ["a", "a", "b.gz"],
        "position": [0, 1, 0],
        "pieces": [2, 2, 1],
        "offset": [0, 6, 0],
        "length": [2, 1, 1],
        "text": ["one é", " two", "three"],
    }
    assert raw.read(SOURCE, files=files, columns=["length"])["length"].to_pylist() == [2, 1, 1]
    assert raw.read(SOURCE, files=files, columns=[]).num_rows == 3


MISFITS = {
    "it ends at byte 9, and the document at byte 10": ([4, 5], [1, 1]),
    "it ends at byte 11, and the document at byte 10": ([6, 5], [1, 1]),
    "it ends at byte 0, and the document at byte 10": ([], []),
    "it cuts a character": ([5, 5], [1, 1]),
    "a piece has more than 2 tokens": ([6, 4], [3, 1]),
}


@pytest.mark.parametrize("block", [4, 1 << 22])
@pytest.mark.parametrize("why", MISFITS)
def test_a_cut_of_another_document(raw: Raw, why: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK", block)
    raw.write("corpus/a", "one é two")
    files = cut(raw, {"a": pack(*MISFITS[why])})
    with pytest.raises(CorruptError, match=f"The stored cut of .*/corpus/a into pieces does not fit it: {why}"):
        raw.read(SOURCE, files=files)


@pytest.mark.parametrize("block", [4, 1 << 22])
def test_a_document_that_changed_is_the_cause(raw: Raw, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK", block)
    raw.write("corpus/a", "one é two")
    files = cut(raw, {"a": pack([6, 4], [2, 1])})
    raw.write("corpus/a", "one é two!")
    with pytest.raises(CorruptError, match="corpus/a changed after this run resolved it"):
        raw.read(SOURCE, files=files)


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "text",
    [
        *("not base64!", "é", "", "AAAA", packed(bytes(3)), packed(bytes(12)), packed(b"1" * 64)[:-12]),
        *(pack([0], [1]), pack([-1], [1]), pack([1], [-1]), pack([MOST_PIECE_BYTES + 1], [1])),
    ],
)
def test_a_text_that_is_no_cut(text: str) -> None:
    with pytest.raises(Unfit):
        unpack(text, 100)


def test_a_cut_of_more_pieces_than_a_document_has_bytes_is_not_unpacked(raw: Raw) -> None:
    write_files(raw.root, {"corpus/a": "one", "corpus/b.gz": gzip.compress(b"two")})
    million = pack([1] * 1_000_000, [1] * 1_000_000)
    for file in cut(raw, {"a": million, "b.gz": million}):
        tracemalloc.start()
        with pytest.raises(CorruptError, match="it has more pieces than the document can have"):
            raw.read(SOURCE, files=[file])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4_000_000


@pytest.mark.parametrize("ending", [".bz2", ".zst"])
def test_a_text_that_repeats_has_more_pieces_than_its_compressed_form_suggests(ending: str) -> None:
    number = 2_000_000
    text = b"a " * number
    data = bz2.compress(text) if ending == ".bz2" else pa.compress(text, codec="zstd", asbytes=True)
    cut = pack([2] * number, [1] * number)
    file = SourceFile(uri=f"corpus/a.txt{ending}", bytes=len(data), blake3="0f", format="text", cut=cut)
    assert len(offsets_of(file).ends) == number


def test_the_largest_piece_of_a_tokenizer_is_read() -> None:
    assert MOST_PIECE_BYTES == 4 * MOST


@pytest.mark.parametrize(("sizes", "tokens"), [([], []), ([1], [0]), ([2**24, 3, 9], [512, 512, 1])])
def test_what_is_packed_is_unpacked(sizes: list[int], tokens: list[int]) -> None:
    found = unpack(pack(sizes, tokens), 3)
    assert found.tokens.tolist() == tokens
    assert found.ends.tolist() == [sum(sizes[: at + 1]) for at in range(len(sizes))]


def test_a_document_and_its_compressed_form_have_cuts_of_their_own() -> None:
    def named(uri: str) -> str:
        return offsets_name(SourceFile(uri=uri, bytes=1, blake3="0f", format="text"))

    names: list[Any] = [named(uri) for uri in ("a/b.txt", "c.md", "b.txt.gz", "b.txt.GZ", "b.zst")]
    assert names == ["0f", "0f", "0f.gz", "0f.gz", "0f.zst"]
