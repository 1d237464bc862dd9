"""Copies of sealed directories on this machine: completed under another name, then renamed, and kept while in use.

A process that uses a copy holds a lock on its folder until the process ends. Copies without a lock are deleted to make
room.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import threading
from pathlib import Path

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, UsageError
from infra import scratch
from infra.files import locks
from infra.files.digests import hash_stream
from infra.machine.settings import on_this_machine
from infra.store.backends.backend import MAX_READ_BYTES, Backend
from infra.store.layout import MANIFEST
from infra.store.seal import Manifest

_COPY = re.compile(r"[0-9a-f]{64}")
_THERE = (errno.EEXIST, errno.ENOTEMPTY)
# Handles of this process's locks: it may use a copy until it ends, whichever store the copy came from.
_held: dict[Path, int] = {}
# Private folders of this process, by the store to whose files their links lead; the last is in use.
_roots: dict[str, list[scratch.Scratch]] = {}
_linking = threading.Lock()
# Kinds of sealed directories with large files, and the ends of those files' names.
_LINKED = {
    "checkpoint": (".safetensors",),
    "import": (".safetensors",),
    "dataset": (".parquet", ".tfrecord"),
}
# Others are read in one piece.
_MAY_BE_LARGE = (".safetensors", ".parquet", ".tfrecord")


def copy_of(manifest: Manifest, backend: Backend, base: Path) -> Path:
    """The folder of a copy below `base`, with every byte checked, locked by this process; downloads it if needed.

    Raises: CorruptError naming a stored file that is missing or changed; UsageError if `base` cannot hold it.
    """
    target = base / manifest.seal
    with on_this_machine(base):
        base.mkdir(parents=True, exist_ok=True)
        if hold(target) and _is_whole(target, manifest):
            return target
        _make(manifest, backend, target)
        while not hold(target):  # another process deleted it to make room
            _make(manifest, backend, target)
        return target


def linked(manifest: Manifest, backend: Backend, stored: Path) -> Path:
    """A private folder for a directory of a folder store, until this process ends: copies of its files, checked.

    Files of tensors and shards are links into `stored`, the directory itself: they may be large, and who reads them
    checks what is read (`infra.store.sealed_files`).
    """
    with _linking:
        roots = _roots.setdefault(backend.uri, [])
        if not roots or _seal_of(roots[-1].path / manifest.uri) not in (None, manifest.seal):  # it was sealed again
            roots.append(scratch.make("sealed"))
        target = roots[-1].path / manifest.uri
        if not target.exists():
            with scratch.make("linked", root=roots[-1].path) as folder:
                copy = folder.path / "copy"
                _download(manifest, backend, copy, stored)
                about = {name: getattr(manifest, name) for name in ("content", "id", "provenance", "seal")}
                (copy / MANIFEST).write_bytes(canonical(about))
                target.parent.mkdir(parents=True, exist_ok=True)
                copy.rename(target)
        return target


def _seal_of(folder: Path) -> str | None:
    return json.loads((folder / MANIFEST).read_bytes())["seal"] if folder.exists() else None


def hold(folder: Path) -> bool:
    """Lock a copy against deletion until this process ends, and mark it as used now; False if it does not exist."""
    handle = locks.hold(folder)
    if handle is None:
        return False
    if folder in _held:
        os.close(_held[folder])
    _held[folder] = handle
    return True


def make_room(base: Path, num_bytes: int, what: str) -> None:
    """Delete copies that no process uses, the least recently used first, until `num_bytes` are free below `base`.

    Raises:
        UsageError: too little space is free for `what` even then.
    """
    copies = [path for path in base.iterdir() if _COPY.fullmatch(path.name)]
    locks.make_room(copies, lambda: shutil.disk_usage(base).free >= num_bytes)
    free = shutil.disk_usage(base).free
    if free < num_bytes:
        raise UsageError(
            f"The disk of the cache {base} has {free:,} bytes free, but a copy of {what} takes {num_bytes:,}.",
            remedy="Free space there, or name another folder with TRAINWRIGHT_HOME.",
        )


def _make(manifest: Manifest, backend: Backend, target: Path) -> None:
    """Download a copy and rename it to `target`, replacing a damaged copy."""
    damaged = target.exists()
    make_room(target.parent, sum(entry.bytes for entry in manifest.files), manifest.uri)
    with scratch.make("copy", root=target.parent) as folder:
        copy = folder.path / "copy"
        _download(manifest, backend, copy)
        if damaged:
            with contextlib.suppress(FileNotFoundError):  # another process moved it
                os.rename(target, folder.path / "damaged")
        try:
            os.rename(copy, target)
        except OSError as error:
            if error.errno not in _THERE:  # another process was faster with the same bytes
                raise


def _download(manifest: Manifest, backend: Backend, folder: Path, stored: Path | None = None) -> None:
    folder.mkdir()
    for entry in manifest.files:
        path = f"{manifest.uri}/{entry.path}"
        if entry.bytes > MAX_READ_BYTES and not entry.path.endswith(_MAY_BE_LARGE):
            raise CorruptError(f"{path} is too large to be read as a whole.", details={"file": path})
        (folder / entry.path).parent.mkdir(parents=True, exist_ok=True)
        if stored is not None and entry.path.endswith(_LINKED.get(manifest.kind, ())):
            (folder / entry.path).symlink_to(stored / entry.path)
            continue
        try:
            actual = backend.digest(path, folder / entry.path, entry.bytes)
        except FileNotFoundError as error:
            raise CorruptError(f"{path} is missing.", details={"file": path}) from error
        if actual != (entry.bytes, entry.blake3):
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
