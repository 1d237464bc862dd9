"""A store in a folder: create-once by hard link, compare-and-set by a lock file and an atomic rename.

A file is written under `.tmp/`, synced, then linked to its name, so it appears whole or not at all. What a killed
writer leaves stays in `.tmp/`, where no reader looks, and is swept after a day. Files are reached folder by folder,
through descriptors; a link is never followed, even if it replaces a folder between two steps.

Stored files are read-only: this does not stop their owner, but an editor or a script that would write in place. A
store's folder that is made here is closed to all others; one that was made before, such as a group's, and the umask
decide who may read. Locks are files under `.locks/` that are never removed; the kernel releases a lock when its holder
dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from data_contracts.foreign_files import open_plain
from infra.files import write_hashed
from infra.processes.this_process import COUNTERS
from infra.store.backend import MAX_READ_BYTES, Leftover, Stale, Stored, hash_and_copy

_REFUSED = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_LACKING = {errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_READ_ONLY = 0o444
_DRAFT = re.compile(r"[0-9a-f]{32}")
_SWEEP_AFTER_S = 86_400
_PUBLISH_TRIES = 20
_OWN = (".tmp", ".probe", ".locks")


class FolderBackend:
    """A folder on a file system with hard links and locks (see `Backend` for the methods)."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.uri = self.server = str(self.root)

    def create(self, path: str, data: bytes) -> str:
        """Store `data` once, by hard link."""
        with self._translated(path), self._draft() as draft:
            draft.write(data)
            COUNTERS.put(len(data))
            self._publish(draft, path)
        return _tag(data)

    def create_file(self, path: str, source: Path, *, private: bool = False) -> None:
        """Store a file's bytes once, by hard link."""
        with source.open("rb") as reading, self._translated(path), self._draft(private) as draft:
            with BufferedWriter(draft.open()) as writing:
                shutil.copyfileobj(reading, writing, 2**22)
                COUNTERS.put(writing.tell())
            self._publish(draft, path)

    def create_from(self, path: str, chunks: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
        """Store the chunks once, by hard link; does not use `scratch`."""
        with self._translated(path), self._draft() as draft:
            with draft.open() as file:
                found = write_hashed(chunks, file)
            COUNTERS.put(found[0])
            self._publish(draft, path)
        return found

    def read(self, path: str) -> tuple[bytes, str]:
        """All bytes; the tag is their SHA-256."""
        with self._translated(path):
            try:
                with _opened_plain(self.root, path) as file:
                    if os.fstat(file.fileno()).st_size > MAX_READ_BYTES:
                        raise CorruptError(f"{path} is too large to be read as a whole.", details={"file": path})
                    data = file.read()
                    COUNTERS.get(len(data))
            except NotADirectoryError as error:
                raise FileNotFoundError(errno.ENOENT, "no such file", path) from error
        return data, _tag(data)

    def replace(self, path: str, data: bytes, tag: str) -> str:
        """Overwrite under the path's lock, by rename."""
        with self._translated(path), self._locked(path):
            target = self.root / path
            try:
                with _opened_plain(self.root, path) as file:
                    current = _tag(file.read(MAX_READ_BYTES))
            except FileNotFoundError:
                current = ""
            if current != tag:
                raise Stale(path)
            COUNTERS.put(len(data))
            with self._draft() as draft:
                draft.write(data)
                draft.protect()
                draft.rename(target)
                _sync(target.parent)
        return _tag(data)

    def digest(self, path: str, copy: Path | None = None, most: float = math.inf) -> tuple[int, str]:
        """Size and BLAKE3; a link or a special file is not followed."""
        with self._translated(path), _opened_plain(self.root, path) as file:
            found = hash_and_copy(file, copy, most)
        COUNTERS.get(found[0])
        return found

    def exists(self, path: str) -> bool:
        """Whether a file is there; CorruptError if something else is."""
        COUNTERS.get()
        with self._translated(path):
            try:
                mode = (self.root / path).lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                return False
        if not stat.S_ISREG(mode):
            raise _not_plain(path)
        return True

    def names(self, folder: str, starting: str = "") -> list[str]:
        """Sorted names without those that begin with a dot, such as NFS' `.nfs…` of a file deleted while open."""
        COUNTERS.put()  # as a price list of S3 counts a listing
        with self._translated(folder):
            try:
                names = os.listdir(self.root / folder)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(name for name in names if name.startswith(starting) and not name.startswith("."))

    def walk(self, folder: str, *, links: bool = False) -> list[str]:
        """Sorted paths of all files; links are never followed and raise CorruptError unless `links` is set."""
        base = self.root / folder
        with self._translated(folder):
            if base.is_symlink():
                if links:
                    return [""]
                raise CorruptError(f"{folder} is a link.", details={"file": folder})
            return sorted(_plain_files(self.root, folder, links=links))

    def delete(self, path: str) -> None:
        """Remove a file, and the folders that are then empty."""
        with self._translated(path):
            unlink(self.root, path)
            with contextlib.suppress(OSError):  # the folder above is not empty, or is gone
                remove_empty(self.root, path.rpartition("/")[0])

    def stored(self, folder: str) -> list[Stored]:
        """All files below `folder`, sorted."""
        with self._translated(folder):
            return sorted(files(self.root, folder), key=lambda one: one.path)

    def leftovers(self) -> list[Leftover]:
        """Drafts under `.tmp/`, and what a probe left."""
        with self._translated(".tmp"):
            self._check_own()
            found = [one for name in (".tmp", ".probe") for one in files(self.root, name)]
        return [Leftover(one.path, one.bytes, one.written_s) for one in found]

    def now_s(self) -> float:
        """The time with which a file written now is dated; on a network file system, its server's time."""
        with self._translated(".tmp"), self._draft() as draft:
            draft.write(b"?")
            draft.protect()
            return draft.about().st_mtime

    def drop(self, leftover: Leftover) -> None:
        """Remove a draft."""
        with self._translated(leftover.path):
            unlink(self.root, leftover.path)

    def local(self, uri: str) -> Path | None:
        """The folder itself."""
        return self.root / uri

    def creates_large_once(self, path: str) -> bool:
        """True: size makes no difference to a hard link."""
        return True

    def sweep(self) -> None:
        """Remove what killed writers left in `.tmp/` more than a day ago; CorruptError if it is not a real folder."""
        with contextlib.suppress(OSError):  # does not exist, or this user may not look
            self._check_own()
        with (
            contextlib.suppress(OSError, UsageError, StorageUnavailable),
            opened(self.root, ".tmp") as folder,
        ):
            old = drafts_before(folder, time.time() - _SWEEP_AFTER_S)
            # This machine's clock may be wrong, so its old drafts are checked again by the clock that dates the files.
            for draft in drafts_before(folder, self.now_s() - _SWEEP_AFTER_S) if old else []:
                draft.remove()

    def _check_own(self) -> None:
        """CorruptError if a link or a file is in place of one of the store's own folders."""
        for name in _OWN:
            with contextlib.suppress(FileNotFoundError), opened(self.root, name):
                pass

    @contextlib.contextmanager
    def _own(self, name: str) -> Iterator[int]:
        """A descriptor of one of the store's own folders, which is made if it does not exist."""
        try:
            descriptor = open_folder(self.root, name)
        except (FileNotFoundError, NotADirectoryError):  # the latter: the root lies below a file, which is then named
            self._make_root()
            _make_folder(self.root / name)
            descriptor = open_folder(self.root, name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_root(self) -> None:
        """Make the store's folder; UsageError if it is below a file, or on a file system such as /proc."""
        why = next((f"{one} is a file, not a folder" for one in (self.root, *self.root.parents) if one.is_file()), None)
        for _ in range(2 if why is None else 0):  # twice: another process may delete an empty folder meanwhile
            try:
                _make_folder(self.root, 0o700)
                return
            except FileNotFoundError:  # what /proc answers, whatever exists there
                why = "its file system takes no new folders"
        raise UsageError(f"The folder of the store {self.uri} cannot be made: {why}.", remedy="Name another folder.")

    @contextlib.contextmanager
    def _draft(self, private: bool = False) -> Iterator[UnfinishedFile]:
        with self._own(".tmp") as folder:
            draft = UnfinishedFile(folder, uuid.uuid4().hex, private)
            try:
                yield draft
            finally:
                draft.remove()

    def _publish(self, draft: UnfinishedFile, path: str) -> None:
        target = self.root / path
        draft.protect()
        for tries_left in reversed(range(_PUBLISH_TRIES)):
            try:
                _make_folder(target.parent)
                draft.link(target)
                break
            except FileExistsError:
                if draft.is_at(target):  # NFS made the link, lost the answer and tried again
                    break
                raise
            except FileNotFoundError:  # another process just deleted the folder, which was empty
                if not tries_left:
                    raise
            except PermissionError as error:
                if error.errno == errno.EPERM:  # some file systems report so that they have no hard links
                    error.errno = errno.ENOTSUP
                raise
        _sync(target.parent)

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        lock = hashlib.sha256(path.encode()).hexdigest()[:32]
        with self._own(".locks") as folder:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666, dir_fd=folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            # Unlock explicitly: a child forked meanwhile holds the same open file, so closing alone would not unlock
            # it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _translated(self, path: str) -> contextlib.AbstractContextManager[None]:
        own = path.startswith((".probe", ".tmp"))  # names that mean nothing to a user
        return translate("" if own else path, self.uri)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def _opened_plain(root: Path, path: str) -> Iterator[BufferedReader]:
    """An open file; CorruptError for a link, a folder or a special file, which is neither followed nor waited for."""
    try:
        file = open_plain(root / path, follow=False)
    except OSError as error:
        # a link; a socket; another special file; a folder
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EISDIR):
            raise
        raise _not_plain(path) from error
    with file:
        yield file


def _not_plain(path: str) -> CorruptError:
    return CorruptError(f"{path} is not a plain file.", details={"file": path})


def _plain_files(root: Path, folder: str, below: str = "", *, links: bool = False) -> Iterator[str]:
    """The path below `folder` of each file in it, and with `links` of each link and special file, too.

    Raises: CorruptError for a link or a special file, unless `links` is set.
    """
    base = root / folder
    try:
        entries = list(os.scandir(base / below))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _plain_files(root, folder, f"{name}/", links=links)
        elif links or entry.is_file(follow_symlinks=False):
            yield name
        else:
            path = str((base / name).relative_to(root))
            raise CorruptError(f"{path} is a link or a special file, not a plain file.", details={"file": path})


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path, mode: int = 0o777) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        try:
            folder.mkdir(mode, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, f"{folder.name} is a file, not a folder") from error
        _sync(folder.parent)


@contextlib.contextmanager
def translate(path: str, uri: str) -> Iterator[None]:
    """Translate an OSError into UsageError or StorageUnavailable, which names `path` ("": nothing but the store).

    FileNotFoundError and FileExistsError pass.
    """
    where = f"{path} in the store {uri}" if path else f"the store {uri}"
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        if error.errno in _LACKING:
            raise UsageError(
                f"The file system of {uri} has no hard links or locks, which a store needs.",
                remedy="Put the store on another file system.",
            ) from error
        if error.errno in _REFUSED:
            raise UsageError(
                f"This user may not use {where} ({error.strerror}).",
                remedy="Give this user permission for the folder, or name another store.",
                details={"file": path} if path else {},
            ) from error
        if error.errno in _FULL:
            raise StorageUnavailable(
                f"{where} cannot be written ({error.strerror}{_inodes(uri)}).",
                remedy=f"Free space or inodes in {uri}, raise its quota, or mount it for writing, then resume.",
            ) from error
        raise StorageUnavailable(f"{where} cannot be used now ({error.strerror}).") from error


def _inodes(uri: str) -> str:
    """A full disk is told as one that lacks inodes, where that is so: it may have free space."""
    try:
        room = os.statvfs(uri)
    except OSError:
        return ""
    return ": no inodes are free" if room.f_files and not room.f_favail else ""


def open_folder(root: Path, folder: str) -> int:
    """A descriptor of `folder` below `root` ("" is the root itself), which the caller closes.

    Raises: CorruptError for a link, and for a file in place of a folder whose name begins with a dot (the store's own
    folders); FileNotFoundError; NotADirectoryError.
    """
    descriptor = os.open(root, _FOLDER)
    reached: list[str] = []
    for name in filter(None, folder.split("/")):
        reached.append(name)
        above = descriptor
        try:
            descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                _refuse(root, "/".join(reached), os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
            raise
        finally:
            os.close(above)
    return descriptor


@contextlib.contextmanager
def opened(root: Path, folder: str) -> Iterator[int]:
    """As `open_folder`, but closed on exit."""
    descriptor = open_folder(root, folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def files(root: Path, folder: str) -> Iterator[Stored]:
    """All files below `folder`, without dot files, and without the root's dot folders.

    Files that vanish meanwhile are left out. Raises: CorruptError for a link, and for an empty folder in place of a
    record or a manifest.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), opened(root, folder) as descriptor:
        entries = list(os.scandir(descriptor))
        if not entries and folder.endswith(".json"):
            raise CorruptError(f"{folder} is not a plain file.", details={"file": folder})
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_symlink():
                raise _link(root, path)
            if entry.is_dir(follow_symlinks=False):
                if folder or not entry.name.startswith("."):
                    yield from files(root, path)
            elif not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    yield Stored(path, about.st_size, about.st_mtime)


def unlink(root: Path, path: str) -> None:
    """Remove a file or a link; does nothing if none is there. CorruptError if a folder above it is a link."""
    folder, _, name = path.rpartition("/")
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), opened(root, folder) as descriptor:
        os.unlink(name, dir_fd=descriptor)


def remove_empty(root: Path, folder: str) -> None:
    """Remove an empty folder and then those above it; OSError at the first that is not empty."""
    while folder:
        above, _, name = folder.rpartition("/")
        with opened(root, above) as descriptor:
            os.rmdir(name, dir_fd=descriptor)
        folder = above


@dataclass(frozen=True)
class UnfinishedFile:
    """A file that is being written, by its name in an open folder; a `private` one is its owner's alone."""

    folder: int
    name: str
    private: bool = False

    def open(self) -> FileIO:
        """The new file, open for writing, unbuffered; it must not exist yet."""
        mode = 0o600 if self.private else 0o666
        return FileIO(self.name, "xb", opener=lambda name, flags: os.open(name, flags, mode, dir_fd=self.folder))

    def write(self, data: bytes) -> None:
        """Write all of `data`."""
        with BufferedWriter(self.open()) as file:
            file.write(data)

    def protect(self) -> None:
        """Make the file read-only for everybody, and sync it to the disk."""
        descriptor = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.folder)
        try:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & _READ_ONLY)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def about(self) -> os.stat_result:
        """The file's `stat` result."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def is_at(self, target: Path) -> bool:
        """Whether `target` is this same file."""
        try:
            return os.path.samestat(self.about(), target.stat())
        except FileNotFoundError:
            return False

    def link(self, target: Path) -> None:
        """Give the file a second name, which must be free: FileExistsError."""
        os.link(self.name, target, src_dir_fd=self.folder, follow_symlinks=False)

    def rename(self, target: Path) -> None:
        """Rename the file to `target`, replacing it."""
        os.replace(self.name, target, src_dir_fd=self.folder)

    def remove(self) -> None:
        """Remove the file; does nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.folder)


def drafts_before(folder: int, before_s: float) -> list[UnfinishedFile]:
    """The drafts in an open folder that were last written before this Unix time."""
    found = []
    for entry in list(os.scandir(folder)):
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            ours = _DRAFT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            if ours and entry.stat(follow_symlinks=False).st_mtime < before_s:
                found.append(UnfinishedFile(folder, entry.name))
    return found


def _refuse(root: Path, path: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise _link(root, path)
    if path.startswith("."):
        raise CorruptError(f"{path} in the store {root} is not a folder.", remedy="Remove it.", details={"file": path})


def _link(root: Path, path: str) -> CorruptError:
    return CorruptError(
        f"{path} in the store {root} is a link.",
        remedy="Remove it, or replace it with its target; only the store as a whole may be behind a link.",
        details={"file": path},
    )
