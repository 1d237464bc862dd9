"""What an OSError means for a store in a folder: a refusal, a file system's missing feature, or a passing failure."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from data_contracts.errors import StorageUnavailable, UsageError

_REFUSED = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_LACKING = {errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK}


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
