"""Reach files below a store's root folder by folder, through descriptors.

A link is never followed, even if it replaces a folder between two steps.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedWriter, FileIO
from pathlib import Path

from data_contracts.errors import CorruptError
from infra.store.backends.backend import Stored

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_READ_ONLY = 0o444
_DRAFT = re.compile(r"[0-9a-f]{32}")


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
class Draft:
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

    def settle(self) -> None:
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


def drafts_before(folder: int, before_s: float) -> list[Draft]:
    """The drafts in an open folder that were last written before this Unix time."""
    found = []
    for entry in list(os.scandir(folder)):
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            ours = _DRAFT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            if ours and entry.stat(follow_symlinks=False).st_mtime < before_s:
                found.append(Draft(folder, entry.name))
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
