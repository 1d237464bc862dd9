"""Locks on files and folders of this machine (flock); the kernel releases a lock when its last holder ends.

With these locks, folders that can be made again are kept while a process uses them, and deleted to make room otherwise.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, a folder or a file that is made if absent; waits until it is free."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def hold(folder: Path) -> int | None:
    """Protect a folder from `make_room` until the returned handle is closed, and mark it as used now.

    None if the folder does not exist.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        if os.stat(folder).st_ino == os.fstat(handle).st_ino:
            os.utime(folder)
            return handle
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)  # deleted, or replaced, while this process waited for the lock
    return None


def make_room(folders: Iterable[Path], is_enough: Callable[[], bool]) -> None:
    """Delete folders that no process holds, the least recently used first, until `is_enough()` or none is left."""
    for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime):
        if is_enough():
            return
        delete_unless_held(folder)


def delete_unless_held(folder: Path) -> None:
    """Delete a folder that no process holds; one that has gone meanwhile is left alone."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if take(handle):
                shutil.rmtree(folder)
        finally:
            os.close(handle)


def take(handle: int) -> bool:
    """Take the exclusive lock on an open file or folder, without waiting; False if another process holds it.

    Raises: OSError where the file system has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
