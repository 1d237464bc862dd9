"""Damages files of a store in place, as root or a failing disk would: what a store holds is read-only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


def overwrite(path: Path, data: bytes | str) -> None:
    """Give the file other bytes without making a new one; a file that is not there yet is made."""
    if path.exists():
        path.chmod(0o644)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit flipped."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _in_place(make: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    def replace(path: Path, other: Path) -> None:
        path.unlink()
        make(path)

    return replace


# What may happen to a file, by name; each function gets the file, and another whole file of its kind (`link`: its own).
HARMS: dict[str, Callable[[Path, Path], object]] = {
    "closed": lambda path, other: path.chmod(0),
    "folder": _in_place(Path.mkdir),
    "pipe": _in_place(os.mkfifo),
    "gone": lambda path, other: path.unlink(),
    "link": lambda path, other: (path.unlink(), path.symlink_to(other)),
    "bit": lambda path, other: overwrite(path, flipped(path.read_bytes() or b"?", 4 * path.stat().st_size + 1)),
    "half": lambda path, other: overwrite(path, path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path, other: overwrite(path, b""),
    "json": lambda path, other: overwrite(path, b"{}"),
    "another": lambda path, other: overwrite(path, other.read_bytes()),
}


def restore(path: Path, whole: Path) -> None:
    """Put a whole file back, whatever stands in its place."""
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    shutil.copy2(whole, path)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


@contextlib.contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Root reads no file in the block that its mode closes: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    libc, header, data = ctypes.CDLL(None), _Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(ctypes.byref(header), ctypes.byref(data)) == 0
    effective = data[0]
    data[0] = effective & ~0b110
    assert libc.capset(ctypes.byref(header), ctypes.byref(data)) == 0
    try:
        yield
    finally:
        data[0] = effective
        assert libc.capset(ctypes.byref(header), ctypes.byref(data)) == 0
