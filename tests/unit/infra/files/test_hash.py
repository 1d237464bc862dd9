"""Hashes of streams, also in a process that was forked from one that had hashed."""

from __future__ import annotations

import io
import os
import signal

from infra.files import hash_stream


def test_a_process_that_was_forked_hashes_too() -> None:
    """The library's threads, which it would wait for, are not there."""
    data = bytes(2**20)
    size_and_digest = hash_stream(io.BytesIO(data))
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os._exit(hash_stream(io.BytesIO(data)) != size_and_digest)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
