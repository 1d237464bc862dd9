"""Projects of the stages' tests, whose shards are made in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nights import Nights, shard_here
from tests.support.tiny import own_modules


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the shard stage has a child do is done in this process, which saves the start of another."""
    shard_here(monkeypatch)
    with own_modules():
        yield


@pytest.fixture
def nights(here: None, tmp_path: Path) -> Nights:
    """A project to which files are added night by night."""
    return Nights(tmp_path)
