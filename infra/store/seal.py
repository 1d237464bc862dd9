"""Sealed directories: what a manifest holds, and how a directory is written, read, checked and copied to this machine.

    {"content":{…},"id":"…","provenance":{…},"seal":"…"}

A manifest is canonical JSON without white space. `content` is kind, schema, files and settings. The id is the SHA-256
of the canonical form of `content`, so the same bytes from the same settings have the same id anywhere. The seal is the
SHA-256 of all bytes before `,"seal":`. Files are written one by one, each created once, and the manifest last.

A copy on this machine is completed under another name, then renamed. A process that uses a copy holds a lock on its
folder until the process ends; copies without a lock are deleted to make room.

Whoever can do without a directory that is missing or damaged passes it over; the damage is logged, or noted for a
caller that reports it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data_contracts.canonical import canonical, digest
from data_contracts.errors import CorruptError, TrainwrightError, UsageError
from data_contracts.foreign_files import parse_json
from data_contracts.handoffs import FileEntry, Ref
from infra import files, scratch
from infra.files import hash_chunks, hash_stream
from infra.settings import on_this_machine
from infra.store import layout
from infra.store.backend import MAX_READ_BYTES, Backend, several
from infra.store.records import corrupt

log = logging.getLogger("trainwright")
SCHEMA = 1
# A manifest with some hundred thousand files.
MAX_BYTES = 2**26
_TAIL = re.compile(rb',"seal":"([0-9a-f]{64})"}\Z')
_TAKEN = "exists already with other bytes than those to be written"
_HEX = re.compile(r"[0-9a-f]{64}")
_THERE = (errno.EEXIST, errno.ENOTEMPTY)
# Handles of this process's locks: it may use a copy until it ends, whichever store the copy came from.
_held: dict[Path, int] = {}
# Private folders of this process, by the store to whose files their links lead; the last is in use.
_roots: dict[str, list[scratch.Scratch]] = {}
_linking = threading.Lock()
# Kinds of sealed directories with large files, and the ends of those files' names.
_LINKED = {
    "checkpoint": (".safetensors",),
    "import": (".safetensors",),
    "dataset": (".parquet", ".tfrecord"),
}
# Others are read whole.
_MAY_BE_LARGE = (".safetensors", ".parquet", ".tfrecord")
_noted: ContextVar[list[TrainwrightError] | None] = ContextVar("noted", default=None)


class AlreadySealed(CorruptError):
    """The directory was sealed before with other content."""


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read and found intact.

    Attributes:
        uri: the sealed directory, below the store's root.
        content: kind, schema, files and settings.
        provenance: parents, code, times, actor, trigger, tags.
    """

    uri: str
    content: dict[str, Any]
    provenance: dict[str, Any]
    id: str
    seal: str

    @property
    def ref(self) -> Ref:
        """A Ref to the directory."""
        return Ref(uri=self.uri, id=self.id, seal=self.seal)

    @property
    def kind(self) -> str:
        """Kind of the content, such as `dataset`."""
        return self.content["kind"]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that shaped the content."""
        return self.content["settings"]

    @cached_property
    def files(self) -> list[FileEntry]:
        """The directory's files, sorted by path."""
        return [FileEntry(**entry) for entry in self.content["files"]]

    @cached_property
    def file_at(self) -> dict[str, FileEntry]:
        """The same files by their paths."""
        return {entry.path: entry for entry in self.files}

    @property
    def parents(self) -> list[Ref]:
        """The sealed directories that this one was made from; CorruptError if they are not said in our form."""
        try:
            return [Ref.model_validate(one) for one in self.provenance.get("parents", [])]
        except (TypeError, ValueError) as error:
            raise CorruptError(f"{self.uri} does not say what it was made from.") from error

    def parent_in(self, area: str) -> Ref | None:
        """The first parent in an area of the store, such as a dataset's report in `contracts`; None without one."""
        return next((one for one in self.parents if one.uri.startswith(f"{area}/")), None)


def write_manifest(
    kind: str, settings: Mapping[str, object], provenance: Mapping[str, object], files: Iterable[FileEntry]
) -> tuple[bytes, str]:
    """The bytes of a manifest, and its id. ValueError for values that JSON cannot hold (NaN, infinities)."""
    entries = [entry.to_json() for entry in sorted(files, key=lambda entry: entry.path)]
    # To JSON and back: an integer key becomes the string that a reader will see.
    content = json.loads(canonical({"kind": kind, "schema": SCHEMA, "files": entries, "settings": settings}))
    identity = digest(content)
    body = canonical({"content": content, "id": identity, "provenance": json.loads(canonical(provenance))})[:-1]
    return body + b',"seal":"' + hashlib.sha256(body).hexdigest().encode() + b'"}', identity


def read_manifest(uri: str, data: bytes, expected: Ref | None = None) -> Manifest:
    """The manifest of `uri` from its bytes.

    Raises: CorruptError naming the manifest if its seal, id or form is wrong, or if it is not the one that `expected`
    refers to; UsageError if it has a newer schema.
    """
    path = layout.manifest(uri)
    if len(data) > MAX_BYTES:
        raise corrupt(path, "is larger than any manifest")
    tail = _TAIL.search(data)
    if tail is None:
        raise corrupt(path, "does not end with a seal")
    body, seal = data[: tail.start()], tail[1].decode()
    if hashlib.sha256(body).hexdigest() != seal:
        raise corrupt(path, "was changed after it was sealed")
    try:
        value = parse_json(body + b"}")
        schema = value["content"]["schema"]
        if schema > SCHEMA:
            raise UsageError(
                f"{path} has schema {schema}, newer than the {SCHEMA} that this Trainwright reads.",
                remedy="Upgrade Trainwright.",
            )
        manifest = Manifest(uri=uri, seal=seal, **value)
        well_formed = canonical(value) == body + b"}" and _well_formed(manifest)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise corrupt(path, "is not a manifest") from error
    if not well_formed:
        raise corrupt(path, "is not a manifest in canonical form")
    if digest(manifest.content) != manifest.id:
        raise corrupt(path, "carries an id that is not the digest of its content")
    if expected is not None and (expected.id, expected.seal) != (manifest.id, seal):
        raise corrupt(path, "is whole, but is not the one that the reference names")
    return manifest


def _well_formed(manifest: Manifest) -> bool:
    content = manifest.content
    if content.keys() != {"kind", "schema", "files", "settings"} or not isinstance(content["settings"], dict):
        return False
    if not isinstance(content["kind"], str) or not isinstance(manifest.provenance, dict):
        return False
    paths = [check_file_name(entry.path) for entry in manifest.files]
    sane = all(entry.bytes >= 0 and _HEX.fullmatch(entry.blake3) for entry in manifest.files)
    return sane and paths == sorted(set(paths))


def check_file_name(name: str) -> str:
    """`name`, if a file of a sealed directory may have it; else ValueError."""
    try:
        layout.check_path(name, "file name in a sealed directory")
    except UsageError as error:
        raise ValueError(error.message) from error
    if name == layout.MANIFEST:
        raise ValueError(f"{name} is the manifest's own name; put the file in a folder below.")
    return name


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
                    raise corrupt(path, _TAKEN) from error
                # Unsealed files do not count as stored.
                self._backend.delete(path)
                self._create(path, data, private)
        self._entries[name] = entry
        return entry

    def put_chunks(self, name: str, chunks: Iterable[memoryview], scratch: Path) -> FileEntry:
        """Store a new file from chunks of bytes, which are hashed while they are written.

        CorruptError if the name is taken; UsageError for a name that could leave the directory.
        """
        path = self._path(name)
        try:
            size, digest = self._backend.create_from(path, chunks, scratch)
        except FileExistsError as error:
            raise corrupt(path, "exists already") from error
        self._entries[name] = FileEntry(path=name, bytes=size, blake3=digest)
        return self._entries[name]

    def put_made(self, name: str, make: Callable[[], Iterable[memoryview]], scratch: Path) -> FileEntry:
        """Store a file from the chunks of bytes that `make` gives, as `put` does; no copy is made first.

        `make` is called again if the name is taken; errors as in `put`, but nothing is ever replaced.
        """
        path = self._path(name)
        self._is_sealed_with(path)
        try:
            size, digest = self._backend.create_from(path, make(), scratch)
            entry = FileEntry(path=name, bytes=size, blake3=digest)
        except FileExistsError as error:
            size, digest = hash_chunks(make())
            entry = FileEntry(path=name, bytes=size, blake3=digest)
            if self._entry(name) != entry:
                raise corrupt(path, _TAKEN) from error
        self._entries[name] = entry
        return entry

    def seal(
        self,
        kind: str,
        settings: Mapping[str, object],
        provenance: Mapping[str, object],
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


def copy_of(manifest: Manifest, backend: Backend, base: Path) -> Path:
    """The folder of a copy below `base`, with every byte checked, locked by this process; downloads it if needed.

    Raises: CorruptError naming a stored file that is missing or changed; UsageError if `base` cannot hold it.
    """
    target = base / manifest.seal
    with on_this_machine(base):
        base.mkdir(parents=True, exist_ok=True)
        if hold(target) and _is_whole(target, manifest):
            return target
        # Of several jobs that need it at once, one downloads it.
        with files.locked(lock := base / f".{manifest.seal}"):
            try:
                if not (hold(target) and _is_whole(target, manifest)):
                    _make(manifest, backend, target)
                while not hold(target):  # another process deleted it to make room
                    _make(manifest, backend, target)
            finally:
                lock.unlink(missing_ok=True)
        return target


def linked(manifest: Manifest, backend: Backend, stored: Path) -> Path:
    """A private folder for a directory of a folder store, until this process ends: copies of its files, checked.

    Files of tensors and shards are links into `stored`, the directory itself: they may be large, and who reads them
    checks what is read (`infra.store.store`).
    """
    with _linking:
        roots = _roots.setdefault(backend.uri, [])
        if not roots or _seal_of(roots[-1].path / manifest.uri) not in (None, manifest.seal):  # it was sealed again
            roots.append(scratch.make("sealed"))
        target = roots[-1].path / manifest.uri
        if not target.exists():
            with scratch.make("linked", root=roots[-1].path) as folder:
                copy = folder.path / "copy"
                _download(manifest, backend, copy, stored)
                about = {name: getattr(manifest, name) for name in ("content", "id", "provenance", "seal")}
                (copy / layout.MANIFEST).write_bytes(canonical(about))
                target.parent.mkdir(parents=True, exist_ok=True)
                copy.rename(target)
        return target


def _seal_of(folder: Path) -> str | None:
    return json.loads((folder / layout.MANIFEST).read_bytes())["seal"] if folder.exists() else None


def hold(folder: Path) -> bool:
    """Lock a copy against deletion until this process ends, and mark it as used now; False if it does not exist."""
    handle = files.hold(folder)
    if handle is None:
        return False
    if folder in _held:
        os.close(_held[folder])
    _held[folder] = handle
    return True


def make_room(base: Path, num_bytes: int, what: str) -> None:
    """Delete copies that no process uses, the least recently used first, until `num_bytes` are free below `base`.

    Raises:
        UsageError: too little space is free for `what` even then.
    """
    copies = [path for path in base.iterdir() if _HEX.fullmatch(path.name)]
    files.make_room(copies, lambda: shutil.disk_usage(base).free >= num_bytes)
    free = shutil.disk_usage(base).free
    if free < num_bytes:
        raise UsageError(
            f"The disk of the cache {base} has {free:,} bytes free, but a copy of {what} takes {num_bytes:,}.",
            remedy="Free space there, or name another folder with TRAINWRIGHT_HOME.",
        )


def _make(manifest: Manifest, backend: Backend, target: Path) -> None:
    """Download a copy and rename it to `target`, replacing a damaged copy."""
    damaged = target.exists()
    make_room(target.parent, sum(entry.bytes for entry in manifest.files), manifest.uri)
    with scratch.make("copy", root=target.parent) as folder:
        copy = folder.path / "copy"
        _download(manifest, backend, copy)
        if damaged:
            with contextlib.suppress(FileNotFoundError):  # another process moved it
                os.rename(target, folder.path / "damaged")
        try:
            os.rename(copy, target)
        except OSError as error:
            if error.errno not in _THERE:  # another process was faster with the same bytes
                raise


def _download(manifest: Manifest, backend: Backend, folder: Path, stored: Path | None = None) -> None:
    folder.mkdir()

    def fetch(entry: FileEntry) -> None:
        if entry.bytes > MAX_READ_BYTES and not entry.path.endswith(_MAY_BE_LARGE):
            raise corrupt(f"{manifest.uri}/{entry.path}", "is too large to be read as a whole")
        (folder / entry.path).parent.mkdir(parents=True, exist_ok=True)
        if stored is not None and entry.path.endswith(_LINKED.get(manifest.kind, ())):
            (folder / entry.path).symlink_to(stored / entry.path)
        else:
            check_file(backend, manifest.uri, entry, folder / entry.path)

    for _ in map(fetch, manifest.files) if stored is not None else several(fetch, manifest.files):
        pass


def check_file(backend: Backend, uri: str, entry: FileEntry, copy: Path | None = None) -> None:
    """Read a stored file of a sealed directory again, and copy it; CorruptError if it is missing or changed."""
    path = f"{uri}/{entry.path}"
    try:
        actual = backend.digest(path, copy, entry.bytes)
    except FileNotFoundError as error:
        raise corrupt(path, "is missing") from error
    if actual != (entry.bytes, entry.blake3):
        raise corrupt(path, "does not hold the bytes that were sealed")


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    for entry in manifest.files:
        try:
            with (folder / entry.path).open("rb") as file:
                if hash_stream(file) != (entry.bytes, entry.blake3):
                    return False
        except OSError:
            return False
    return folder.is_dir()


def pass_over(error: TrainwrightError) -> None:
    """Note damage that ends nothing, because the caller goes on without what is damaged.

    A file that this user may not read counts as damaged.
    """
    noted = _noted.get()
    if noted is None:
        log.warning("%s It is passed over.", error.message)
    else:
        noted.append(error)


@contextlib.contextmanager
def passing_over() -> Iterator[None]:
    """End the block without an error where a file is missing or damaged; damage is noted."""
    try:
        yield
    except FileNotFoundError:
        pass
    except CorruptError as error:
        pass_over(error)


@contextlib.contextmanager
def noting_damage() -> Iterator[list[TrainwrightError]]:
    """The damage that is passed over in the block, which is not logged; the caller must report it."""
    noted: list[TrainwrightError] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)
