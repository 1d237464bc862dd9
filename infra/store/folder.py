"""A store in a folder: create-once by hard link, compare-and-set by a lock file and an atomic rename.

A file is written under `.tmp/`, synced, then linked to its name: it appears whole or not at all, and what a killed
writer leaves behind lies where nobody looks (swept after a day). Locks are files under `.locks/` that are never
removed; the kernel lets go of one when its holder dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from infra.digests import write_hashed
from infra.store.backend import Leftover, Stale, Stored, hash_and_copy

# Manifests, pointers, records and bundled files are read in one piece; nothing of that kind is ever as large.
MAX_READ_BYTES = 2**28
_SWEEP_AFTER_S = 86_400
_PUBLISH_TRIES = 20
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_LACKING = {errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK}


class FolderBackend:
    """A folder on a file system with hard links and locks (see `Backend` for the methods)."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.uri = str(self.root)

    def create(self, path: str, data: bytes) -> str:
        """Store `data` once, by hard link."""
        with self._translated(path), self._draft() as draft:
            with draft.open("wb") as file:
                file.write(data)
            self._publish(draft, path)
        return _tag(data)

    def create_file(self, path: str, source: Path) -> None:
        """Store a file's bytes once, by hard link."""
        with source.open("rb") as reading, self._translated(path), self._draft() as draft:
            with draft.open("wb") as writing:
                shutil.copyfileobj(reading, writing, 2**22)
            self._publish(draft, path)

    def create_from(self, path: str, pieces: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
        """Store what comes once, by hard link; nothing goes through `scratch`."""
        with self._translated(path), self._draft() as draft:
            with draft.open("wb", buffering=0) as file:
                found = write_hashed(pieces, file, sync=True)
            self._publish(draft, path)
        return found

    def read(self, path: str) -> tuple[bytes, str]:
        """All bytes; the tag is their SHA-256."""
        with self._translated(path):
            try:
                with self._plain(path) as file:
                    if os.fstat(file.fileno()).st_size > MAX_READ_BYTES:
                        raise CorruptError(f"{path} is larger than anything read as a whole.", details={"file": path})
                    data = file.read()
            except (IsADirectoryError, NotADirectoryError) as error:
                raise FileNotFoundError(errno.ENOENT, "no such file", path) from error
        return data, _tag(data)

    def replace(self, path: str, data: bytes, tag: str) -> str:
        """Overwrite under the path's lock, by rename."""
        with self._translated(path), self._locked(path):
            target = self.root / path
            try:
                held = _tag(target.read_bytes())
            except FileNotFoundError:
                held = ""
            if held != tag:
                raise Stale(path)
            with self._draft() as draft:
                draft.write_bytes(data)
                _sync(draft)
                draft.replace(target)
                _sync(target.parent)
        return _tag(data)

    def digest(self, path: str, copy: Path | None = None) -> tuple[int, str]:
        """Size and BLAKE3; a link or a special file is not followed."""
        with self._translated(path), self._plain(path) as file:
            return hash_and_copy(file, copy)

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        with self._translated(path):
            try:
                return stat.S_ISREG((self.root / path).stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def names(self, folder: str, starting: str = "") -> list[str]:
        """Sorted names without those that begin with a dot, such as NFS' `.nfs…` of a file deleted while open."""
        with self._translated(folder):
            try:
                names = os.listdir(self.root / folder)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(name for name in names if name.startswith(starting) and not name.startswith("."))

    def walk(self, folder: str, *, links: bool = False) -> list[str]:
        """Sorted paths of all files; a link is never followed, and a CorruptError unless `links` are asked for."""
        base = self.root / folder
        with self._translated(folder):
            if base.is_symlink():
                if links:
                    return [""]
                raise CorruptError(f"{folder} is a link.", details={"file": folder})
            return sorted(self._files(base, "", links))

    def _files(self, base: Path, below: str, links: bool) -> Iterator[str]:
        try:
            entries = list(os.scandir(base / below))
        except FileNotFoundError:
            return
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self._files(base, f"{name}/", links)
            elif links or entry.is_file(follow_symlinks=False):
                yield name
            else:
                path = str((base / name).relative_to(self.root))
                raise CorruptError(f"{path} is a link or a special file, not a plain file.", details={"file": path})

    def delete(self, path: str) -> None:
        """Remove a file, and the folders that are empty then."""
        with self._translated(path):
            target = self.root / path
            target.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder above still holds something, or is gone
                for folder in target.relative_to(self.root).parents[:-1]:
                    (self.root / folder).rmdir()

    def stored(self, folder: str) -> list[Stored]:
        """All files below `folder`, sorted."""
        below = f"{folder}/" if folder else ""
        with self._translated(folder):
            return sorted(_scan(self.root / folder, below), key=lambda one: one.path)

    def leftovers(self) -> list[Leftover]:
        """Drafts under `.tmp/`, and what a probe left."""
        with self._translated(".tmp"):
            found = [one for name in (".tmp", ".probe") for one in _scan(self.root / name, f"{name}/")]
        return [Leftover(one.path, one.bytes, one.written_s) for one in found]

    def drop(self, leftover: Leftover) -> None:
        """Remove a draft."""
        with self._translated(leftover.path):
            (self.root / leftover.path).unlink(missing_ok=True)

    def local(self, uri: str) -> Path | None:
        """The folder itself."""
        return self.root / uri

    def creates_large_once(self, path: str) -> bool:
        """True: size makes no difference to a hard link."""
        return True

    def sweep(self) -> None:
        """Remove what killed writers left under `.tmp/` more than a day ago."""
        with contextlib.suppress(OSError):  # not there, or this user may not look
            for draft in os.scandir(self.root / ".tmp"):
                with contextlib.suppress(OSError):  # gone meanwhile, or this user may only read
                    if time.time() - draft.stat().st_mtime > _SWEEP_AFTER_S:
                        os.unlink(draft)

    @contextlib.contextmanager
    def _plain(self, path: str) -> Iterator[BinaryIO]:
        """An open file; CorruptError for a link or a special file, which is neither followed nor waited for."""
        target = self.root / path
        try:
            # O_NONBLOCK: a named pipe put in a file's place must not hang the reader.
            descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link; a socket
                raise
            raise CorruptError(f"{path} is not a plain file.", details={"file": path}) from error
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder", path)
            if not stat.S_ISREG(mode):
                raise CorruptError(f"{path} is not a plain file.", details={"file": path})
            yield file

    @contextlib.contextmanager
    def _draft(self) -> Iterator[Path]:
        draft = self.root / ".tmp" / uuid.uuid4().hex
        _make_folder(draft.parent)
        try:
            yield draft
        finally:
            draft.unlink(missing_ok=True)

    def _publish(self, draft: Path, path: str) -> None:
        target = self.root / path
        _sync(draft)
        for tries_left in reversed(range(_PUBLISH_TRIES)):
            try:
                _make_folder(target.parent)
                os.link(draft, target)
                break
            except FileExistsError:
                if _same(draft, target):  # NFS carried the link out, lost the answer and asked again
                    break
                raise
            except FileNotFoundError:  # another process just deleted the folder, which was empty
                if not tries_left:
                    raise
            except PermissionError as error:
                if error.errno == errno.EPERM:  # how a file system says that it has no hard links
                    error.errno = errno.ENOTSUP
                raise
        _sync(target.parent)

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        lock = self.root / ".locks" / hashlib.sha256(path.encode()).hexdigest()[:32]
        _make_folder(lock.parent)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            # Let go by name: a child forked meanwhile holds the same open file, so closing alone would not.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            where = f"{path} in the store {self.uri}"
            if error.errno in _LACKING:
                raise UsageError(
                    f"The file system of {self.uri} has no hard links or locks, which a store needs.",
                    remedy="Put the store on another file system.",
                ) from error
            if error.errno in _REFUSED:
                raise UsageError(
                    f"This user may not use {where} ({error.strerror}).",
                    remedy="Give this user permission for the folder, or name another store.",
                ) from error
            raise StorageUnavailable(f"{where} cannot be used now ({error.strerror}).") from error


def _scan(base: Path, below: str) -> Iterator[Stored]:
    """Files and links below `base`, whose paths begin with `below`; what vanishes meanwhile is left out."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in list(os.scandir(base)):
            if entry.is_dir(follow_symlinks=False):
                if below or not entry.name.startswith("."):
                    yield from _scan(base / entry.name, f"{below}{entry.name}/")
            elif not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    yield Stored(f"{below}{entry.name}", about.st_size, about.st_mtime)


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:
        return False


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, f"{folder.name} is a file, not a folder") from error
        _sync(folder.parent)
