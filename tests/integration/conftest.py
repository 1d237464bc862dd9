"""One real Prefect server and one S3 server for all integration tests; state in the folder made for this session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3 import s3_server  # noqa: F401 - a fixture
from tests.support.tiny import trainwright


@pytest.fixture(scope="session", autouse=True)
def stop_servers() -> Iterator[None]:
    """Whatever server or worker the tests started is stopped at the end; the first `run` starts it."""
    yield
    trainwright("down")
