"""Environments with few needs, from a folder of tiny wheels: nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.environments import cache
from infra.environments.packages import Packages, read_requirements

Resolve = Callable[..., Packages]


@pytest.fixture(params=["uv", "pip"])
def installer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A PATH with uv, or without it; the test runs with both."""
    folder = tmp_path / "programs"
    folder.mkdir()
    if request.param == "uv":
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        assert uv, "it is one of the packages for tests"
        (folder / "uv").symlink_to(uv)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return request.param


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture
def few_needs(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainwright itself needs only pyyaml, and no environment is in use."""
    (tmp_path / "needs.txt").write_text("pyyaml>=6\n")
    monkeypatch.setattr(cache, "RANK_NEEDS_FILE", tmp_path / "needs.txt")
    monkeypatch.setattr(cache, "_in_use", {})
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


@pytest.fixture
def resolve(tmp_path: Path, few_needs: None, wheels: Path) -> Resolve:
    """Resolves lines of requirements from `wheels`."""
    file = tmp_path / "requirements.txt"

    def resolved(*lines: str, build: tuple[str, ...] = (), afresh: bool = False) -> Packages:
        file.write_text("".join(f"{line}\n" for line in lines))
        return cache.resolve(read_requirements(file, tmp_path), build, wheels, afresh=afresh)

    return resolved
