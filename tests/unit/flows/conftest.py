"""A store that a command is called for, by a person with a name, and the folder in which that person is."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINWRIGHT_ACTOR", "ada")
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's folder, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
