"""The plain files of a store in a folder: a link or a special file in place of one is damage, and is not followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from data_contracts.errors import CorruptError


@contextlib.contextmanager
def opened_plain(root: Path, path: str) -> Iterator[BinaryIO]:
    """An open file; CorruptError for a link or a special file, which is neither followed nor waited for."""
    target = root / path
    try:
        # O_NONBLOCK: a named pipe in a file's place must not hang the reader.
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


def plain_files(root: Path, folder: str, below: str = "", *, links: bool = False) -> Iterator[str]:
    """The path below `folder` of each file in it, and with `links` of each link and special file, too.

    Raises: CorruptError for a link or a special file, unless `links` is set.
    """
    base = root / folder
    try:
        entries = list(os.scandir(base / below))
    except FileNotFoundError:
        return
    for entry in entries:
        name = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from plain_files(root, folder, f"{name}/", links=links)
        elif links or entry.is_file(follow_symlinks=False):
            yield name
        else:
            path = str((base / name).relative_to(root))
            raise CorruptError(f"{path} is a link or a special file, not a plain file.", details={"file": path})
