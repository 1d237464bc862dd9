"""The store: everything durable goes through it, with the same behaviour in a folder and on S3.

*Reading.* Whoever can write a store can exchange a file, or write into it, between the moment when it is hashed and
the moment when it is read. So a file of a sealed directory is hashed once, whole and in chunks; each chunk is then read
into memory of this process's own, and used only if it is still the chunk that was hashed. Several processes may divide
the files of a directory among them (`Share`).

*Deleting.* A process claims a directory before it uses it, and writes a tombstone before it deletes one. `remove` looks
for claims after it has written the tombstone, and `claim` looks for a tombstone after it has written the claim, so at
least one of them sees the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from blake3 import blake3

from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_files import open_plain
from data_contracts.handoffs import FileEntry, Ref
from data_contracts.messages.children import StoreAddress
from infra import audit
from infra.files import hash_stream, new_hasher
from infra.processes.processes import ProcessId, this_process
from infra.settings import state_folder
from infra.store import layout
from infra.store.backend import READERS, Backend, Leftover, Overtaken, Stored, several, warn_overtaken
from infra.store.records import (
    SCHEMA,
    EarlierRecords,
    Pointer,
    corrupt,
    parsed,
    read_record,
    read_strictly,
    write_record,
)
from infra.store.seal import Manifest, Writer, check_file, copy_of, linked, passing_over, read_manifest

T = TypeVar("T")


class Share(NamedTuple):
    """A process's number, and how many processes there are: it handles every `of`-th item. Default: all items."""

    number: int = 0
    of: int = 1

    def items(self, whole: Sequence[T]) -> Sequence[T]:
        """The process's items of a list."""
        return whole[self.number :: self.of]

    def position(self, done: int) -> int:
        """Position in the list of the item that follows the process's first `done` items."""
        return self.number + self.of * done


WHOLE = Share()


# A silent process may have been stopped only for a while, so after this time its leases are waited for again.
SILENT_FOR_S = 300.0
# Aliases, because inside the class `list` is the method.
Names = list[str]
Numbers = list[int]
Listing = list[Stored]
Leftovers = list[Leftover]
# The schema of `store.json`: every record of a store that was made with it carries a digest.
STORE_SCHEMA = 3
# Few enough that a small tensor costs little, and many enough that the chunks' digests take no memory to speak of.
CHUNK_BYTES = 2**20
WRITERS = 8
U = TypeVar("U")
# Of several processes that seal at once, one succeeds at each attempt: the windows of a backfill may share one key.
TRIES = 32


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
        self._earlier = EarlierRecords(backend.uri, all_newer=schema >= STORE_SCHEMA)
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

    def create_json(self, path: str, value: Mapping[str, object]) -> None:
        """`create` a record, whose keys keep their order; UsageError for values that no record may hold."""
        number = "schema_version" if "schema_version" in value else "schema"
        self._create_record(path, {**value, number: SCHEMA})

    def create_once(self, path: str, value: bytes | Mapping[str, object]) -> bool:
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

    def create_about(self, about: Mapping[str, object]) -> None:
        """`create` the `store.json`."""
        self._create_record(layout.STORE, {**about, "schema": STORE_SCHEMA})

    def _create_record(self, path: str, value: Mapping[str, object]) -> None:
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
        entries = share.items(list(sealed.values()))
        check = partial(check_file, self._backend, manifest.uri)
        for _ in map(check, entries) if self.is_local or len(entries) < 2 else several(check, entries):
            on_file()
        return manifest

    def local(self, ref: Ref | str, *, cache: Path | None = None) -> Path:
        """A private folder on this machine with the files of a sealed directory, at least until this process ends.

        From S3 it is a copy below `cache` (default: Trainwright's state folder), with every byte checked; copies that
        no process uses are deleted to make room. From a folder store it has checked copies of small files, and links to
        files of tensors and shards, which are to be read through `infra.store.store`. Raises as `verify`;
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

        Call this before every use of a directory that the caller did not make.
        """
        # A user who may only read, for a plan, cannot write the claim and makes nothing that could be lost.
        with contextlib.suppress(UsageError):
            self.create_once(layout.use(uri, f"{datetime.now(UTC):%Y-%m-%d}"), b"")
        return not self.exists(layout.tombstone(uri))

    def last_claim_s(self, uri: str) -> float:
        """When `uri` was last claimed, as Unix time: the end of that day; 0 if it never was."""
        days = self.list(layout.uses(uri))
        return day_end_s(days[-1]) if days else 0.0

    def remove(self, uri: str, *, why: str, by: str, unless: Callable[[], bool] = lambda: False) -> bool:
        """Delete a directory or a file: write a tombstone first, then delete manifests, then files.

        May be repeated if interrupted. A link is deleted itself, never its target.

        Args:
            unless: checked again once the tombstone is written; if True, nothing is deleted and False is returned.
        """
        path = layout.check_path(uri)
        names = self._backend.walk(path, links=True) or [""]  # without files in it, it is a file itself
        if unless():
            return False
        about = {"by": by, "time": audit.now(), "uri": uri, "why": why}
        self.create_once(layout.tombstone(uri), about)
        # The tombstone stays although nothing is deleted: a process that has seen it makes its own directory meanwhile.
        if unless():
            return False
        # The outermost manifests first: from then on, nobody takes what is left for a damaged directory.
        for name in sorted(names, key=lambda name: (name.rpartition("/")[2] != layout.MANIFEST, name.count("/"), name)):
            self._backend.delete(f"{uri}/{name}" if name else uri)
        return True

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


def numbers(store: Store, folder: str) -> list[int]:
    """The numbers that entries of a folder have as names, in no order."""
    names = [name.removesuffix(".json") for name in store.list(folder)]
    return [int(name) for name in names if name.isdecimal()]


def day_end_s(day: str) -> float:
    """The end of an ISO day in UTC, as Unix time; 0 if the text is not a day."""
    try:
        return datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() + 86_400
    except ValueError:
        return 0.0


class SilentProcesses:
    """Processes whose lease this process took because its beat had stood still. Threads may share it.

    `now` is the time of the taker's own clock, in seconds.
    """

    def __init__(self) -> None:
        self._since: dict[ProcessId, float] = {}

    def note(self, process: ProcessId | None, now: float) -> None:
        """Remember a process, unless it is this one or unknown (None), and forget those of long ago."""
        for known, since in list(self._since.items()):
            if now - since >= SILENT_FOR_S:
                self._since.pop(known, None)  # another thread may have dropped it
        if process is not None and process != this_process():
            self._since[process] = now

    def has(self, process: ProcessId, now: float) -> bool:
        """Whether a process was silent not long ago."""
        return now - self._since.get(process, -SILENT_FOR_S) < SILENT_FOR_S


class SealedFile:
    """A file that was hashed.

    Attributes:
        name: for messages, as of a path; bytes: its size.
    """

    def __init__(self, path: Path, num_bytes: int, digest: str, what: str = "") -> None:
        """Hash the file. Raises CorruptError, which calls it `what`, if it is not as sealed; OSError."""
        self.name, self.bytes, self._path, self._what = path.name, num_bytes, path, what or path.name
        self._chunks: list[bytes] = []
        whole, buffer = new_hasher(), memoryview(bytearray(min(CHUNK_BYTES, num_bytes)))
        with open(self.descriptor(), "rb", buffering=0) as file:
            for at in range(0, num_bytes, CHUNK_BYTES):
                chunk = buffer[: num_bytes - at]
                self._fill(file.fileno(), chunk, at)
                whole.update(chunk)
                self._chunks.append(_digest(chunk))
            if os.fstat(file.fileno()).st_size != num_bytes or whole.hexdigest() != digest:
                raise self._changed()

    def open(self) -> SealedReader:
        """A reader of the file; several may read at once."""
        return SealedReader(self)

    def read_into(self, file: int, memory: memoryview, at: int) -> None:
        """Fill `memory` from `at`, the beginning of a chunk; CorruptError if a chunk is not what was hashed."""
        for start in range(0, len(memory), CHUNK_BYTES):
            chunk = memory[start : start + CHUNK_BYTES]
            self._fill(file, chunk, at + start)
            if _digest(chunk) != self._chunks[(at + start) // CHUNK_BYTES]:
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
        # The last chunk, because what is read next often begins in it.
        self._kept: tuple[int, memoryview] = (-1, memoryview(b""))

    def span(self, start: int, stop: int) -> memoryview:
        """The bytes from `start` to `stop`: more than CHUNK_BYTES in memory of their own; others are not written to."""
        stop = min(stop, self._sealed.bytes)
        if start >= stop:
            return memoryview(b"")
        begin, last = start - start % CHUNK_BYTES, (stop - 1) // CHUNK_BYTES
        memory = self._kept[1]
        if (begin, last) != (self._kept[0] * CHUNK_BYTES, self._kept[0]):
            # Not NumPy's memory: it asks for large pages, and to have them filled by a read takes twice as long.
            memory = memoryview(bytearray(min((last + 1) * CHUNK_BYTES, self._sealed.bytes) - begin))
            self._sealed.read_into(self._file, memory, begin)
            chunk = memory[last * CHUNK_BYTES - begin :]
            self._kept = (last, chunk if len(chunk) == len(memory) else memoryview(bytearray(chunk)))
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


def _digest(chunk: memoryview) -> bytes:
    return blake3(chunk).digest()


def read_several(store: Store, read: Callable[[T], U], arguments: Sequence[T]) -> list[U]:
    """The results of `read` in order; the first error cancels all reads that have not begun."""
    if store.is_local or len(arguments) < 2:
        return [read(one) for one in arguments]
    return list(several(read, arguments))


def read_newest(store: Store, read: Callable[[T], U], arguments: Sequence[T]) -> Iterator[U]:
    """The results of `read` in order, for a caller that may need only the first few: ever more are read at once.

    An error is raised in its place, so never one about what the caller does not come to.
    """
    if store.is_local:
        yield from map(read, arguments)
        return
    begun, at_once = 0, 1
    while begun < len(arguments):
        yield from several(read, arguments[begun : begun + at_once])
        begun += at_once
        at_once = min(2 * at_once, 8 * READERS)


def write_several(write: Callable[[T], object], arguments: Sequence[T]) -> None:
    """`write` each, also in a folder, where each waits for the disk; raises the first error."""
    if len(arguments) < 2:
        for argument in arguments:
            write(argument)
        return
    with ThreadPoolExecutor(WRITERS, thread_name_prefix="several") as pool:
        list(pool.map(write, arguments))


def seal_attempt(store: Store, area: str, key: str, fill: Callable[[Writer], Ref]) -> Ref:
    """What `fill` seals in the first attempt at `key` that has no other content.

    The bytes of a process that was killed, or of one that writes at this moment, stay as they are: the two cannot be
    told apart. Raises what `fill` raises last, if it meets other content again and again.
    """
    return seal_from(store, store.next_attempt(area, key), fill)


def seal_from(store: Store, uri: str, fill: Callable[[Writer], Ref]) -> Ref:
    """As `seal_attempt`, beginning with the attempt `uri` that the caller chose before."""
    area, _, name = uri.partition("/")
    attempt = layout.split_attempt(name)
    assert attempt is not None
    key, _ = attempt
    for _ in range(TRIES - 1):
        try:
            return fill(store.writer(uri))
        except CorruptError:
            uri = layout.attempt(area, key, max(store.attempts(area, key), default=-1) + 1)
    return fill(store.writer(uri))


def newest_sealed(store: Store, area: str, key: str, most: int) -> Iterator[Manifest]:
    """The manifests of up to `most` sealed attempts at a key, the newest first.

    Attempts that are deleted, damaged or readable only by another user are left out.
    """
    left = most
    for n in reversed(store.attempts(area, key)):
        uri = layout.attempt(area, key, n)
        if store.exists(layout.tombstone(uri)) or not store.claim(uri):
            continue
        with contextlib.suppress(UsageError), passing_over():
            yield store.manifest(uri)
            left -= 1
        if not left:
            return


def copy_sealed(source: Store, target: Store, ref: Ref) -> None:
    """Copy a sealed directory, every byte of which is read and compared before.

    Raises CorruptError for bytes that are not as sealed, or if something else has its name in the target.
    """
    manifest = source.verify(ref)
    folder = source.local(ref)
    writer = target.writer(ref.uri, afresh=True)
    entries = [writer.put(file.path, folder / file.path) for file in manifest.files]
    made = writer.seal(manifest.kind, manifest.settings, manifest.provenance, entries)
    if made != manifest.ref:
        raise CorruptError(f"{ref.uri} in {target.uri} is not the one that was copied from {source.uri}.")
