"""The store: everything durable goes through it, with the same behaviour in a folder and on S3."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_contracts.canonical import plain
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from infra import audit
from infra.settings import state_folder
from infra.store import layout
from infra.store.backend import Backend, Leftover, Stored
from infra.store.copies import copy_of
from infra.store.pointers import Pointer
from infra.store.seal import Manifest, read_manifest
from infra.store.writer import Writer

# Inside the class, `list` is the method.
Names = list[str]
Numbers = list[int]
Listing = list[Stored]
Leftovers = list[Leftover]


class Store:
    """An open store; made by `open_store`.

    Every method may raise UsageError (not permitted, or a path that leaves the store) and StorageUnavailable.

    Attributes:
        uri: absolute folder, or `s3://bucket/prefix`.
        storage_options: as given, credentials still named; may be handed to a child process.
    """

    def __init__(self, backend: Backend, storage_options: Mapping[str, Any]) -> None:
        self._backend = backend
        self.uri = backend.uri
        self.is_local = backend.is_local
        self.storage_options = dict(storage_options)

    def create(self, path: str, data: bytes) -> None:
        """Store `data` at `path`, whole or not at all, durably, once. FileExistsError if something is there."""
        self._backend.create(layout.check_path(path), data)

    def create_json(self, path: str, value: Any) -> None:
        """`create` with JSON whose keys keep their order."""
        self.create(path, plain(value))

    def read(self, path: str) -> bytes:
        """All bytes of a file. FileNotFoundError."""
        return self._backend.read(layout.check_path(path))[0]

    def read_json(self, path: str) -> Any:
        """A JSON file. FileNotFoundError; CorruptError if it is no JSON."""
        data = self.read(path)
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"{path} is not JSON.", details={"file": path}) from error

    def exists(self, path: str) -> bool:
        """Whether a file is at `path`; a folder is none."""
        return self._backend.exists(layout.check_path(path))

    def list(self, folder: str) -> Names:
        """Sorted names of the files and folders directly below `folder` ("" is the root); [] if there is none."""
        return self._backend.names(layout.check_path(folder) if folder else "")

    def writer(self, uri: str, *, afresh: bool = False) -> Writer:
        """What writes and seals the directory `uri`.

        Args:
            afresh: other bytes that a killed writer left unsealed under a name give way to those put now.
        """
        return Writer(self._backend, uri, afresh=afresh)

    def pointer(self, path: str) -> Pointer:
        """The pointer at `path`."""
        return Pointer(self._backend, path)

    def manifest(self, ref: Ref | str) -> Manifest:
        """The manifest of a sealed directory, its seal checked, its files not.

        Raises: FileNotFoundError if it is not sealed; CorruptError if the seal is broken or is not `ref`'s.
        """
        expected = ref if isinstance(ref, Ref) else None
        uri = layout.check_path(ref.uri if isinstance(ref, Ref) else ref)
        return read_manifest(uri, self._backend.read(layout.manifest(uri))[0], expected)

    def verify(self, ref: Ref | str) -> Manifest:
        """The manifest, after every stored byte was read again and found to be what was sealed.

        Raises: FileNotFoundError if it is not sealed; CorruptError naming a file that is changed, missing, extra or
        a link.
        """
        manifest = self.manifest(ref)
        present = set(self._backend.walk(manifest.uri)) - {layout.MANIFEST}
        sealed = {entry.path: entry for entry in manifest.files}
        for name in sorted(present - sealed.keys()):
            raise _corrupt(f"{manifest.uri}/{name}", "is extra: it was not there when the directory was sealed")
        for name, entry in sealed.items():
            path = f"{manifest.uri}/{name}"
            try:
                found = self._backend.digest(path)
            except FileNotFoundError as error:
                raise _corrupt(path, "is missing") from error
            if found != (entry.bytes, entry.blake3):
                raise _corrupt(path, "does not hold the bytes that were sealed")
        return manifest

    def local(self, ref: Ref | str, *, cache: Path | None = None) -> Path:
        """A folder on this machine with the files of a sealed directory.

        In a folder store it is the directory itself (`verify` reads its bytes); from S3 it is a copy below `cache`
        (default: Trainwright's state folder), every byte checked, that stays until this process ends; copies that
        no process uses make room for it. Raises as `verify`; UsageError if this machine cannot hold the copy.
        """
        manifest = self.manifest(ref)
        folder = self._backend.local(manifest.uri)
        if folder is not None:
            return folder
        return copy_of(manifest, self._backend, cache if cache is not None else state_folder() / "cache")

    def newest(self, area: str, key: str) -> Ref | None:
        """The newest attempt at `key` that is sealed and whole, every byte read; deleted and corrupt ones are passed.

        UsageError if a manifest has a newer schema.
        """
        for n in sorted(self._attempts(area, key), reverse=True):
            uri = layout.attempt(area, key, n)
            if self.exists(layout.tombstone(uri)) or not self.claim(uri):
                continue
            with contextlib.suppress(FileNotFoundError, CorruptError):
                return self.verify(uri).ref
        return None

    def next_attempt(self, area: str, key: str) -> str:
        """The directory to write: the newest attempt if it is neither sealed nor deleted, else the one after it."""
        numbers = self._attempts(area, key)
        if not numbers:
            return layout.attempt(area, key, 0)
        uri = layout.attempt(area, key, max(numbers))
        if self.exists(layout.manifest(uri)) or not self.claim(uri):
            return layout.attempt(area, key, max(numbers) + 1)
        return uri

    def claim(self, uri: str) -> bool:
        """Note that what lies at `uri` is taken up for use today; False if it is deleted, or about to be.

        Before every use of what the user of it did not make: `remove` looks for the note after it has said what it
        deletes, and this looks for a tombstone after it has left the note, so one of the two sees the other.
        """
        # Who may only look, for a plan, makes nothing that could be spoilt.
        with contextlib.suppress(FileExistsError, UsageError):
            self.create(layout.use(uri, f"{datetime.now(UTC):%Y-%m-%d}"), b"")
        return not self.exists(layout.tombstone(uri))

    def last_claim_s(self, uri: str) -> float:
        """When `uri` was taken up for use last, as Unix time: the end of that day; 0 if it never was."""
        days = self.list(layout.uses(uri))
        return day_end_s(days[-1]) if days else 0.0

    def remove(self, uri: str, *, why: str, by: str, unless: Callable[[], bool] = lambda: False) -> bool:
        """Delete a directory or a file: a tombstone says so first, then manifests go, then files.

        May be repeated if cut off. A link is deleted itself, never what it points to.

        Args:
            unless: asked again once the tombstone is there; True keeps everything, and False is returned.
        """
        path = layout.check_path(uri)
        names = [""] if self.exists(path) else self._backend.walk(path, links=True)
        if unless():
            return False
        about = {"by": by, "schema": 1, "time": audit.now(), "uri": uri, "why": why}
        with contextlib.suppress(FileExistsError):
            self.create_json(layout.tombstone(uri), about)
        # The tombstone then stays though nothing is deleted: who has seen it makes its own meanwhile.
        if unless():
            return False
        for name in sorted(names, key=lambda name: (name.rpartition("/")[2] != layout.MANIFEST, name)):
            self._backend.delete(f"{uri}/{name}" if name else uri)
        return True

    def stored(self, folder: str = "") -> Listing:
        """Every file below `folder` ("" is the root) with its size and time."""
        return self._backend.stored(layout.check_path(folder) if folder else "")

    def leftovers(self) -> Leftovers:
        """What killed writers left where no name leads; what others write at this moment is among it."""
        return self._backend.leftovers()

    def drop(self, leftover: Leftover) -> None:
        """Remove a leftover."""
        self._backend.drop(leftover)

    def forget(self, path: str) -> None:
        """Delete a file of which nothing need be told, such as an old note of a use."""
        self._backend.delete(layout.check_path(path))

    def attempts(self, area: str, key: str) -> Numbers:
        """Sorted numbers of the attempts at `key`, deleted ones among them."""
        return sorted(self._attempts(area, key))

    def _attempts(self, area: str, key: str) -> set[int]:
        first = layout.attempt(area, key, 0).removesuffix("0").rpartition("/")[2]
        names = self._backend.names(area, first)
        names += [name.removesuffix(".json") for name in self._backend.names(f"tombstones/{area}", first)]
        parts = filter(None, map(layout.split_attempt, names))
        return {n for found, n in parts if found == key}


def day_end_s(day: str) -> float:
    """The end of an ISO day in UTC, as Unix time; 0 for what is no day."""
    try:
        return datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() + 86_400
    except ValueError:
        return 0.0


def _corrupt(path: str, what: str) -> CorruptError:
    return CorruptError(f"{path} {what}.", details={"file": path})
