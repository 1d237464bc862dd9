"""Opens files that others wrote: only regular files, and no more bytes of them than the reader expects."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

# Specs, suites and other files that people write are smaller.
MAX_TEXT_BYTES = 2**26


def open_plain(path: str | Path, *, follow: bool = True) -> BufferedReader:
    """An open file. A named pipe or a device in its place is neither waited for nor read.

    Args:
        follow: whether a link is followed.

    Raises: IsADirectoryError; OSError with EINVAL for a special file, and with ELOOP for a link that is not followed.
    """
    # O_NONBLOCK: opening a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_plain(path: str | Path, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """All bytes of a file, as `open_plain`; OSError with EFBIG, before any memory is taken, if there are more."""
    with open_plain(path) as file:
        # A file that grows meanwhile is not read further either.
        data = file.read(most_bytes + 1) if os.fstat(file.fileno()).st_size <= most_bytes else None
    if data is None or len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", str(path))
    return data
