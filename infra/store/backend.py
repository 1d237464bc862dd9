"""What a place must be able to do to hold a store: create once, read whole, replace by tag, list, delete.

`FolderBackend`, `S3Backend` and `NamedBackend` do it with the same behaviour. Paths are relative to the root and were
checked before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from data_contracts.errors import UsageError
from infra.digests import Readable, hash_stream, write_hashed
from infra.settings import on_this_machine, writing


class Stale(Exception):
    """A conditional overwrite lost: what is stored no longer has the tag that was expected."""


class NotImplementedThere(UsageError):
    """A server that does not know a request at all, such as a conditional one."""


@dataclass(frozen=True)
class Stored:
    """A file as a listing shows it: its path below the store's root, its size, and when it was written (Unix time)."""

    path: str
    bytes: int
    written_s: float


@dataclass(frozen=True)
class Leftover:
    """What a killed writer left where no name leads: a draft, or a multipart upload (`upload_id`) without an end."""

    path: str
    bytes: int
    written_s: float
    upload_id: str = ""


class Backend(Protocol):
    """A folder or an S3 prefix.

    Every method raises UsageError when the place may not be used, StorageUnavailable when it does not answer.
    """

    uri: str
    is_local: bool

    def create(self, path: str, data: bytes) -> str:
        """Store `data` at `path` if nothing is there, whole or not at all, durably; its tag. FileExistsError."""

    def create_file(self, path: str, source: Path) -> None:
        """As `create`, with a file's bytes."""

    def create_from(self, path: str, pieces: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
        """As `create`, with bytes that come piece by piece; their size and BLAKE3.

        Args:
            scratch: local folder for what must be whole before it can be sent.
        """

    def read(self, path: str) -> tuple[bytes, str]:
        """All bytes and their tag. FileNotFoundError."""

    def replace(self, path: str, data: bytes, tag: str) -> str:
        """Overwrite what has `tag`; the new tag. Stale if it has another or is gone."""

    def digest(self, path: str, copy: Path | None = None) -> tuple[int, str]:
        """Size and BLAKE3 of a whole file, also written to `copy` if given. FileNotFoundError, CorruptError."""

    def exists(self, path: str) -> bool:
        """Whether a file (not a folder) is there."""

    def names(self, folder: str, starting: str = "") -> list[str]:
        """Sorted names directly below `folder` that begin with `starting`; [] if there is none.

        None that begins with a dot: they are the store's own, or what a file system or a desktop left there.
        """

    def walk(self, folder: str, *, links: bool = False) -> list[str]:
        """Sorted paths, below `folder`, of all files in it.

        CorruptError for what is no plain file; with `links` it is listed as well, "" for `folder` itself.
        """

    def delete(self, path: str) -> None:
        """Remove a file; fine if it is not there."""

    def stored(self, folder: str) -> list[Stored]:
        """All files below `folder` ("" is the root), links among them, without the store's own (see `names`)."""

    def leftovers(self) -> list[Leftover]:
        """Drafts and uploads that were begun and not ended, those under way among them."""

    def drop(self, leftover: Leftover) -> None:
        """Remove a leftover; fine if it is not there."""

    def local(self, uri: str) -> Path | None:
        """The folder itself, if it lies on this machine."""

    def creates_large_once(self, path: str) -> bool:
        """Whether `create_file` of a file too large for one request, too, leaves alone what is at `path`."""


def hash_and_copy(stream: Readable, copy: Path | None) -> tuple[int, str]:
    """Size and BLAKE3 of the rest of `stream`, which is also written to `copy` if given."""
    if copy is None:
        return hash_stream(stream)
    with on_this_machine(copy.parent):
        file = copy.open("wb", buffering=0)
    with file:
        return hash_stream(stream, writing(file, copy.parent))


def send_whole(backend: Backend, path: str, pieces: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
    """`create_from` where bytes can only be sent when all are there: they are put together in `scratch` first."""
    with tempfile.TemporaryDirectory(prefix="upload-", dir=scratch) as folder:
        whole = Path(folder) / "whole"
        with whole.open("wb", buffering=0) as file:
            found = write_hashed(pieces, file)
        backend.create_file(path, whole)
    return found
