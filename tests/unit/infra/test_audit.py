"""Who, when and from which revision: where nothing proves that the code is committed, it counts as changed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

from infra import audit


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("configs/spec.yaml", "src/m.py"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("x")
    git(root, "init")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    return root


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout


def test_a_revision_is_the_commit_and_whether_the_project_differs(project: Path) -> None:
    commit = git(project, "rev-parse", "HEAD").strip()
    assert audit.revision(project) == (commit, False)
    (project / "src/m.py").write_text("y")
    assert audit.revision(project) == (commit, True)


def test_outside_of_git_there_is_no_revision(tmp_path: Path) -> None:
    assert audit.revision(tmp_path) == (None, False)


def fails(*arguments: object, **more: object) -> None:
    raise subprocess.CalledProcessError(128, "git")


def hangs(*arguments: object, **more: object) -> None:
    raise subprocess.TimeoutExpired("git", 30)


@pytest.mark.parametrize("git_does", [fails, hangs])
@pytest.mark.parametrize("what", ["rev-parse", "status"])
def test_where_git_does_not_answer_it_counts_as_changed(
    git_does: object, what: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.run

    def run(command: list[str], **more: object) -> object:
        return git_does() if what in command else real(command, **more)  # type: ignore[operator,call-overload]

    monkeypatch.setattr(subprocess, "run", run)
    commit, dirty = audit.revision(project)
    assert dirty
    assert (commit is None) is (what == "rev-parse")


@pytest.mark.parametrize("finder", ["importlib.metadata", "importlib_metadata"])  # the backport puts its own first
def test_what_an_uninstallation_left_behind_has_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    import_module(finder)
    before = audit.lock_digest()
    (tmp_path / "~orch-2.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert audit.lock_digest() == before
    whole = tmp_path / "extra-1.dist-info"
    whole.mkdir()
    (whole / "METADATA").write_text("Name: extra\nVersion: 1\n")
    assert audit.lock_digest() != before


def test_distributions_count_as_importlib_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "crlf-1.dist-info/METADATA": "Name: crlf\r\nVersion: 1\r\n\r\nName: not this\r\n",
        "bare-2.dist-info/METADATA": "Metadata-Version: 2.1\nName: Bare\n",
        "lower-3.egg-info/PKG-INFO": "name:lower\nversion:\t3\nDescription: of several\n  Name: lines\n",
        "file-4.egg-info": "Name: file\nVersion: 4\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    parsed = [one.metadata for one in metadata.distributions()]
    named = sorted(f"{one['Name'].lower()}=={one.get('Version')}" for one in parsed)
    assert named == ["bare==None", "crlf==1", "file==4", "lower==3"]
    assert audit.lock_digest() == hashlib.sha256("\n".join(named).encode()).hexdigest()
