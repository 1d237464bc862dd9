"""Copies of sealed directories on this machine: made whole and checked under another name, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from pathlib import Path

from data_contracts.errors import CorruptError
from infra.digests import hash_stream
from infra.settings import on_this_machine
from infra.store.backend import Backend
from infra.store.seal import Manifest

_SCRATCH = "tmp"
_SWEEP_AFTER_S = 86_400
_THERE = (errno.EEXIST, errno.ENOTEMPTY)


def copy_of(manifest: Manifest, backend: Backend, base: Path) -> Path:
    """The copy below `base`, every byte checked; downloaded if there is none that is whole.

    Raises: CorruptError naming a stored file that is missing or changed; UsageError if `base` cannot hold it.
    """
    target = base / manifest.seal
    with on_this_machine(base):
        base.mkdir(parents=True, exist_ok=True)
        _sweep(base)
        if _is_whole(target, manifest):
            return target
        damaged = target.exists()
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
    return target


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
