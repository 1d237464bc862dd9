"""The store: everything durable goes through it, with the same behaviour in a folder and on S3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.messages.children import StoreAddress
from infra.machine.settings import state_folder
from infra.share import WHOLE, Share
from infra.store import deletion, layout
from infra.store.backends.backend import Backend, Leftover, Overtaken, Stored, warn_overtaken
from infra.store.damage import passing_over
from infra.store.earlier_records import EarlierRecords
from infra.store.local_copies import copy_of, linked
from infra.store.pointers import Pointer
from infra.store.records import SCHEMA, corrupt, parsed, read_record, read_strictly, write_record
from infra.store.seal import Manifest, read_manifest
from infra.store.silent_processes import SilentProcesses
from infra.store.writer import Writer

# Aliases, because inside the class `list` is the method.
Names = list[str]
Numbers = list[int]
Listing = list[Stored]
Leftovers = list[Leftover]
T = TypeVar("T")
# The schema of `store.json`: every record of a store that was made with it carries a digest.
STORE_SCHEMA = 3


class Store:
    """An open store; made by `open_store`.

    Every method may raise UsageError (not permitted, or a path that leaves the store) and StorageUnavailable.

    Attributes:
        uri: absolute folder, or `s3://bucket/prefix`.
        storage_options: as given, with credentials still named; may be passed to a child process.
        pointers: the database of its pointers and names, with a named password (`env:…`); None if there is none.
        silent: the processes that were silent when this process took a lease of theirs here.

    Args:
        schema: schema of its `store.json`.
    """

    def __init__(
        self, backend: Backend, storage_options: Mapping[str, Any], schema: int = 1, *, pointers: str | None = None
    ) -> None:
        self._backend = backend
        self._earlier = EarlierRecords(backend, all_newer=schema >= STORE_SCHEMA)
        self.uri = backend.uri
        self.is_local = backend.is_local
        self.storage_options = dict(storage_options)
        self.pointers = pointers
        self.silent = SilentProcesses()

    @property
    def address(self) -> StoreAddress:
        """What another process needs to open this store; credentials stay named."""
        return StoreAddress(uri=self.uri, options=self.storage_options, pointers=self.pointers)

    def create(self, path: str, data: bytes) -> None:
        """Store `data` at `path`, whole or not at all, durably, once. FileExistsError if something is there."""
        try:
            self._backend.create(layout.check_path(path), data)
        except Overtaken:
            warn_overtaken(self.uri, path)
            raise

    def create_json(self, path: str, value: dict[str, Any]) -> None:
        """`create` a record, whose keys keep their order; UsageError for values that no record may hold."""
        number = "schema_version" if "schema_version" in value else "schema"
        self._create_record(path, {**value, number: SCHEMA})

    def create_once(self, path: str, value: bytes | dict[str, Any]) -> bool:
        """`create` bytes or a record unless something is there; returns whether this call stored it.

        It also returns False if an earlier try of this same call succeeded but its answer was lost.
        """
        try:
            if isinstance(value, bytes):
                self.create(path, value)
            else:
                self.create_json(path, value)
        except FileExistsError:
            return False
        return True

    def create_about(self, about: dict[str, Any]) -> None:
        """`create` the `store.json`."""
        self._create_record(layout.STORE, {**about, "schema": STORE_SCHEMA})

    def _create_record(self, path: str, value: dict[str, Any]) -> None:
        try:
            data = write_record(path, value)
        except ValueError as error:
            raise UsageError(f"{path} cannot be stored: {error}.") from error
        self.create(path, data)

    def read(self, path: str) -> bytes:
        """All bytes of a file. FileNotFoundError."""
        return self._backend.read(layout.check_path(path))[0]

    def read_json(self, path: str) -> dict[str, Any]:
        """The value that was passed to `create_json`.

        Raises: FileNotFoundError; CorruptError if it is not what was written there; UsageError for a newer schema.
        """
        if path == layout.STORE:
            return self._about()
        value, schema = read_record(path, self.read(path))
        if schema < SCHEMA:
            self._earlier.check(path)
        if "schema_version" in value:
            return {**value, "schema_version": 1}
        return {name: one for name, one in value.items() if name != "schema"}

    def _about(self) -> dict[str, Any]:
        data = self.read(layout.STORE)
        try:
            return read_record(layout.STORE, data, STORE_SCHEMA)[0]
        except (CorruptError, UsageError) as error:
            newer = isinstance(error, UsageError)
            name = f"The store {self.uri}" if newer else f"{layout.STORE} in the store {self.uri}"
            sentence = error.message.replace(layout.STORE, name, 1)
            raise type(error)(sentence, remedy=error.remedy, details=error.details) from error

    def read_as(self, path: str, parse: Callable[[Any], T]) -> T:
        """`parse` of the value from `read_json`; also CorruptError if the value cannot be parsed."""
        return parsed(path, parse, self.read_json(path))

    def find_as(self, path: str, parse: Callable[[Any], T]) -> T | None:
        """As `read_as`, but None if there is no such file."""
        try:
            return self.read_as(path, parse)
        except FileNotFoundError:
            return None

    def read_sealed(self, manifest: Manifest, name: str) -> bytes:
        """A file of a sealed directory, checked against its digest; CorruptError if it is missing or changed."""
        path = f"{manifest.uri}/{name}"
        entry = manifest.file_at.get(name)
        try:
            data = self.read(path)
        except FileNotFoundError as error:
            raise corrupt(path, "is missing") from error
        if entry is None or blake3(data).hexdigest() != entry.blake3:
            raise corrupt(path, "is not what was sealed")
        return data

    def read_sealed_as(self, manifest: Manifest, name: str, parse: Callable[[Any], T], what: str = "") -> T:
        """`parse` of a JSON file of a sealed directory; CorruptError as `read_sealed`, or if it is not `what`."""
        path = f"{manifest.uri}/{name}"
        return parsed(path, parse, read_strictly(path, self.read_sealed(manifest, name)), what)

    def exists(self, path: str) -> bool:
        """Whether a file (not a folder) is at `path`."""
        return self._backend.exists(layout.check_path(path))

    def list(self, folder: str) -> Names:
        """Sorted names of the files and folders directly below `folder` ("" is the root); [] if there is none."""
        return self._backend.names(layout.check_path(folder) if folder else "")

    def writer(self, uri: str, *, afresh: bool = False) -> Writer:
        """A writer that writes and seals the directory `uri`.

        Args:
            afresh: replace other bytes that a killed writer left unsealed under the same name.
        """
        return Writer(self._backend, uri, afresh=afresh)

    def pointer(self, path: str) -> Pointer:
        """The pointer at `path`."""
        return Pointer(self._backend, path, self._earlier)

    def manifest(self, ref: Ref | str) -> Manifest:
        """The manifest of a sealed directory, with its seal checked but not its files.

        Raises: FileNotFoundError if it is not sealed; CorruptError if the seal is broken or is not `ref`'s.
        """
        expected = ref if isinstance(ref, Ref) else None
        uri = layout.check_path(ref.uri if isinstance(ref, Ref) else ref)
        return read_manifest(uri, self._backend.read(layout.manifest(uri))[0], expected)

    def verify(self, ref: Ref | str, on_file: Callable[[], None] = lambda: None, share: Share = WHOLE) -> Manifest:
        """The manifest, after every stored byte was read again and matched its digest.

        Args:
            on_file: called after each file.
            share: of the files, in the order of the manifest; another process checks the others.

        Raises: FileNotFoundError if it is not sealed; CorruptError naming a file that is changed, missing, extra or a
        link.
        """
        manifest = self.manifest(ref)
        present = set(self._backend.walk(manifest.uri)) - {layout.MANIFEST}
        sealed = {entry.path: entry for entry in manifest.files}
        for name in sorted(present - sealed.keys()):
            raise corrupt(f"{manifest.uri}/{name}", "is extra: it was not there when the directory was sealed")
        for name, entry in share.items(list(sealed.items())):
            path = f"{manifest.uri}/{name}"
            try:
                actual = self._backend.digest(path, most=entry.bytes)
            except FileNotFoundError as error:
                raise corrupt(path, "is missing") from error
            if actual != (entry.bytes, entry.blake3):
                raise corrupt(path, "does not hold the bytes that were sealed")
            on_file()
        return manifest

    def local(self, ref: Ref | str, *, cache: Path | None = None) -> Path:
        """A private folder on this machine with the files of a sealed directory, at least until this process ends.

        From S3 it is a copy below `cache` (default: Trainwright's state folder), with every byte checked; copies that
        no process uses are deleted to make room. From a folder store it has checked copies of small files, and links to
        files of tensors and shards, which are to be read through `infra.store.sealed_files`. Raises as `verify`;
        UsageError if this machine cannot hold the copy.
        """
        manifest = self.manifest(ref)
        stored = self._backend.local(manifest.uri)
        if stored is not None:
            return linked(manifest, self._backend, stored)
        return copy_of(manifest, self._backend, cache if cache is not None else state_folder() / "cache")

    def newest(self, area: str, key: str) -> Ref | None:
        """The newest attempt at `key` that is sealed and intact, every byte read; skips deleted and corrupt attempts.

        UsageError if a manifest has a newer schema.
        """
        for n in sorted(self._attempts(area, key), reverse=True):
            uri = layout.attempt(area, key, n)
            if self.exists(layout.tombstone(uri)) or not self.claim(uri):
                continue
            with passing_over():
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
        """Record that `uri` is used today; False if it is deleted or about to be.

        Call this before every use of a directory that the caller did not make; `infra.store.deletion` says why.
        """
        return deletion.claim(self, uri)

    def last_claim_s(self, uri: str) -> float:
        """When `uri` was last claimed, as Unix time: the end of that day; 0 if it never was."""
        return deletion.last_claim_s(self, uri)

    def remove(self, uri: str, *, why: str, by: str, unless: Callable[[], bool] = lambda: False) -> bool:
        """Delete a directory or a file behind a tombstone, unless `unless` says not to; returns whether it was deleted.

        May be repeated if interrupted. A link is deleted itself, never its target.
        """
        return deletion.remove(self, self._backend, uri, why=why, by=by, unless=unless)

    def stored(self, folder: str = "") -> Listing:
        """Every file below `folder` ("" is the root) with its size and time. CorruptError for a link."""
        return self._backend.stored(layout.check_path(folder) if folder else "")

    def now_s(self) -> float:
        """The time of the clock that dates the store's files, as Unix time; this user must be able to write."""
        return self._backend.now_s()

    def leftovers(self) -> Leftovers:
        """What killed writers left without a name; includes what other processes are writing now."""
        return self._backend.leftovers()

    def drop(self, leftover: Leftover) -> None:
        """Remove a leftover."""
        self._backend.drop(leftover)

    def forget(self, path: str) -> None:
        """Delete a file without a tombstone, such as an old claim."""
        self._backend.delete(layout.check_path(path))

    def attempts(self, area: str, key: str) -> Numbers:
        """Sorted numbers of the attempts at `key`, including deleted ones."""
        return sorted(self._attempts(area, key))

    def _attempts(self, area: str, key: str) -> set[int]:
        first = layout.attempt(area, key, 0).removesuffix("0").rpartition("/")[2]
        names = self._backend.names(area, first)
        names += [name.removesuffix(".json") for name in self._backend.names(f"tombstones/{area}", first)]
        parts = filter(None, map(layout.split_attempt, names))
        return {n for found, n in parts if found == key}
