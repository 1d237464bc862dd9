"""Files of this machine: replaced as a whole, locked, digested. Nothing here knows the store.

A reader sees the old content of a replaced file or the new, never a mixture; files of a store belong to `infra.store`,
which also syncs them to the disk. With locks (flock; the kernel releases one when its last holder ends), folders that
can be made again are kept while a process uses them, and deleted to make room otherwise. BLAKE3 digests are the
identity of raw and sealed files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from data_contracts.errors import UsageError

CHUNK_BYTES = 2**22
# Marks a folder with all that is in it, as CACHEDIR.TAG marks a cache.
TAG = "TRAINWRIGHT.TAG"
_OWN_PID = os.getpid()
_TEXT = "Trainwright wrote what is in this folder. None of it is packed into a bundle of code.\n"


def replace_bytes(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write `content` to `path`, in one step for every reader; others may write the same path, also from elsewhere.

    Args:
        mode: permissions of the file, less the process's umask.
    """
    # Not the process's number, which a process of another machine may have, too, in a folder that both share.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # O_EXCL: what someone put in the draft's place, perhaps a link, is neither followed nor removed.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write `text` to `path` in UTF-8, in one step for every reader; `mode` as in `replace_bytes`."""
    replace_bytes(path, text.encode(), mode=mode)


def replace_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path`, in one step for every reader."""
    replace_text(path, json.dumps(value))


def replace_private(path: Path, text: str) -> None:
    """Write `text` to `path`, in one step for every reader; only this user may read it."""
    replace_text(path, text, mode=0o600)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, a folder or a file that is made if absent; waits until it is free."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def hold(folder: Path) -> int | None:
    """Protect a folder from `make_room` until the returned handle is closed, and mark it as used now.

    None if the folder does not exist.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        if os.stat(folder).st_ino == os.fstat(handle).st_ino:
            os.utime(folder)
            return handle
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)  # deleted, or replaced, while this process waited for the lock
    return None


def make_room(folders: Iterable[Path], is_enough: Callable[[], bool]) -> None:
    """Delete folders that no process holds, the least recently used first, until `is_enough()` or none is left."""
    for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime):
        if is_enough():
            return
        delete_unless_held(folder)


def delete_unless_held(folder: Path) -> None:
    """Delete a folder that no process holds; one that has gone meanwhile is left alone."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if take(handle):
                shutil.rmtree(folder)
        finally:
            os.close(handle)


def take(handle: int) -> bool:
    """Take the exclusive lock on an open file or folder, without waiting; False if another process holds it.

    Raises: OSError where the file system has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, all remaining bytes if it is negative; b"" at the end."""


def new_hasher() -> blake3:
    """A BLAKE3 that uses all processors; one in a process that was forked, where the library's threads are not there.

    It would wait for them for ever.
    """
    return blake3(max_threads=blake3.AUTO if os.getpid() == _OWN_PID else 1)


def hash_stream(stream: Readable, *sinks: Callable[[memoryview], object], most: float = math.inf) -> tuple[int, str]:
    """Size and BLAKE3 (hexadecimal) of the rest of a stream; every chunk is passed to the sinks as well.

    A chunk is valid until its sink returns.

    Args:
        most: bytes that the stream should have at most; of a longer one, little more is read, and the size is larger.
    """
    return hash_chunks(_chunks(stream, most), *sinks)


def hash_chunks(chunks: Iterable[memoryview], *sinks: Callable[[memoryview], object]) -> tuple[int, str]:
    """As `hash_stream`, for bytes that come in chunks."""
    hasher = new_hasher()
    size = 0
    for chunk in chunks:
        hasher.update(chunk)
        size += len(chunk)
        for sink in sinks:
            sink(chunk)
    return size, hasher.hexdigest()


def _chunks(stream: Readable, most: float) -> Iterator[memoryview]:
    # A file reads into the same memory again and again, which is twice as fast as into fresh memory.
    if isinstance(stream, BufferedReader | FileIO):
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while most >= 0 and (count := stream.readinto(buffer)):
            yield buffer[:count]
            most -= count
        return
    while most >= 0 and (chunk := stream.read(CHUNK_BYTES)):
        yield memoryview(chunk)
        most -= len(chunk)


def write_hashed(chunks: Iterable[memoryview], file: RawIOBase) -> tuple[int, str]:
    """Write chunks to an unbuffered file and hash them meanwhile; returns size and BLAKE3 (hexadecimal) of all."""

    def write(chunk: memoryview) -> None:
        while chunk.nbytes:
            chunk = chunk[file.write(chunk) or 0 :]

    return hash_chunks(chunks, write)


def stream_digest(stream: Readable, most: float = math.inf) -> str:
    """BLAKE3 of the rest of a stream, in hexadecimal; `most` as for `hash_stream`."""
    return hash_stream(stream, most=most)[1]


def file_digest(path: Path) -> str:
    """BLAKE3 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return stream_digest(file)


def check_new(folder: Path, remedy: str) -> None:
    """UsageError with this remedy if the folder is a link or a file, is not empty, or cannot be looked into."""
    try:
        if folder.is_symlink():
            raise UsageError(f"{folder} is a link, which is not followed.", remedy=remedy)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file.", remedy=remedy)
        if folder.is_dir() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty.", remedy=remedy)
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}.", remedy=remedy) from error


def tag(folder: Path) -> None:
    """Mark a folder; the mark stays if it is there already."""
    if not (folder / TAG).exists():
        (folder / TAG).write_text(_TEXT)
