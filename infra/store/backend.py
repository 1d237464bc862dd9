"""What a place must be able to do to hold a store: create once, read whole, replace by tag, list, delete.

`FolderBackend` and `S3Backend` do it with the same behaviour. Paths are relative to the root and were checked before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from data_contracts.errors import UsageError
from infra.digests import Readable, hash_stream
from infra.settings import on_this_machine, writing


class Stale(Exception):
    """A conditional overwrite lost: what is stored no longer has the tag that was expected."""


class NotImplementedThere(UsageError):
    """A server that does not know a request at all, such as a conditional one."""


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
