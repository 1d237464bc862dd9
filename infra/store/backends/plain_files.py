"""The plain files of a store in a folder: a link or a special file in place of one is damage, and is not followed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from data_contracts.errors import CorruptError
from data_contracts.plain_file import open_plain


@contextlib.contextmanager
def opened_plain(root: Path, path: str) -> Iterator[BufferedReader]:
    """An open file; CorruptError for a link or a special file, which is neither followed nor waited for."""
    try:
        file = open_plain(root / path, follow=False)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EINVAL):  # a link; a socket; another special file
            raise
        raise CorruptError(f"{path} is not a plain file.", details={"file": path}) from error
    with file:
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
