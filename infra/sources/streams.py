"""Opens a resolved file so that what is read is what was resolved: every byte goes through its digest."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa
from blake3 import blake3

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from data_contracts.handoffs import SourceFile
from infra.digests import stream_digest
from infra.sources.places import Place, gone
from infra.sources.resolve import base_name

_PIECE = 1 << 22
_DAMAGED = (gzip.BadGzipFile, lzma.LZMAError, EOFError, OSError)


def changed(file: SourceFile) -> CorruptError:
    """The error for a file whose bytes are not those that were resolved."""
    return CorruptError(
        f"{file.uri} changed after this run resolved it: its bytes do not have the digest {file.blake3[:16]}….",
        remedy="Start a new run, which reads it as it is now.",
    )


@contextlib.contextmanager
def stream(file: SourceFile, place: Place) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed, read once from the beginning.

    Raises:
        CorruptError: on leaving without an error, if the whole file's bytes do not have its digest.
        UsageError: it is gone, or damaged in its compression.
    """
    raw = _Hashing(_opened(file, place))
    buffered = io.BufferedReader(raw, _PIECE)  # kept, for it closes what it reads when it is forgotten
    try:
        with _decompressed(buffered, file) as plain:
            yield plain
        raw.finish()
        if raw.hexdigest() != file.blake3:
            raise changed(file)
    except (CorruptError, StorageUnavailable):
        raise
    except Exception as error:
        # What cannot be read may be unreadable because it changed; that is the cause then.
        with contextlib.closing(_opened(file, place)) as again:
            if stream_digest(again) != file.blake3:
                raise changed(file) from error
        if isinstance(error, _DAMAGED) and base_name(file.uri)[1]:
            raise UsageError(
                f"{file.uri} is no whole {base_name(file.uri)[1]} file ({error}).", remedy="Compress it again."
            ) from error
        raise
    finally:
        buffered.close()


@contextlib.contextmanager
def random_access(file: SourceFile, place: Place) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed, for reading in any order; checked against its digest before anything is read.

    A local file that is not compressed is read where it lies; another is copied to a temporary file first.
    """
    if place.rev is None and "://" not in file.uri and not base_name(file.uri)[1]:
        with contextlib.closing(_opened(file, place)) as opened:
            before = os.fstat(opened.fileno())
            if stream_digest(opened) != file.blake3:
                raise changed(file)
            opened.seek(0)
            yield opened
            after = os.fstat(opened.fileno())
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise changed(file)
        return
    with tempfile.TemporaryFile(prefix="trainwright-") as copy:
        with stream(file, place) as plain:
            shutil.copyfileobj(plain, copy, _PIECE)
        copy.seek(0)
        yield cast(BinaryIO, copy)


def whole(file: SourceFile, place: Place) -> bytes:
    """All bytes of a small file; CorruptError if they are not what was resolved."""
    with contextlib.closing(_opened(file, place)) as opened:
        data = opened.read()
    if blake3(data).hexdigest() != file.blake3:
        raise changed(file)
    return data


def _opened(file: SourceFile, place: Place) -> BinaryIO:
    try:
        return place.open(file.uri)
    except FileNotFoundError as error:
        raise gone(file.uri) from error


def _decompressed(raw: io.BufferedReader[Any], file: SourceFile) -> Any:
    ending = base_name(file.uri)[1]
    if ending == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if ending == ".bz2":
        return bz2.BZ2File(raw)
    if ending == ".xz":
        return lzma.LZMAFile(raw)
    if ending == ".zst":
        # Left to be closed by `stream`: closing it would close what it reads before the rest is hashed.
        return contextlib.nullcontext(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
    return contextlib.nullcontext(raw)


class _Hashing(io.RawIOBase):
    """A reader that hashes what passes through it."""

    def __init__(self, opened: BinaryIO) -> None:
        super().__init__()
        self._opened, self._hasher = opened, blake3()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._opened.read(len(buffer))
        self._hasher.update(piece)
        buffer[: len(piece)] = piece
        return len(piece)

    def finish(self) -> None:
        """Read what is left, such as bytes behind the end of a compressed stream."""
        while piece := self._opened.read(_PIECE):
            self._hasher.update(piece)

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()

    def close(self) -> None:
        if not self.closed:
            self._opened.close()
        super().close()
