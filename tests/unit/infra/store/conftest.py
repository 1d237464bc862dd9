"""Every test that takes `store` runs over a folder and over S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store import Store, open_store
from tests.support.s3 import S3Server, s3_server

__all__ = ["s3_server"]


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[S3Server]:
    """The server, without faults of another test; one that a test asked for must have been used up."""
    yield s3_server
    assert s3_server.clear() == []


@pytest.fixture
def s3_store(s3: S3Server) -> Store:
    """A new store on S3."""
    return open_store(f"s3://{s3.bucket()}/a/prefix", s3.options)


@pytest.fixture
def folder_store(tmp_path: Path) -> Store:
    """A new store in a folder."""
    return open_store(str(tmp_path / "store"))


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    """A new store of each kind."""
    return request.getfixturevalue(f"{request.param}_store")
