"""A store whose names are decided in a database while the bytes stay on a server without conditional writes.

The bytes of a name are in an object of their own, `objects/<name>/<BLAKE3>-<nonce>`. It is written once, under a key
that nobody else uses, before the database gives it the name. So a name exists if and only if its bytes do. What a
killed writer leaves has no name and is recorded (see `name_database.py`).
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError
from infra.files.digests import file_digest
from infra.store.backends.backend import MAX_CLOCK_DIFFERENCE_S, Backend, Leftover, Stale, Stored, send_whole
from infra.store.backends.name_database import Names

_TRIES = 4
_SWEEP_AFTER_S = 86_400
T = TypeVar("T")


class NamedBackend:
    """Objects of another backend, named by a database (see `Backend` for the methods). A tag is an object's name."""

    is_local = False

    def __init__(self, objects: Backend, names: Names) -> None:
        self._objects, self._names = objects, names
        self.uri, self.server = objects.uri, objects.server

    def create(self, path: str, data: bytes) -> str:
        """Store `data`, then give it the name."""
        return self._create(path, blake3(data).hexdigest(), lambda new: self._objects.create(new, data))

    def create_file(self, path: str, source: Path, *, private: bool = False) -> None:
        """Store a file's bytes, then give them the name."""
        self._create(path, file_digest(source), lambda new: self._objects.create_file(new, source, private=private))

    def create_from(self, path: str, pieces: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
        """Store the pieces, then give them the name."""
        return send_whole(self, path, pieces, scratch)

    def read(self, path: str) -> tuple[bytes, str]:
        """All bytes, checked against their digest."""

        def whole(name: str) -> tuple[bytes, str]:
            data = self._objects.read(name)[0]
            return data, blake3(data).hexdigest()

        return self._checked(path, whole)

    def replace(self, path: str, data: bytes, tag: str) -> str:
        """Store `data`, then give it the name if the object `tag` still has it."""
        digest = blake3(data).hexdigest()
        new = self._draft(path, digest, lambda name: self._objects.create(name, data))
        try:
            self._names.swap(path, tag, new)
        except Stale:
            self._drop(new)
            raise
        self._drop(tag)
        return new

    def digest(self, path: str, copy: Path | None = None, most: float = math.inf) -> tuple[int, str]:
        """Size and BLAKE3, checked against the digest of what was written."""

        def digest(name: str) -> tuple[tuple[int, str], str]:
            found = self._objects.digest(name, copy, most)
            return found, found[1]

        return self._checked(path, digest)[0]

    def exists(self, path: str) -> bool:
        """Whether an object has the name."""
        return self._names.find(path) is not None

    def names(self, folder: str, starting: str = "") -> list[str]:
        """Sorted names without those that begin with a dot."""
        base = f"{folder}/" if folder else ""
        names = {path.removeprefix(base).partition("/")[0] for path in self._names.beginning(base + starting)}
        return sorted(name for name in names if not name.startswith("."))

    def walk(self, folder: str, *, links: bool = False) -> list[str]:
        """Sorted paths of all names; there are no links."""
        return [path.removeprefix(f"{folder}/") for path in self._names.beginning(f"{folder}/")]

    def delete(self, path: str) -> None:
        """Remove the name, then the bytes."""
        taken = self._names.take(path)
        if taken is not None:
            self._drop(taken)

    def stored(self, folder: str) -> list[Stored]:
        """All names below `folder`, sorted, with their objects' sizes and times."""
        start = f"{folder}/" if folder else ""
        named = self._names.objects(start)
        held = {one.path: one for one in self._objects.stored(f"objects/{folder}".rstrip("/"))}
        there = [(path, held[name]) for path, name in sorted(named.items()) if name in held and path[:1] != "."]
        return [Stored(path, one.bytes, one.written_s) for path, one in there]

    def leftovers(self) -> list[Leftover]:
        """Unfinished uploads, and objects without a name."""
        unnamed = set(self._names.unnamed(0))
        found = [one for one in self._objects.stored("objects") if one.path in unnamed]
        return [*self._objects.leftovers(), *(Leftover(one.path, one.bytes, one.written_s) for one in found)]

    def now_s(self) -> float:
        """The time with which the backend would date an object written now."""
        return self._objects.now_s()

    def drop(self, leftover: Leftover) -> None:
        """Abort an upload, or remove an object that still has no name."""
        if leftover.path.startswith("objects/") and not leftover.upload_id:
            self._drop(leftover.path)
        else:
            self._objects.drop(leftover)

    def local(self, uri: str) -> Path | None:
        """None: a folder on this machine would hold objects, not names."""
        return None

    def creates_large_once(self, path: str) -> bool:
        """True: the database decides, whatever the size."""
        return True

    def sweep(self) -> None:
        """Remove what killed writers left more than a day ago."""
        with contextlib.suppress(TrainwrightError):  # the server is unreachable, or this user may only read
            old = self._names.unnamed(_SWEEP_AFTER_S)
            # SQLite has only this machine's clock, which may be wrong.
            if old and abs(self.now_s() - time.time()) < MAX_CLOCK_DIFFERENCE_S:
                for name in old:
                    self._drop(name)

    def _create(self, path: str, digest: str, write: Callable[[str], object]) -> str:
        if self.exists(path):  # avoids sending large files in vain
            raise FileExistsError(path)
        new = self._draft(path, digest, write)
        try:
            self._names.give(path, new)
        except FileExistsError:
            self._drop(new)
            raise
        return new

    def _draft(self, path: str, digest: str, write: Callable[[str], object]) -> str:
        new = f"objects/{path}/{digest}-{uuid.uuid4().hex}"
        self._names.draft(new)
        write(new)
        return new

    def _drop(self, name: str) -> None:
        with contextlib.suppress(StorageUnavailable):  # the caller's work is done: the bytes are swept another day
            if self._names.doom(name):
                self._objects.delete(name)
                self._names.forget(name)

    def _checked(self, path: str, read: Callable[[str], tuple[T, str]]) -> tuple[T, str]:
        problem = ""
        for _ in range(_TRIES):
            name = self._names.find(path)
            if name is None:
                raise FileNotFoundError(path)
            try:
                value, digest = read(name)
            except FileNotFoundError:  # a pointer was moved meanwhile, and its old object is gone
                problem = "has lost its bytes, though the database has its name"
                continue
            if digest == name.rpartition("/")[2].partition("-")[0]:
                return value, name
            problem = "does not hold the bytes that were written"
        raise CorruptError(f"{path} in the store {self.uri} {problem}.", details={"file": path})
