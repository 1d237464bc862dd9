"""Files of others: nothing but a regular file is waited for or read, and its size is known before it is."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.errors import SpecError
from data_contracts.foreign_files import open_plain, read_plain
from data_contracts.load import load_spec


def test_a_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to("a")
    assert read_plain(tmp_path / "a", 3) == read_plain(tmp_path / "b") == b"abc"
    with pytest.raises(OSError, match="symbolic links"):
        open_plain(tmp_path / "b", follow=False)


def test_what_is_larger_than_expected_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 2**42)
    with pytest.raises(OSError, match="larger than 67,108,864 bytes"):
        read_plain(tmp_path / "a")


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


# what makes one at a path, the error number of opening it
KINDS: dict[str, tuple[Callable[[Path], None], int]] = {
    "pipe": (os.mkfifo, errno.EINVAL),
    "device": (lambda path: path.symlink_to("/dev/zero"), errno.EINVAL),
    "socket": (bind, errno.ENXIO),
    "folder": (Path.mkdir, errno.EISDIR),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_regular_file_is_neither_waited_for_nor_read(kind: str, tmp_path: Path) -> None:
    path, (make, number) = tmp_path / "pipeline.yaml", KINDS[kind]
    make(path)
    with pytest.raises(OSError, check=lambda error: error.errno == number):
        open_plain(path)
    with pytest.raises(SpecError, match=r"pipeline\.yaml: (cannot be read|is a folder)"):
        load_spec(path)
