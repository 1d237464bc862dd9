"""Write a sealed directory: files one by one, each created once, and the manifest last."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import FileEntry, Ref
from infra.files.digests import hash_pieces, hash_stream
from infra.store import layout
from infra.store.backends.backend import Backend
from infra.store.seal import AlreadySealed, check_file_name, read_manifest, write_manifest


class Writer:
    """A directory that is not sealed yet; several processes may write different files of it."""

    def __init__(self, backend: Backend, uri: str, *, afresh: bool = False) -> None:
        self._backend = backend
        self._afresh = afresh
        self.uri = layout.check_path(uri)
        self._entries: dict[str, FileEntry] = {}

    def existing(self) -> dict[str, FileEntry]:
        """The files that exist already, by name, each read again and hashed."""
        names = [name for name in self._backend.walk(self.uri) if name != layout.MANIFEST]
        return {name: self._entry(name) for name in names}

    def put(self, name: str, data: bytes | Path, *, private: bool = False) -> FileEntry:
        """Store a file, whole or not at all; a `private` file of a folder can be read by its owner only.

        Storing the same bytes again is allowed. CorruptError if the name holds other bytes (unless they are unsealed
        and the writer is `afresh`), or if the directory is sealed without this file; UsageError for a name that could
        leave the directory.
        """
        path = self._path(name)
        if isinstance(data, Path):
            with data.open("rb") as file:
                size, digest = hash_stream(file)
        else:
            size, digest = hash_stream(io.BytesIO(data))
        entry = FileEntry(path=name, bytes=size, blake3=digest)
        sealed = self._is_sealed_with(path)
        try:
            self._create(path, data, private)
        except FileExistsError as error:
            if self._entry(name, size) != entry:
                if sealed or not self._afresh:
                    raise _taken(path) from error
                # Unsealed files do not count as stored.
                self._backend.delete(path)
                self._create(path, data, private)
        self._entries[name] = entry
        return entry

    def put_pieces(self, name: str, pieces: Iterable[memoryview], scratch: Path) -> FileEntry:
        """Store a new file from pieces of bytes, which are hashed while they are written.

        CorruptError if the name is taken; UsageError for a name that could leave the directory.
        """
        path = self._path(name)
        try:
            size, digest = self._backend.create_from(path, pieces, scratch)
        except FileExistsError as error:
            raise CorruptError(f"{path} exists already.", details={"file": path}) from error
        self._entries[name] = FileEntry(path=name, bytes=size, blake3=digest)
        return self._entries[name]

    def put_made(self, name: str, make: Callable[[], Iterable[memoryview]], scratch: Path) -> FileEntry:
        """Store a file from the pieces of bytes that `make` gives, as `put` does; no copy is made first.

        `make` is called again if the name is taken; errors as in `put`, but nothing is ever replaced.
        """
        path = self._path(name)
        self._is_sealed_with(path)
        try:
            size, digest = self._backend.create_from(path, make(), scratch)
            entry = FileEntry(path=name, bytes=size, blake3=digest)
        except FileExistsError as error:
            size, digest = hash_pieces(make())
            entry = FileEntry(path=name, bytes=size, blake3=digest)
            if self._entry(name) != entry:
                raise _taken(path) from error
        self._entries[name] = entry
        return entry

    def seal(
        self,
        kind: str,
        settings: dict[str, Any],
        provenance: dict[str, Any],
        files: Iterable[FileEntry] | None = None,
    ) -> Ref:
        """Seal the directory with exactly the files in it.

        Args:
            kind: kind of the content, such as `dataset`.
            settings: settings that shaped the result; part of its id.
            provenance: parents, code, times, actor, trigger, tags; not part of its id.
            files: its files, if other processes wrote some of them; default: all files that exist, with those that this
                writer did not put hashed again.

        Returns: a Ref to the directory. If another process sealed the same content first, that Ref, with that
        provenance.
        Raises: CorruptError naming a file that is missing or not among `files`; AlreadySealed for other content.
        """
        present = {name for name in self._backend.walk(self.uri) if name != layout.MANIFEST}
        if files is None:
            entries = {name: self._entries.get(name) or self._entry(name) for name in present}
        else:
            entries = {entry.path: entry for entry in files}
        for name in sorted(present ^ entries.keys()):
            problem = "is missing" if name in entries else "does not belong to it"
            path = f"{self.uri}/{name}"
            raise CorruptError(f"{self.uri} cannot be sealed: {path} {problem}.", details={"file": path})
        data, identity = write_manifest(kind, settings, provenance, entries.values())
        try:
            self._backend.create(layout.manifest(self.uri), data)
        except FileExistsError as error:
            data, _ = self._backend.read(layout.manifest(self.uri))
            first = read_manifest(self.uri, data)
            if first.id != identity:
                raise AlreadySealed(
                    f"{self.uri} is sealed already, with other content.", details={"file": layout.manifest(self.uri)}
                ) from error
            return first.ref
        return read_manifest(self.uri, data).ref

    def _path(self, name: str) -> str:
        try:
            return f"{self.uri}/{check_file_name(name)}"
        except ValueError as error:
            raise UsageError(str(error)) from error

    def _is_sealed_with(self, path: str) -> bool:
        """Whether the directory is sealed; CorruptError if it is and has no such file."""
        sealed = self._backend.exists(layout.manifest(self.uri))
        if sealed and not self._backend.exists(path):
            raise CorruptError(f"{path} cannot be added: {self.uri} is sealed.", details={"file": path})
        return sealed

    def _create(self, path: str, data: bytes | Path, private: bool) -> None:
        if isinstance(data, Path):
            self._backend.create_file(path, data, private=private)
        else:
            self._backend.create(path, data)

    def _entry(self, name: str, most: float = math.inf) -> FileEntry:
        size, digest = self._backend.digest(f"{self.uri}/{name}", most=most)
        return FileEntry(path=name, bytes=size, blake3=digest)


def _taken(path: str) -> CorruptError:
    return CorruptError(f"{path} exists already with other bytes than those to be written.", details={"file": path})
