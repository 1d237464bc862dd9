"""A store that a command is called for, by a person with a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINWRIGHT_ACTOR", "ada")
    return open_store(str(tmp_path / "store"))
