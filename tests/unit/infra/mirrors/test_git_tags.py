"""Git tags in GTO's form: created once, never moved."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.mirrors import assign, register


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgSign=false")
    return subprocess.run(
        ["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def commits(tmp_path: Path) -> tuple[Path, str, str]:
    git(tmp_path, "init", "-q")
    found = []
    for message in ("first", "second"):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", message)
        found.append(git(tmp_path, "rev-parse", "HEAD"))
    return tmp_path, found[0], found[1]


def test_each_version_and_each_move_has_one_tag(commits: tuple[Path, str, str]) -> None:
    folder, first, second = commits
    for _ in range(2):
        assert register(folder, "model", 1, first, "run a") == "model@v1.0.0"
        assert assign(folder, "model", "champion", first, "seal-a") == "model#champion#1"
        assert register(folder, "model", 2, second, "run b") == "model@v2.0.0"
        assert assign(folder, "model", "champion", second, "seal-b") == "model#champion#2"
        assert assign(folder, "model", "champion", first, "seal-c") == "model#champion#3"  # a rollback
    assert git(folder, "tag").split() == [
        "model#champion#1",
        "model#champion#2",
        "model#champion#3",
        "model@v1.0.0",
        "model@v2.0.0",
    ]
    assert git(folder, "rev-parse", "model#champion#3^{commit}") == first


def test_a_commit_is_one_version(commits: tuple[Path, str, str]) -> None:
    folder, first, _ = commits
    assert register(folder, "model", 1, first, "run a") == "model@v1.0.0"
    assert register(folder, "model", 2, first, "run b") is None
    assert register(folder, "other", 2, first, "run b") == "other@v2.0.0"


def test_a_version_of_another_commit_is_not_moved(commits: tuple[Path, str, str]) -> None:
    folder, first, second = commits
    register(folder, "model", 1, first, "run a")
    with pytest.raises(UsageError, match="names another commit"):
        register(folder, "model", 1, second, "run b")
    with pytest.raises(UsageError, match="cannot set tags"):
        register(folder, "model", 2, "0" * 40, "run b")


def test_a_folder_outside_of_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot set tags"):
        register(tmp_path, "model", 1, "0" * 40, "run")
