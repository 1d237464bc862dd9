"""Environments with few needs, from a folder of tiny wheels: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.environments import cache
from infra.environments.packages import Packages, read_requirements

Resolve = Callable[..., Packages]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture
def resolve(tmp_path: Path, home: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Resolves lines of requirements from `wheels`; Trainwright itself needs only pyyaml."""
    needs = tmp_path / "needs.txt"
    needs.write_text("pyyaml>=6\n")
    monkeypatch.setattr(cache, "RANK_NEEDS_FILE", needs)
    monkeypatch.setattr(cache, "_in_use", {})
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    file = tmp_path / "requirements.txt"

    def resolved(*lines: str, build: tuple[str, ...] = (), afresh: bool = False) -> Packages:
        file.write_text("".join(f"{line}\n" for line in lines))
        return cache.resolve(read_requirements(file, tmp_path), build, wheels, afresh=afresh)

    return resolved
