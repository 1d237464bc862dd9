"""What tests of checkpoints and scores share."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of this test's own, in a folder."""
    return open_store(str(tmp_path / "store"))
