"""Documents cut into pieces, each of which is a row; and files that are rows themselves, such as images.

A document is cut by bytes, by lines or where a tokenizer did, as a stream. Joined, its pieces are its bytes: a byte
order mark, carriage returns and a missing last newline stay as they are. A large document is read twice, because each
piece says how many there are. A tokenizer is the user's code, and runs in one child process
(`training.shard.cut_worker`); its chunk offsets are packed into a text that travels with a resolved file. Each reader
of the rows cuts at the same bytes, and runs no code of the user's.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import PiecesSpec
from infra.sources.places import Place, base_name, most_bytes, stream, whole

DOCUMENT, TEXT = "document", "text"
_NUMBERS = ("position", "pieces", "offset", "length")
# They say where a piece lies, and not what it is.
PLACE = (DOCUMENT, *_NUMBERS)
# Bytes that are read at once, and about as many are in a batch.
_BLOCK = 1 << 22
# The largest piece of lines, so that a document without line ends is not read without bound.
_MOST_BYTES = 1 << 23
# Bytes of files in one batch; a larger file is a batch of its own.
_FILES_BYTES = 1 << 25
_LARGEST = 2**31 - 1
# The ends of the pieces in some bytes; if these are the last, then of all pieces.
_Cut = Callable[[bytes, bool], list[int]]
_COUNTS: dict[tuple[str, str, str], int] = {}
_MOST_COUNTS = 50_000  # some 20 MB
# A piece has at most as many characters as a tokenizer is given at once, of four bytes each.
MOST_PIECE_BYTES = 1 << 26
_BYTES_OF_PIECE = 8


@dataclass(frozen=True)
class _Block:
    """Some pieces of a document: their bytes and ends, and the first one's place and byte."""

    data: bytes
    ends: list[int]
    position: int
    offset: int


@lru_cache
def text_schema(named: tuple[str, ...]) -> pa.Schema:
    """The columns of a document's pieces: its name, other columns from its path, numbers and the text."""
    named = tuple(name for name in named if name != DOCUMENT)
    texts, numbers = [(name, pa.string()) for name in (DOCUMENT, *named)], [(name, pa.int64()) for name in _NUMBERS]
    return pa.schema([*texts, *numbers, (TEXT, pa.string())])


def text_batches(
    run: list[SourceFile], place: Place, pieces: PiecesSpec, columns: list[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The pieces of documents in order; small documents share a batch.

    Raises: UsageError if a document is not UTF-8, or a piece of lines is too large; CorruptError if a tokenizer's cut
        is not of its document.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for file in run:
        for whole_rows in _fitting(file, _blocks(file, place, pieces, counted="pieces" in columns)):
            batch = whole_rows.select(columns) if columns else without_columns(whole_rows.num_rows)
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= batch_rows or size >= _BLOCK:
                yield _joined(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _fitting(file: SourceFile, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The blocks; CorruptError if a cut does not fit, unless the cause is that the document changed."""
    try:
        yield from blocks
    except Unfit as error:
        raise unfit(file, error) from error


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1 or not batches[0].num_columns:
        return batches[0] if len(batches) == 1 else without_columns(sum(one.num_rows for one in batches))
    [batch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def _blocks(file: SourceFile, place: Place, pieces: PiecesSpec, *, counted: bool) -> Iterator[pa.RecordBatch]:
    """A document's pieces, some at a time, with all columns; `pieces` is 0 unless they are `counted`."""
    cut = _cut_of(pieces, file)
    if file.bytes <= _BLOCK and not base_name(file.uri)[1]:
        data = whole(file, place)
        ends = cut(data, True)
        if ends:
            yield _rows(file, pieces, _Block(data, ends, 0, 0), len(ends))
        return
    count = _count(file, place, pieces) if counted else 0
    with stream(file, place) as opened:
        for block in _cut_stream(opened, cut, file, pieces):
            yield _rows(file, pieces, block, count)


def _count(file: SourceFile, place: Place, pieces: PiecesSpec) -> int:
    """How many pieces a document has; each process counts once, unless the cut says it."""
    if pieces.tokens is not None:
        return len(offsets_of(file).ends)
    key = (file.uri, file.blake3, pieces.model_dump_json())
    count = _COUNTS.get(key)
    if count is None:
        with stream(file, place) as opened:
            blocks = _cut_stream(opened, _cut_of(pieces, file), file, pieces)
            count = sum(len(block.ends) for block in blocks)
        while len(_COUNTS) >= _MOST_COUNTS:
            _COUNTS.pop(next(iter(_COUNTS)), None)
        _COUNTS[key] = count
    return count


def _cut_stream(opened: BinaryIO, cut: _Cut, file: SourceFile, pieces: PiecesSpec) -> Iterator[_Block]:
    rest, position, offset, last = b"", 0, 0, False
    while not last:
        read = opened.read(_BLOCK)
        data, last = rest + read, not read
        ends = cut(data, last)
        done = ends[-1] if ends else 0
        if pieces.lines is not None and len(data) - done > _MOST_BYTES:
            raise _too_large(file, pieces, offset + done)
        if ends:
            yield _Block(data, ends, position, offset)
        rest, position, offset = data[done:], position + len(ends), offset + done


def _cut_of(pieces: PiecesSpec, file: SourceFile) -> _Cut:
    if pieces.bytes is not None:
        return _by_bytes(pieces.bytes)
    if pieces.lines is not None:
        return _by_lines(pieces.lines)
    assert pieces.tokens is not None
    return _by_tokens(file, pieces.tokens)


def _by_bytes(most: int) -> _Cut:
    """Pieces of at most so many bytes, which end where a character ends."""

    def cut(data: bytes, last: bool) -> list[int]:
        ends, start, size = [], 0, len(data)
        while size - start > most:
            end = start + most
            for _ in range(3):  # a character has at most three more bytes than its first
                if data[end] & 0xC0 != 0x80:
                    break
                end -= 1
            ends.append(end)
            start = end
        return [*ends, size] if last and size > start else ends

    return cut


def _by_lines(count: int) -> _Cut:
    def cut(data: bytes, last: bool) -> list[int]:
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        ends: list[int] = newlines[count - 1 :: count].tolist()
        return [*ends, len(data)] if last and len(data) > (ends[-1] if ends else 0) else ends

    return cut


def _by_tokens(file: SourceFile, most: int) -> _Cut:
    """Pieces that end where the tokenizer ended them; `cut` gets a document's bytes in their order."""
    stored = offsets_of(file)
    ends, start = stored.ends, 0
    if (stored.tokens > most).any():
        raise Unfit(f"a piece has more than {most} tokens")

    def cut(data: bytes, last: bool) -> list[int]:
        nonlocal start
        size = start + len(data)
        found = ends[np.searchsorted(ends, start, "right") : np.searchsorted(ends, size, "right")] - start
        done = start + (int(found[-1]) if len(found) else 0)
        if last and not done == size == (ends[-1] if len(ends) else 0):
            raise Unfit(f"it ends at byte {ends[-1] if len(ends) else 0}, and the document at byte {size}")
        start = done
        return found.tolist()

    return cut


def _rows(file: SourceFile, pieces: PiecesSpec, block: _Block, count: int) -> pa.RecordBatch:
    bounds = np.array([0, *block.ends], np.int32)
    sizes = np.diff(bounds).astype(np.int64)
    if pieces.lines is not None and sizes.max() > _MOST_BYTES:
        raise _too_large(file, pieces, block.offset + int(bounds[int(np.argmax(sizes > _MOST_BYTES))]))
    rows = len(sizes)
    # The pieces lie one after another, so their text is the bytes that were read.
    text = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(block.data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        # The tokenizer saw text, so what is wrong is where it was cut.
        raise _not_utf8(file, block) if pieces.tokens is None else Unfit("it cuts a character") from error
    columns = {name: pa.repeat(pa.scalar(file.columns[name]), rows) for name in file.columns}
    columns |= {
        "position": pa.array(np.arange(block.position, block.position + rows)),
        "pieces": pa.repeat(pa.scalar(count, pa.int64()), rows),
        "offset": pa.array(bounds[:-1].astype(np.int64) + block.offset),
        "length": pa.array(_lengths(file, pieces, block, bounds)),
        TEXT: text,
    }
    return pa.RecordBatch.from_pydict(columns, schema=text_schema(tuple(file.columns)))


def _lengths(file: SourceFile, pieces: PiecesSpec, block: _Block, bounds: NDArray[np.int32]) -> NDArray[np.int64]:
    """The length of each piece in the unit by which the document is cut."""
    if pieces.tokens is not None:
        return offsets_of(file).tokens[block.position : block.position + len(bounds) - 1]
    return np.diff(bounds).astype(np.int64) if pieces.lines is None else _lines(block, bounds, pieces.lines)


def _lines(block: _Block, bounds: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """The lines of each piece: only the last piece of a document may have fewer."""
    lines = np.full(len(bounds) - 1, count, np.int64)
    last = block.data[bounds[-2] : bounds[-1]]
    lines[-1] = last.count(b"\n") + (not last.endswith(b"\n"))
    return lines


def _not_utf8(file: SourceFile, block: _Block) -> UsageError:
    try:
        block.data[: block.ends[-1]].decode()
        at = 0  # a piece ends inside a character, which only bytes that are none allow
    except UnicodeDecodeError as error:
        at = error.start
    return not_utf8(file, block.offset + at)


def not_utf8(file: SourceFile, at: int) -> UsageError:
    """The error for a document that is not text from a byte on."""
    return UsageError(f"{file.uri} is not UTF-8 at byte {at}.", remedy="Convert it to UTF-8.")


def _too_large(file: SourceFile, pieces: PiecesSpec, offset: int) -> UsageError:
    return UsageError(
        f"{file.uri}: {pieces.lines} lines from byte {offset} on are larger than {_MOST_BYTES >> 20} MiB.",
        remedy="Take fewer lines, or cut the document by bytes.",
    )


def rows_of_files(run: list[SourceFile], place: Place, columns: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """One row per file: `path`, the pattern's columns, `bytes`; a file is opened only if `bytes` is requested."""
    waiting: list[SourceFile] = []
    size = 0
    for file in run:
        if file.bytes > _LARGEST and "bytes" in columns:
            raise UsageError(
                f"{file.uri} is larger than 2 GiB, the most that one row can hold.",
                remedy="Split it into several files.",
            )
        added = file.bytes if "bytes" in columns else 0
        if waiting and (len(waiting) == batch_rows or size + added > _FILES_BYTES):
            yield _file_batch(waiting, place, columns)
            waiting, size = [], 0
        waiting.append(file)
        size += added
    if waiting:
        yield _file_batch(waiting, place, columns)


def without_columns(rows: int) -> pa.RecordBatch:
    """A batch that has rows but no columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _file_batch(files: list[SourceFile], place: Place, columns: list[str]) -> pa.RecordBatch:
    named = [name for name in files[0].columns if name in columns]
    arrays = {name: pa.array([file.columns[name] for file in files], pa.string()) for name in named}
    if "bytes" in columns:
        arrays["bytes"] = pa.array([whole(file, place) for file in files], pa.binary())
    return pa.RecordBatch.from_pydict(arrays) if arrays else without_columns(len(files))


class Unfit(ValueError):
    """Chunk offsets do not fit the document that is read; `why` is a clause in our words."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


@dataclass(frozen=True)
class TokenOffsets:
    """Where a tokenizer cuts one document: the byte after each piece, and its tokens; both (pieces,)."""

    ends: NDArray[np.int64]
    tokens: NDArray[np.int64]


def offsets_name(file: SourceFile) -> str:
    """The name of a document's chunk offsets: of its bytes, and of how they are decompressed."""
    return file.blake3 + base_name(file.uri)[1]


def pack(sizes: list[int], tokens: list[int]) -> str:
    """Bytes and tokens of each piece as a text: about two to three characters a piece."""
    numbers = np.array([sizes, tokens], "<i4")
    return base64.b64encode(zlib.compress(numbers.tobytes())).decode()


@lru_cache(maxsize=8)
def unpack(packed: str, most: int) -> TokenOffsets:
    """What `pack` was given; Unfit for any other text, or for more than `most` pieces, which are not unpacked."""
    expanding = zlib.decompressobj()
    try:
        data = expanding.decompress(base64.b64decode(packed, validate=True), most * _BYTES_OF_PIECE + 1)
    except (ValueError, zlib.error) as error:
        raise Unfit("it cannot be unpacked") from error
    if len(data) > most * _BYTES_OF_PIECE:
        raise Unfit("it has more pieces than the document can have")
    if not expanding.eof or len(data) % _BYTES_OF_PIECE:
        raise Unfit("it has no pair of numbers for each piece")
    sizes, tokens = np.frombuffer(data, "<i4").reshape(2, -1).astype(np.int64)
    if (sizes <= 0).any() or (sizes > MOST_PIECE_BYTES).any() or (tokens < 0).any():
        raise Unfit("a piece has no bytes, too many, or less than no tokens")
    return TokenOffsets(np.cumsum(sizes), tokens)


def offsets_of(file: SourceFile) -> TokenOffsets:
    """The chunk offsets that travel with a file; Unfit if it is damaged."""
    assert file.chunk_offsets is not None, f"{file.uri} was not cut before it is read"
    return unpack(file.chunk_offsets, most_bytes(file))


def unfit(file: SourceFile, error: Unfit) -> CorruptError:
    """The error for chunk offsets that do not fit this document."""
    return CorruptError(
        f"The stored cut of {file.uri} into pieces does not fit it: {error.why}.",
        remedy="Remove the directory of kind text_cuts from contracts/ in the store, and run again.",
    )
