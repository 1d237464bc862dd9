"""Open a resolved file and hash every byte that is read, so that the data is what was resolved."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa
from blake3 import blake3

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.quoting import text_of
from infra import scratch
from infra.files import stream_digest
from infra.settings import writing
from infra.sources.places import Place, Stamp, source_missing, stamp_of_stat

_PIECE = 1 << 22
# A compressed Parquet file is copied in full before it is read, up to the larger of both: some kilobytes could fill the
# disk.
_MOST_TIMES, _FREE_BYTES = 100, 1 << 30
# Of how many bytes at most one is left, by a file's compression: reached by a character that repeats.
_MOST_COMPRESSED = {"": 1, ".gz": 1 << 11, ".xz": 1 << 14, ".zst": 1 << 15, ".bz2": 1 << 21}
COMPRESSIONS = tuple(filter(None, _MOST_COMPRESSED))
# Errors of decompressors. The system's own OSErrors, from reading and copying, are told apart where they occur.
_DAMAGED = (lzma.LZMAError, zlib.error, EOFError, OSError)


def base_name(uri: str) -> tuple[str, str]:
    """A file's extension without its compression, and the compression's (`""` if it has none), both in lower case."""
    name, ending = os.path.splitext(uri.lower())
    return (os.path.splitext(name)[1], ending) if ending in COMPRESSIONS else (ending, "")


def most_bytes(file: SourceFile) -> int:
    """How many bytes a file has at most when it is decompressed."""
    return file.bytes * _MOST_COMPRESSED[base_name(file.uri)[1]]


def changed(file: SourceFile) -> CorruptError:
    """The error for a file whose bytes are not those that were resolved."""
    return CorruptError(
        f"{file.uri} changed after this run resolved it: its bytes do not have the digest {file.blake3[:16]}….",
        remedy="Start a new run, which reads the file as it is now.",
    )


@contextlib.contextmanager
def stream(file: SourceFile, place: Place) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed, read once from the beginning.

    Raises:
        CorruptError: on leaving without an error, if the whole file's bytes do not have its digest.
        UsageError: the file is gone, or its compressed data is damaged.
    """
    raw = _Hashing(stored_bytes(file, place), file.uri)
    buffered = io.BufferedReader(raw, _PIECE)  # keep a reference: a discarded reader closes its source
    try:
        with decompressed(buffered, file) as plain:
            yield plain
        raw.finish()
        if raw.hexdigest() != file.blake3:
            raise changed(file)
    except (CorruptError, StorageUnavailable):
        raise
    except Exception as error:
        # A file that changed may be unreadable for that reason; then the change is the cause.
        with contextlib.closing(stored_bytes(file, place)) as again:
            if stream_digest(again) != file.blake3:
                raise changed(file) from error
        if isinstance(error, _DAMAGED) and base_name(file.uri)[1]:
            raise UsageError(
                f"{file.uri} is not a whole {base_name(file.uri)[1]} file ({text_of(error)}).",
                remedy="Compress it again.",
            ) from error
        raise
    finally:
        buffered.close()


@contextlib.contextmanager
def random_access(file: SourceFile, place: Place, stamp: Stamp | None = None) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed, for reading in any order; its digest is checked before anything is read.

    An uncompressed local file is read in place; any other file is copied to a temporary file first.

    Args:
        stamp: result of `stamp_of` when the file's digest was checked; the file is hashed again only if its stamp has
            changed since.

    Raises: UsageError also if a compressed file becomes much too large.
    """
    if _lies_here(file, place):
        with contextlib.closing(stored_bytes(file, place)) as opened:
            before = _stamp(opened)
            if stamp != before:
                _check_digest(opened, file)
            try:
                yield opened
            finally:
                # A file that changed may be unreadable for that reason; then the change is the cause.
                after = _stamp(opened)
                if after[:3] != before[:3]:
                    raise changed(file)
                if after != before:  # a new name or mode, or bytes whose mtime was set back
                    _check_digest(opened, file)
        return
    copy = scratch.unnamed_file()
    with io.BufferedReader(copy, _PIECE) as buffered:
        write = writing(copy, scratch.default_root())
        with stream(file, place) as plain:
            most_bytes = max(_FREE_BYTES, _MOST_TIMES * file.bytes)
            while piece := plain.read(_PIECE):
                write(piece)
                if copy.tell() > most_bytes:
                    raise UsageError(
                        f"{file.uri} is more than {_MOST_TIMES} times as large when it is decompressed.",
                        remedy="Check the file; write Parquet with a compression of its own.",
                    )
        buffered.seek(0)
        yield cast(BinaryIO, buffered)


def stamp_of(file: SourceFile, place: Place) -> Stamp | None:
    """The stamp of a file that `random_access` reads in place; None for any other file."""
    if not _lies_here(file, place):
        return None
    with contextlib.closing(stored_bytes(file, place)) as opened:
        return _stamp(opened)


def whole(file: SourceFile, place: Place) -> bytes:
    """All bytes of a small file; CorruptError if they are not what was resolved."""
    with contextlib.closing(stored_bytes(file, place)) as opened:
        data = opened.read()
    if blake3(data).hexdigest() != file.blake3:
        raise changed(file)
    return data


def _lies_here(file: SourceFile, place: Place) -> bool:
    return place.rev is None and "://" not in file.uri and not base_name(file.uri)[1]


def _stamp(opened: BinaryIO) -> Stamp:
    return stamp_of_stat(os.fstat(opened.fileno()))


def _check_digest(opened: BinaryIO, file: SourceFile) -> None:
    opened.seek(0)
    if stream_digest(opened) != file.blake3:
        raise changed(file)
    opened.seek(0)


def stored_bytes(file: SourceFile, place: Place) -> BinaryIO:
    """The file's stored bytes; SourceMissing if it is gone."""
    try:
        return place.open(file.uri)
    except FileNotFoundError as error:
        raise source_missing(file.uri) from error


def decompressed(raw: io.BufferedReader[Any], file: SourceFile) -> Any:
    """A context manager with the plain bytes of a file that may be compressed."""
    ending = base_name(file.uri)[1]
    if ending == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if ending == ".bz2":
        return bz2.BZ2File(raw)
    if ending == ".xz":
        return lzma.LZMAFile(raw)
    if ending == ".zst":
        # `stream` closes it: closing it here would close its source before the rest is hashed.
        return contextlib.nullcontext(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
    return contextlib.nullcontext(raw)


class _Hashing(io.RawIOBase):
    """A reader that hashes the bytes that pass through it."""

    def __init__(self, opened: BinaryIO, uri: str) -> None:
        super().__init__()
        self._opened, self._uri, self._hasher = opened, uri, blake3()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._piece(len(buffer))
        self._hasher.update(piece)
        buffer[: len(piece)] = piece
        return len(piece)

    def finish(self) -> None:
        """Read the remaining bytes, such as those after the end of a compressed stream."""
        while piece := self._piece(_PIECE):
            self._hasher.update(piece)

    def _piece(self, size: int) -> bytes:
        try:
            return self._opened.read(size)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageUnavailable(f"{self._uri} cannot be read now ({error.strerror or error}).") from error

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()

    def close(self) -> None:
        if not self.closed:
            self._opened.close()
        super().close()
