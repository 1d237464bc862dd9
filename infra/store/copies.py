"""Copies of sealed directories on this machine: made whole under another name, then renamed, kept while in use.

A process that uses a copy holds a lock on its folder until it ends; what nobody holds is deleted to make room.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from data_contracts.errors import CorruptError, UsageError
from infra.digests import hash_stream
from infra.settings import on_this_machine
from infra.store.backend import Backend
from infra.store.seal import Manifest

_COPY = re.compile(r"[0-9a-f]{64}")
_SCRATCH = "tmp"
_SWEEP_AFTER_S = 86_400
_THERE = (errno.EEXIST, errno.ENOTEMPTY)
_held: dict[Path, int] = {}


def copy_of(manifest: Manifest, backend: Backend, base: Path) -> Path:
    """The copy below `base`, every byte checked and held by this process; downloaded if there is none that is whole.

    Raises: CorruptError naming a stored file that is missing or changed; UsageError if `base` cannot hold it.
    """
    target = base / manifest.seal
    with on_this_machine(base):
        base.mkdir(parents=True, exist_ok=True)
        _sweep(base)
        if hold(target) and _is_whole(target, manifest):
            return target
        while True:
            damaged = target.exists()
            make_room(base, sum(entry.bytes for entry in manifest.files), manifest.uri)
            with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=base, ignore_cleanup_errors=True) as scratch:
                copy = Path(scratch) / "copy"
                _download(manifest, backend, copy)
                if damaged:
                    with contextlib.suppress(FileNotFoundError):  # another process took it away
                        os.rename(target, Path(scratch) / "damaged")
                try:
                    os.rename(copy, target)
                except OSError as error:
                    if error.errno not in _THERE:  # another process was faster with the same bytes
                        raise
            if hold(target):
                return target


def hold(folder: Path) -> bool:
    """Keep a copy from being deleted until this process ends, and mark it as used now; False if it is not there."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    fcntl.flock(handle, fcntl.LOCK_SH)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(folder).st_ino == os.fstat(handle).st_ino:
            os.utime(folder)
            if folder in _held:
                os.close(_held[folder])
            _held[folder] = handle
            return True
    os.close(handle)  # deleted, or made anew, while this process waited for the lock
    return False


def make_room(base: Path, num_bytes: int, what: str) -> None:
    """Delete copies that nobody holds, the one used longest ago first, until `num_bytes` are free below `base`.

    Raises:
        UsageError: that was not enough for `what`.
    """
    copies = [path for path in base.iterdir() if _COPY.fullmatch(path.name)]
    for folder in sorted(copies, key=lambda folder: folder.stat().st_mtime):
        if shutil.disk_usage(base).free >= num_bytes:
            return
        _delete_unless_held(folder)
    free = shutil.disk_usage(base).free
    if free < num_bytes:
        raise UsageError(
            f"The disk of the cache {base} has {free:,} bytes free, but a copy of {what} takes {num_bytes:,}.",
            remedy="Free space there, or name another folder with TRAINWRIGHT_HOME.",
        )


def _delete_unless_held(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)


def _download(manifest: Manifest, backend: Backend, folder: Path) -> None:
    folder.mkdir()
    for entry in manifest.files:
        (folder / entry.path).parent.mkdir(parents=True, exist_ok=True)
        path = f"{manifest.uri}/{entry.path}"
        try:
            found = backend.digest(path, folder / entry.path)
        except FileNotFoundError as error:
            raise CorruptError(f"{path} is missing.", details={"file": path}) from error
        if found != (entry.bytes, entry.blake3):
            raise CorruptError(f"{path} does not hold the bytes that were sealed.", details={"file": path})


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    for entry in manifest.files:
        try:
            with (folder / entry.path).open("rb") as file:
                if hash_stream(file) != (entry.bytes, entry.blake3):
                    return False
        except OSError:
            return False
    return folder.is_dir()


def _sweep(base: Path) -> None:
    """Remove what killed downloads left more than a day ago."""
    for left in base.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            # The copy's own time, too: a long download still makes files in it.
            newest = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if time.time() - newest > _SWEEP_AFTER_S:
                shutil.rmtree(left, ignore_errors=True)
