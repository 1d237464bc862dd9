"""The folder that an export is written to: new or empty, and complete or not there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from data_contracts.errors import UsageError
from infra.files import check_new, delete_unless_held
from infra.settings import on_this_machine

_OTHER = "Name a folder that does not exist yet, or an empty one."

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


@contextlib.contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A draft beside `folder`, which takes its name once the block has ended well, in one step.

    A draft that a killed process left is removed by the next export to the same folder.

    Raises: UsageError if the folder is a link, a file or not empty, or if its parent does not exist.
    """
    place = folder.absolute()
    check_free(place)
    with on_this_machine(place):
        _sweep(place)
        draft, handle = _draft(place)
    try:
        yield draft
        with on_this_machine(place):
            _settle(draft)
            _take_name(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(handle)


def check_free(folder: Path) -> None:
    """UsageError unless an export may be written to this folder."""
    if not folder.parent.is_dir():
        raise UsageError(f"{folder.parent} is not a folder.", remedy="Make it first, or name another place.")
    check_new(folder, _OTHER)


def _draft(folder: Path) -> tuple[Path, int]:
    """A new folder beside this one, and the handle that locks it."""
    while True:
        draft = folder.with_name(f"{_prefix(folder)}{secrets.token_hex(8)}")
        draft.mkdir(mode=0o700)
        handle = os.open(draft, _FOLDER)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if draft.exists():  # another export may have swept it before it was locked
            return draft, handle
        os.close(handle)


def _prefix(folder: Path) -> str:
    return f".{folder.name}.draft-"


def _sweep(folder: Path) -> None:
    """Remove drafts of this folder whose process has ended."""
    for path in folder.parent.glob(f"{glob.escape(_prefix(folder))}*"):
        with contextlib.suppress(OSError):
            delete_unless_held(path)


def _settle(draft: Path) -> None:
    """Write the files' bytes to the disk and give them the permissions that new files have."""
    mask = os.umask(0)
    os.umask(mask)
    for path in draft.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o666 & ~mask)
    draft.chmod(0o777 & ~mask)


def _take_name(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise UsageError(f"{folder} was filled while the export was made.", remedy=_OTHER) from error
