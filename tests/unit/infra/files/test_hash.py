"""Hashes of streams and sealed files, also in a process that was forked from one that had hashed."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.files import hash_stream
from infra.store.store import SealedFile

DATA = bytes(2**20)


def of_stream(_: Path) -> tuple[int, str]:
    return hash_stream(io.BytesIO(DATA))


def of_sealed_file(folder: Path) -> int:
    (folder / "sealed").write_bytes(DATA)
    return SealedFile(folder / "sealed", len(DATA), hash_stream(io.BytesIO(DATA))[1]).bytes


@pytest.mark.parametrize("hashed", [of_stream, of_sealed_file])
def test_a_process_that_was_forked_hashes_too(hashed: Callable[[Path], object], tmp_path: Path) -> None:
    """The library's threads, which it would wait for, are not there."""
    expected = hashed(tmp_path)
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(300)
        os._exit(hashed(tmp_path) != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
