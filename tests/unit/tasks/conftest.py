"""What tests of many stages and queries share."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store import Store, open_store
from tests.support.tiny import write_project


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of this test's own, in a folder."""
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """The spec of a tiny project."""
    return write_project(tmp_path / "tiny")
