"""What tests of many rooms of infra begin with: an empty store, and a mark whose processes are ended afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.processes.processes import kill_marked, new_mark
from infra.store import Store, open_store
from tests.support.s3 import S3Server


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store in a folder."""
    return open_store(str(tmp_path / "store"))


@pytest.fixture(params=["folder", "s3"])
def any_store(request: pytest.FixtureRequest) -> Store:
    """An empty store, in a folder and in a bucket."""
    if request.param == "folder":
        return request.getfixturevalue("store")
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(f"s3://{server.bucket()}/a", server.options)


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark of a test's own; what is started with it is ended after the test."""
    mark = new_mark()
    yield mark
    kill_marked(mark)
