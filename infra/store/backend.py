"""The operations that a place must offer to hold a store: create once, read whole, replace by tag, list, delete.

`FolderBackend`, `S3Backend` and `NamedBackend` implement them with the same behaviour. Paths are relative to the root
and already checked. Nothing here knows seals, pointers or leases.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from data_contracts.errors import UsageError
from infra import scratch as scratches
from infra.files import Readable, hash_stream, write_hashed
from infra.settings import on_this_machine, writing

# Manifests, pointers, records and bundled files are read whole; none of them is ever this large.
MAX_READ_BYTES = 2**28
# If this machine's clock and the clock that dates a store's files differ by more, nothing is deleted because of its
# age.
MAX_CLOCK_DIFFERENCE_S = 300.0
# Requests that are under way at once: with answers in 30 ms, more in a second than one process can send.
READERS = 64
log = logging.getLogger("trainwright")
T = TypeVar("T")
U = TypeVar("U")


class Stale(Exception):
    """A conditional overwrite lost: the stored file no longer has the expected tag."""


class Overtaken(FileExistsError, Stale):
    """The server confirmed a conditional write, but another writer's bytes are there."""


def warn_overtaken(uri: str, path: str) -> None:
    """Say that a server let two writers write; the one whose bytes are there goes on."""
    log.warning(
        "The server of %s confirmed two conditional writes of %s, of which one was overwritten; `trainwright doctor` "
        "tests the server.",
        uri,
        path,
    )


class NotImplementedThere(UsageError):
    """The server does not support a request, such as a conditional one."""


@dataclass(frozen=True)
class Stored:
    """A file as a listing shows it: path below the store's root, size, and time of writing (Unix time)."""

    path: str
    bytes: int
    written_s: float


@dataclass(frozen=True)
class Leftover:
    """A killed writer's remains that no name leads to: a draft, or an unfinished multipart upload (`upload_id`)."""

    path: str
    bytes: int
    written_s: float
    upload_id: str = ""


class Backend(Protocol):
    """A folder or an S3 prefix.

    Every method raises UsageError if the place may not be used, StorageUnavailable if it does not answer.
    """

    uri: str
    is_local: bool

    @property
    def server(self) -> str:
        """What decides conditional writes there: the folder, or the endpoint and its bucket."""

    def create(self, path: str, data: bytes) -> str:
        """Store `data` at `path`, whole or not at all, durably; returns its tag. FileExistsError if it is taken."""

    def create_file(self, path: str, source: Path, *, private: bool = False) -> None:
        """As `create`, with a file's bytes; a `private` file of a folder can be read by its owner only."""

    def create_from(self, path: str, chunks: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
        """As `create`, with bytes that come in chunks; returns their size and BLAKE3.

        Args:
            scratch: local folder for bytes that must be complete before they can be sent.
        """

    def read(self, path: str) -> tuple[bytes, str]:
        """All bytes and their tag. FileNotFoundError; CorruptError if there are more than MAX_READ_BYTES."""

    def replace(self, path: str, data: bytes, tag: str) -> str:
        """Overwrite the file if it has `tag`; returns the new tag. Stale if it has another tag or is gone."""

    def digest(self, path: str, copy: Path | None = None, most: float = math.inf) -> tuple[int, str]:
        """Size and BLAKE3 of a whole file, also written to `copy` if given. FileNotFoundError, CorruptError.

        Args:
            most: bytes that it should have; of a larger file, little more is read, and the returned size is larger.
        """

    def exists(self, path: str) -> bool:
        """Whether a file (not a folder) is there."""

    def names(self, folder: str, starting: str = "") -> list[str]:
        """Sorted names directly below `folder` that begin with `starting`; [] if there is none.

        Names that begin with a dot are left out: the store itself, a file system or a desktop made them.
        """

    def walk(self, folder: str, *, links: bool = False) -> list[str]:
        """Sorted paths, relative to `folder`, of all files in it.

        CorruptError for anything but plain files; with `links`, such entries are listed as well, "" for `folder`
        itself.
        """

    def delete(self, path: str) -> None:
        """Remove a file; does nothing if it does not exist."""

    def stored(self, folder: str) -> list[Stored]:
        """All files below `folder` ("" is the root), without the store's own (see `names`). CorruptError for a link."""

    def leftovers(self) -> list[Leftover]:
        """Drafts and unfinished uploads, including those that are being written now."""

    def now_s(self) -> float:
        """The time of the clock that dates the files, as Unix time; measured by writing a small file."""

    def drop(self, leftover: Leftover) -> None:
        """Remove a leftover; does nothing if it does not exist."""

    def local(self, uri: str) -> Path | None:
        """The folder itself, if it is on this machine."""

    def creates_large_once(self, path: str) -> bool:
        """Whether `create_file` leaves an existing file alone even for files too large for one request."""


def hash_and_copy(stream: Readable, copy: Path | None, most: float = math.inf) -> tuple[int, str]:
    """Size and BLAKE3 of the rest of `stream`, which is also written to `copy` if given; `most` as for `digest`."""
    if copy is None:
        return hash_stream(stream, most=most)
    with on_this_machine(copy.parent):
        file = copy.open("wb", buffering=0)
    with file:
        return hash_stream(stream, writing(file, copy.parent), most=most)


def send_whole(backend: Backend, path: str, chunks: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
    """`create_from` for places that need all bytes before sending: the chunks are joined in `scratch` first."""
    with scratches.make("upload", root=scratch) as folder:
        whole = folder.path / "whole"
        with whole.open("wb", buffering=0) as file:
            found = write_hashed(chunks, file)
        backend.create_file(path, whole)
    return found


def several(read: Callable[[T], U], arguments: Sequence[T]) -> Iterator[U]:
    """The results of `read` in order, up to READERS of them at once; the first error cancels what has not begun."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="several") as pool:
        yield from pool.map(read, arguments)
