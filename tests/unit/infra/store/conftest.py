"""Every test that takes `store` runs over a folder, over S3, and over S3 with its names in a database."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.store import Store, open_store
from infra.store.database import NamedBackend, Names
from tests.support.careless import Careless
from tests.support.fault_proxy import FaultProxy
from tests.support.rclone import RcloneServer
from tests.support.s3 import S3Server


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


@pytest.fixture
def sqlite() -> Iterator[str]:
    """Address of a SQLite database that is not there yet; in memory where that can be had, to wait for no disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="trainwright-names-", dir=memory) as folder:
        yield f"sqlite:///{folder}/names.db"


@pytest.fixture
def named_store(s3: S3Server, sqlite: str) -> Store:
    """A new store on S3 whose names are decided in SQLite."""
    return open_store(f"s3://{s3.bucket()}/a/prefix", s3.options, pointers=sqlite)


@pytest.fixture(params=["folder", "s3", "named"])
def store(request: pytest.FixtureRequest) -> Store:
    """A new store of each kind."""
    return request.getfixturevalue(f"{request.param}_store")


@pytest.fixture(scope="session")
def proxied() -> Iterator[Callable[[S3Server | RcloneServer], FaultProxy]]:
    """A proxy in front of a server, one for each in the session, without faults of another test."""
    proxies: dict[str, FaultProxy] = {}

    def proxy(server: S3Server | RcloneServer) -> FaultProxy:
        if server.url not in proxies:
            proxies[server.url] = FaultProxy(server.url)
        proxies[server.url].clear()
        return proxies[server.url]

    yield proxy
    for one in proxies.values():
        one.stop()


@pytest.fixture
def objects(tmp_path: Path) -> Careless:
    """A new place that ignores conditions."""
    return Careless(tmp_path / "store")


@pytest.fixture
def table(sqlite: str) -> Names:
    """New names in SQLite."""
    found = Names(sqlite, "s3://bucket/prefix")
    found.prepare()
    return found


@pytest.fixture
def backend(objects: Careless, table: Names) -> NamedBackend:
    """The two together."""
    return NamedBackend(objects, table)


@pytest.fixture
def kept(backend: NamedBackend) -> Store:
    """A store of the two, which no server slows down."""
    return Store(backend, {})
