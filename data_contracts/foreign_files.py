"""Opens files and parses JSON that others may have written, within bounds.

Only regular files are opened, and no more bytes of them are read than the reader expects. The depth of JSON and its
number of values are bounded before a parser sees it: a parser that recurses in C ends the whole process, and small
lists take twenty times their bytes in memory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

# Specs, suites and other files that people write are smaller.
MAX_TEXT_BYTES = 2**26
MAX_DEPTH = 100
# The resolved inputs of a run with some hundred thousand files have fewer objects and lists.
MAX_CONTAINERS = 5_000_000
_TEXT = re.compile(rb'"[^"]*"')
_ALIKE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))


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


class TooDeep(ValueError):
    """JSON that is nested deeper than MAX_DEPTH levels."""


def parse_json(data: bytes, **hooks: Any) -> Any:
    """The value of JSON in UTF-8; ValueError if it is not JSON or, before it is parsed, as `check_nesting`.

    Args:
        hooks: as for `json.loads`.
    """
    check_nesting(data)
    return json.loads(data.decode(), **hooks)


def check_nesting(data: bytes) -> None:
    """TooDeep if JSON, or lines of JSON, nest deeper than MAX_DEPTH; ValueError with more than MAX_CONTAINERS in it."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Most texts hold no bracket: they are gone before the slower expression looks for the others.
    brackets = _TEXT.sub(b"", data.translate(_ALIKE, _OTHERS).replace(b'""', b""))
    if len(brackets) > 2 * MAX_CONTAINERS:
        raise ValueError(f"there are more than {MAX_CONTAINERS:,} objects and lists")
    for _ in range(MAX_DEPTH):  # each time, the innermost level goes
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            break
        brackets = outer
    opening = brackets.count(b"[")
    # A few brackets that nothing closes are no depth: the parser names the mistake.
    if opening > MAX_DEPTH or (opening and 2 * opening == len(brackets)):
        raise TooDeep(f"a value is nested deeper than {MAX_DEPTH} levels")
