"""Opens a resolved file so that what is read is what was resolved: every byte goes through its digest."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
from blake3 import blake3

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from data_contracts.handoffs import SourceFile
from infra.digests import stream_digest
from infra.settings import on_this_machine, writing
from infra.sources.places import Place, gone
from infra.sources.resolve import base_name

_PIECE = 1 << 22
# What decompressors raise. The system's own OSErrors, of reading and of copying, are told apart where they arise.
_DAMAGED = (lzma.LZMAError, zlib.error, EOFError, OSError)


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
    raw = _Hashing(_opened(file, place), file.uri)
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


Stamp = tuple[int, int, int]


@contextlib.contextmanager
def random_access(file: SourceFile, place: Place, stamp: Stamp | None = None) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed, for reading in any order; checked against its digest before anything is read.

    A local file that is not compressed is read where it lies; another is copied to a temporary file first.

    Args:
        stamp: what `stamp_of` said of the file when its digest was checked; it is not hashed again then, only
            found not to have changed since.
    """
    if _lies_here(file, place):
        with contextlib.closing(_opened(file, place)) as opened:
            before = _stamp(opened)
            if stamp is not None and stamp != before:
                raise changed(file)
            if stamp is None and stream_digest(opened) != file.blake3:
                raise changed(file)
            opened.seek(0)
            try:
                yield opened
            finally:
                # What cannot be read may be unreadable because it changed; that is the cause then.
                if _stamp(opened) != before:
                    raise changed(file)
        return
    scratch = Path(tempfile.gettempdir())
    with on_this_machine(scratch):
        copy = tempfile.TemporaryFile(prefix="trainwright-", buffering=0)  # noqa: SIM115 - closed with its reader
    with io.BufferedReader(copy, _PIECE) as buffered:
        write = writing(copy, scratch)
        with stream(file, place) as plain:
            while piece := plain.read(_PIECE):
                write(piece)
        buffered.seek(0)
        yield cast(BinaryIO, buffered)


def stamp_of(file: SourceFile, place: Place) -> Stamp | None:
    """Size, mtime in ns and inode of a file that `random_access` reads where it lies; None for another."""
    if not _lies_here(file, place):
        return None
    with contextlib.closing(_opened(file, place)) as opened:
        return _stamp(opened)


def whole(file: SourceFile, place: Place) -> bytes:
    """All bytes of a small file; CorruptError if they are not what was resolved."""
    with contextlib.closing(_opened(file, place)) as opened:
        data = opened.read()
    if blake3(data).hexdigest() != file.blake3:
        raise changed(file)
    return data


def _lies_here(file: SourceFile, place: Place) -> bool:
    return place.rev is None and "://" not in file.uri and not base_name(file.uri)[1]


def _stamp(opened: BinaryIO) -> Stamp:
    facts = os.fstat(opened.fileno())
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


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
        """Read what is left, such as bytes behind the end of a compressed stream."""
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
