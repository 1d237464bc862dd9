"""Who, when and from which revision: where nothing proves that the code is committed, it counts as changed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

from infra import audit
from tests.support.files import git, write_files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = write_files(tmp_path / "project", {"configs/spec.yaml": "x", "src/m.py": "x"})
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    return root


def test_a_revision_is_the_commit_and_whether_the_project_differs(project: Path, tmp_path: Path) -> None:
    assert audit.revision(tmp_path) == (None, False), "outside of Git there is none"
    commit = git(project, "rev-parse", "HEAD").strip()
    assert audit.revision(project) == (commit, False)
    (project / "src/m.py").write_text("y")
    assert audit.revision(project) == (commit, True)


@pytest.mark.parametrize("error", [subprocess.CalledProcessError(128, "git"), subprocess.TimeoutExpired("git", 30)])
@pytest.mark.parametrize("what", ["rev-parse", "status"])
def test_where_git_does_not_answer_it_counts_as_changed(
    error: Exception, what: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.run

    def run(command: list[str], **more: object) -> object:
        if what in command:
            raise error
        return real(command, **more)  # type: ignore[call-overload]

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
    write_files(tmp_path, {"extra-1.dist-info/METADATA": "Name: extra\nVersion: 1\n"})
    assert audit.lock_digest() != before


def test_distributions_count_as_importlib_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "crlf-1.dist-info/METADATA": "Name: crlf\r\nVersion: 1\r\n\r\nName: not this\r\n",
        "bare-2.dist-info/METADATA": "Metadata-Version: 2.1\nName: Bare\n",
        "lower-3.egg-info/PKG-INFO": "name:lower\nversion:\t3\nDescription: of several\n  Name: lines\n",
        "file-4.egg-info": "Name: file\nVersion: 4\n",
    }
    monkeypatch.setattr(sys, "path", [str(write_files(tmp_path, files))])
    parsed = [one.metadata for one in metadata.distributions()]
    named = sorted(f"{one['Name'].lower()}=={one.get('Version')}" for one in parsed)
    assert named == ["bare==None", "crlf==1", "file==4", "lower==3"]
    assert audit.lock_digest() == hashlib.sha256("\n".join(named).encode()).hexdigest()
