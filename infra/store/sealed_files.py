"""Files of sealed directories, read so that the bytes that are used are the bytes that were hashed.

Whoever can write a store can exchange a file, or write into it, between the moment when it is hashed and the moment
when it is read. So a file is hashed once, whole and in pieces; each piece is then read into memory of this process's
own, and used only if it is still the piece that was hashed.
"""

from __future__ import annotations

import hashlib
import json
import os
from io import RawIOBase
from pathlib import Path
from typing import Any

from blake3 import blake3

from data_contracts.errors import CorruptError
from data_contracts.handoffs import FileEntry
from data_contracts.plain_file import open_plain
from infra.files.digests import hash_stream
from infra.store import Manifest, Store, layout
from infra.store.records import corrupt

# Few enough that a small tensor costs little, and many enough that the pieces' digests take no memory to speak of.
PIECE_BYTES = 2**20


class SealedFile:
    """A file that was hashed.

    Attributes:
        name: for messages, as of a path; bytes: its size.
    """

    def __init__(self, path: Path, num_bytes: int, digest: str, what: str = "") -> None:
        """Hash the file. Raises CorruptError, which calls it `what`, if it is not as sealed; OSError."""
        self.name, self.bytes, self._path, self._what = path.name, num_bytes, path, what or path.name
        self._pieces: list[bytes] = []
        whole, buffer = blake3(max_threads=blake3.AUTO), memoryview(bytearray(min(PIECE_BYTES, num_bytes)))
        with open(self.descriptor(), "rb", buffering=0) as file:
            for at in range(0, num_bytes, PIECE_BYTES):
                piece = buffer[: num_bytes - at]
                self._fill(file.fileno(), piece, at)
                whole.update(piece)
                self._pieces.append(_digest(piece))
            if os.fstat(file.fileno()).st_size != num_bytes or whole.hexdigest() != digest:
                raise self._changed()

    def open(self) -> SealedReader:
        """A reader of the file; several may read at once."""
        return SealedReader(self)

    def read_into(self, file: int, memory: memoryview, at: int) -> None:
        """Fill `memory` from `at`, the beginning of a piece; CorruptError if a piece is not what was hashed."""
        for start in range(0, len(memory), PIECE_BYTES):
            piece = memory[start : start + PIECE_BYTES]
            self._fill(file, piece, at + start)
            if _digest(piece) != self._pieces[(at + start) // PIECE_BYTES]:
                raise self._changed()

    def descriptor(self) -> int:
        """A descriptor of whatever lies at the file's path now; the caller closes it."""
        return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # not to wait for a pipe's writer

    def _fill(self, file: int, memory: memoryview, at: int) -> None:
        done = 0
        while done < len(memory):
            count = os.preadv(file, [memory[done:]], at + done)
            if not count:
                raise self._changed()
            done += count

    def _changed(self) -> CorruptError:
        return CorruptError(f"{self._what} does not hold the bytes that were sealed.")


class SealedReader(RawIOBase):
    """Reads a sealed file in any order; raises CorruptError instead of giving a byte that was not hashed."""

    def __init__(self, sealed: SealedFile) -> None:
        super().__init__()
        self._sealed, self._file, self._at = sealed, sealed.descriptor(), 0
        # The last piece, because what is read next often begins in it.
        self._kept: tuple[int, memoryview] = (-1, memoryview(b""))

    def span(self, start: int, stop: int) -> memoryview:
        """The bytes from `start` to `stop`: more than PIECE_BYTES in memory of their own; others are not written to."""
        stop = min(stop, self._sealed.bytes)
        if start >= stop:
            return memoryview(b"")
        begin, last = start - start % PIECE_BYTES, (stop - 1) // PIECE_BYTES
        memory = self._kept[1]
        if (begin, last) != (self._kept[0] * PIECE_BYTES, self._kept[0]):
            # Not NumPy's memory: it asks for large pages, and to have them filled by a read takes twice as long.
            memory = memoryview(bytearray(min((last + 1) * PIECE_BYTES, self._sealed.bytes) - begin))
            self._sealed.read_into(self._file, memory, begin)
            piece = memory[last * PIECE_BYTES - begin :]
            self._kept = (last, piece if len(piece) == len(memory) else memoryview(bytearray(piece)))
        return memory[start - begin : stop - begin]

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As a file's `seek`."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._sealed.bytes}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """As a file's `readinto`."""
        data = self.span(self._at, self._at + len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._file)
        super().close()


def sealed_file(path: Path) -> SealedFile | None:
    """The file behind a link in a folder that `Store.local` gives, hashed; None for a file, which was checked there.

    CorruptError if it is not as sealed; OSError.
    """
    if not path.is_symlink():
        return None
    manifest = json.loads((path.parent / layout.MANIFEST).read_text())
    [entry] = [file for file in manifest["content"]["files"] if file["path"] == path.name]
    return SealedFile(path, entry["bytes"], entry["blake3"], f"{path.parent.name}/{path.name}")


def sha256_as_sealed(store: Store, manifest: Manifest, entry: FileEntry) -> str:
    """SHA-256 of a file of a sealed directory; CorruptError if the bytes that it is of are not as sealed."""
    digest, path = hashlib.sha256(), f"{manifest.uri}/{entry.path}"
    try:
        with open_plain(store.local(manifest.ref) / entry.path) as file:
            found = hash_stream(file, digest.update, most=entry.bytes)
    except OSError as error:
        raise corrupt(path, "is missing, or is not a plain file") from error
    if found != (entry.bytes, entry.blake3):
        raise corrupt(path, "does not hold the bytes that were sealed")
    return digest.hexdigest()


def _digest(piece: memoryview) -> bytes:
    return blake3(piece).digest()
