"""One real Prefect server and one S3 server for all integration tests; state in the folder made for this session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.speed.children import warm_prefect
from tests.support.speed.prefect_database import put_new_database
from tests.support.tiny import trainwright


@pytest.fixture(scope="package", autouse=True)
def servers(state_folder: Path, shared_folder: Path) -> Iterator[None]:
    """Whatever server or worker these tests start is stopped after them; the first `run` starts it."""
    with warm_prefect():
        put_new_database(state_folder / "home", shared_folder)
    yield
    trainwright("down")


@pytest.fixture(scope="module")
def forked_prefect() -> Iterator[None]:
    """Prefect's processes of a file, and the texts that its tests have carried out, are forked from a warm process."""
    with warm_prefect():
        yield
